"""Lifts camera features into a voxel grid: a 5-D ``F.grid_sample``, as used before bird's-eye-view heads."""

import torch
from torch import nn
from torch.nn import functional as F

CHANNELS = 8
DEPTH_BINS = 8
HEIGHT, WIDTH = 48, 80
VOXELS = (24, 24, 4)


class Lifter(nn.Module):
    """Samples a (N, C, D, H, W) frustum volume at (N, X, Y, Z, 3) points in [-1, 1]."""

    def forward(self, volume: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(volume, points, mode="bilinear", padding_mode="zeros", align_corners=False)


class Model(nn.Module):
    """Image (N, 3, 48, 80) and voxel centres (N, 24, 24, 4, 3) in; occupancy logits (N, 1, 24, 24) and depth out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 24, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        self.features = nn.Conv2d(24, CHANNELS, 1)
        self.depth = nn.Conv2d(24, DEPTH_BINS, 1)
        self.lifter = Lifter()
        self.head = nn.Sequential(
            nn.Conv2d(CHANNELS * VOXELS[2], 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 1, 1),
        )

    def forward(self, image: torch.Tensor, points: torch.Tensor) -> dict[str, torch.Tensor]:
        camera = self.backbone(image)
        depth = self.depth(camera).softmax(dim=1)
        volume = self.features(camera).unsqueeze(2) * depth.unsqueeze(1)
        voxels = self.lifter(volume, points)  # (N, C, X, Y, Z)
        plane = voxels.permute(0, 1, 4, 2, 3).flatten(1, 2)
        return {"occupancy": self.head(plane), "depth": depth}


def get_fwd_args() -> tuple[torch.Tensor, ...]:
    """Example inputs: a noise image and a jittered regular grid; some points lie outside the frustum."""
    generator = torch.Generator().manual_seed(1)
    image = torch.randn(1, 3, HEIGHT, WIDTH, generator=generator)
    axes = [torch.linspace(-1.05, 1.05, extent) for extent in VOXELS]
    points = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).unsqueeze(0)
    jitter = torch.rand(points.shape, generator=generator) * 0.05
    return (image, points + jitter)
