"""A backbone of the kind and size of EfficientViT-B1: inverted bottlenecks and linear attention over several scales; random weights."""

import torch
from torch import nn

WIDTHS = (16, 32, 64, 128, 256)
DEPTHS = (1, 2, 3, 3, 4)
HEAD_DIM = 16
CLASSES = 1000


class ConvNormAct(nn.Module):
    """Convolution, batch norm and activation; `groups` -1 is a depthwise convolution."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1, act: bool = True):
        super().__init__()
        groups = inputs if groups == -1 else groups
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(outputs)
        self.act = nn.Hardswish() if act else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.norm(self.conv(x)))


class DSConv(nn.Module):
    """Depthwise 3x3, then 1x1."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.depth_conv = ConvNormAct(inputs, inputs, 3, groups=-1)
        self.point_conv = ConvNormAct(inputs, outputs, act=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.point_conv(self.depth_conv(x))


class MBConv(nn.Module):
    """1x1 that widens, depthwise 3x3, 1x1 that narrows."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1, expand: int = 4):
        super().__init__()
        self.inverted_conv = ConvNormAct(inputs, inputs * expand)
        self.depth_conv = ConvNormAct(inputs * expand, inputs * expand, 3, stride, groups=-1)
        self.point_conv = ConvNormAct(inputs * expand, outputs, act=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.point_conv(self.depth_conv(self.inverted_conv(x)))


class LiteMLA(nn.Module):
    """Linear attention with ReLU features over two scales: no softmax, so that its cost grows with the pixels, not their square."""

    def __init__(self, channels: int, scales: tuple[int, ...] = (5,)):
        super().__init__()
        total = 3 * channels
        self.heads = channels // HEAD_DIM
        self.qkv = nn.Conv2d(channels, total, 1, bias=False)
        self.aggreg = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(total, total, scale, padding=scale // 2, groups=total, bias=False),
                nn.Conv2d(total, total, 1, groups=3 * self.heads, bias=False),
            )
            for scale in scales
        )
        self.proj = ConvNormAct(channels * (1 + len(scales)), channels, act=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, _, height, width = x.shape
        qkv = self.qkv(x)
        qkv = torch.cat([qkv, *(each(qkv) for each in self.aggreg)], dim=1)
        qkv = qkv.reshape(batch, -1, 3 * HEAD_DIM, height * width)
        q, k, v = qkv[:, :, :HEAD_DIM], qkv[:, :, HEAD_DIM : 2 * HEAD_DIM], qkv[:, :, 2 * HEAD_DIM :]
        q, k = torch.relu(q), torch.relu(k)
        # A row of ones makes the sums of the weights, by which the result is divided, in the same product.
        v = nn.functional.pad(v, (0, 0, 0, 1), value=1.0)
        out = torch.matmul(torch.matmul(v, k.transpose(-1, -2)), q)
        out = out[:, :, :-1] / (out[:, :, -1:] + 1e-6)
        return self.proj(out.reshape(batch, -1, height, width))


class Residual(nn.Module):
    """A block and its shortcut."""

    def __init__(self, main: nn.Module):
        super().__init__()
        self.main = main

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.main(x)


class EfficientViTBlock(nn.Module):
    """Attention over the whole image, then a local bottleneck."""

    def __init__(self, channels: int):
        super().__init__()
        self.context_module = Residual(LiteMLA(channels))
        self.local_module = Residual(MBConv(channels, channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.local_module(self.context_module(x))


class Stage(nn.Module):
    """Halves the image, then blocks of one width."""

    def __init__(self, inputs: int, outputs: int, depth: int, *, attention: bool):
        super().__init__()
        rest = [
            EfficientViTBlock(outputs) if attention else Residual(MBConv(outputs, outputs))
            for _ in range(depth if attention else depth - 1)
        ]
        self.blocks = nn.Sequential(MBConv(inputs, outputs, stride=2), *rest)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(x)


class Backbone(nn.Module):
    """A stem and four stages, the last two with attention."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential()
        self.stem.add_module("conv0", ConvNormAct(3, WIDTHS[0], 3, 2))
        self.stem.add_module("res0", Residual(DSConv(WIDTHS[0], WIDTHS[0])))
        self.stages = nn.Sequential(
            *(Stage(WIDTHS[i], WIDTHS[i + 1], DEPTHS[i + 1], attention=i >= 2) for i in range(len(WIDTHS) - 1))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.stages(self.stem(x))


class Model(nn.Module):
    """The backbone with a head that classifies."""

    def __init__(self):
        super().__init__()
        self.m = Backbone()
        self.head = ConvNormAct(WIDTHS[-1], 6 * WIDTHS[-1])
        self.classifier = nn.Sequential(nn.Linear(6 * WIDTHS[-1], 1600), nn.LayerNorm(1600), nn.Hardswish())
        self.classes = nn.Linear(1600, CLASSES)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.head(self.m(image))
        return self.classes(self.classifier(x.mean(dim=(2, 3))))


def get_fwd_args() -> tuple[torch.Tensor]:
    """One image; every size that 32 divides works."""
    return (torch.randn(1, 3, 224, 224),)
