"""A small backbone of the EfficientViT kind: blocks whose middle part is worth a kernel of its own."""

import torch
from torch import nn
from torch.nn import functional as F


class ConvNormAct(nn.Module):
    def __init__(self, cin, cout, kernel=1, stride=1, groups=1, *, act=True):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, kernel, stride, kernel // 2, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(cout)
        self.act = nn.Hardswish() if act else nn.Identity()

    def forward(self, x):
        return self.act(self.norm(self.conv(x)))


class LiteMLA(nn.Module):
    """Attention without softmax over two scales."""

    def __init__(self, channels, head=4):
        super().__init__()
        self.head = head
        self.qkv = nn.Conv2d(channels, 3 * channels, 1, bias=False)
        self.scale = nn.Conv2d(3 * channels, 3 * channels, 5, padding=2, groups=3 * channels, bias=False)
        self.proj = ConvNormAct(2 * channels, channels, act=False)

    def forward(self, x):
        qkv = self.qkv(x)
        qkv = torch.cat([qkv, self.scale(qkv)], dim=1)
        batch, _, height, width = qkv.shape
        q, k, v = qkv.reshape(batch, -1, 3 * self.head, height * width).split(self.head, dim=2)
        v = F.pad(v, (0, 0, 0, 1), value=1.0)
        out = (v @ F.relu(k).transpose(-1, -2)) @ F.relu(q)
        out = out[:, :, :-1] / (out[:, :, -1:] + 1e-6)
        return self.proj(out.reshape(batch, -1, height, width))


class MBConv(nn.Module):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.expand = ConvNormAct(cin, 2 * cin)
        self.depth = ConvNormAct(2 * cin, 2 * cin, 3, stride, groups=2 * cin)
        self.project = ConvNormAct(2 * cin, cout, act=False)

    def forward(self, x):
        return self.project(self.depth(self.expand(x)))


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.context = LiteMLA(channels)
        self.local = MBConv(channels, channels)

    def forward(self, x):
        x = x + self.context(x)
        return x + self.local(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = ConvNormAct(3, 8, 3, 2)
        self.stages = nn.Sequential(
            nn.Sequential(Block(8), Block(8)),
            nn.Sequential(MBConv(8, 16, stride=2), Block(16)),
        )
        self.head = nn.Linear(16, 5)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):  # as after training: folding these must not change the result
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.uniform_(module.bias, -0.5, 0.5)
                nn.init.uniform_(module.running_mean, -0.5, 0.5)
                nn.init.uniform_(module.running_var, 0.5, 1.5)

    def forward(self, x):
        return self.head(self.stages(self.stem(x)).mean((2, 3)))


def get_fwd_args():
    return (torch.randn(1, 3, 32, 48),)
