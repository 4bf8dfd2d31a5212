"""A small SECOND: voxel features, a sparse encoder written with spconv, a dense bird's-eye view, boxes from it."""

import spconv.pytorch as spconv
import torch
from torch import nn

GRID = [9, 48, 48]
"""Voxels along z, y, x."""
MAX_VOXELS = 1200
"""Rows of the input; a frame with fewer voxels is filled up with indices of -1."""
MAX_ACTIVE = 1600
"""Most active voxels after a strided convolution, which gives more of them than it gets. A frame with more is refused."""


def block(inner: int, outer: int, key: str) -> spconv.SparseSequential:
    """A submanifold convolution with norm and activation."""
    return spconv.SparseSequential(
        spconv.SubMConv3d(inner, outer, 3, bias=False, indice_key=key), nn.BatchNorm1d(outer, eps=1e-3), nn.ReLU()
    )


def down(inner: int, outer: int, **window: object) -> spconv.SparseSequential:
    """A strided sparse convolution with norm and activation; its number of active voxels has a declared maximum."""
    conv = spconv.SparseConv3d(inner, outer, bias=False, **window)
    conv.max_voxels = MAX_ACTIVE
    return spconv.SparseSequential(conv, nn.BatchNorm1d(outer, eps=1e-3), nn.ReLU())


class Model(nn.Module):
    """Features (V, 4) and indices (V, 4) int32 (batch, z, y, x) of voxels in, scores and boxes of a 24 x 24 map out."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = spconv.SparseSequential(
            block(4, 16, "subm1"),
            block(16, 16, "subm1"),
            down(16, 32, kernel_size=3, stride=2, padding=1),
            block(32, 32, "subm2"),
            down(32, 32, kernel_size=(3, 1, 1), stride=(2, 1, 1)),
        )
        self.bev = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        self.scores = nn.Conv2d(64, 2, 1)
        self.boxes = nn.Conv2d(64, 14, 1)

    def forward(self, features: torch.Tensor, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.encoder(spconv.SparseConvTensor(features, indices, GRID, batch_size=1))
        dense = x.dense()
        batch, channels, depth, height, width = dense.shape
        bev = self.bev(dense.reshape(batch, channels * depth, height, width))
        return self.scores(bev), self.boxes(bev)


def get_fwd_args() -> tuple[torch.Tensor, ...]:
    """Voxels of a few walls, as a lidar sees them; a fifth of the rows is padding."""
    generator = torch.Generator().manual_seed(2)
    y, x = torch.meshgrid(torch.arange(GRID[1]), torch.arange(GRID[2]), indexing="ij")
    wall = ((y - 12).abs() < 1) | ((x - 30).abs() < 1) | ((y + x - 70).abs() < 2)
    places = torch.nonzero(wall)
    z = torch.arange(GRID[0]).repeat_interleave(len(places))
    cells = torch.cat([torch.zeros_like(z)[:, None], z[:, None], places.repeat(GRID[0], 1)], 1)
    chosen = cells[torch.randperm(len(cells), generator=generator)[: MAX_VOXELS * 4 // 5]]
    indices = torch.full((MAX_VOXELS, 4), -1, dtype=torch.int32)
    indices[: len(chosen)] = chosen.int()
    return torch.randn(MAX_VOXELS, 4, generator=generator), indices
