"""One small case for each shipped plugin, with the corners that its kernels have: padding, duplicates, edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Sample:
    """What a plugin is called with."""

    tensors: list[torch.Tensor]
    attributes: dict[str, Any]


_GENERATOR = torch.Generator().manual_seed(5)


def _noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=_GENERATOR)


def _places(count: int, extents: tuple[int, ...], padding: int) -> torch.Tensor:
    """Different places of a grid in random order, then rows of padding, then the first place once more."""
    number = torch.randperm(int(torch.tensor(extents).prod()), generator=_GENERATOR)[:count]
    parts = []
    for extent in reversed(extents):
        parts.insert(0, number % extent)
        number = number // extent
    places = torch.stack(parts, 1)
    return torch.cat([places, torch.full((padding, len(extents)), -1), places[:1]]).int()


_GRID = {"spatial_shape": [4, 6, 5], "batch_size": 2}
_WINDOW = {**_GRID, "kernel_size": [3, 3, 2], "stride": [2, 1, 2], "padding": [1, 1, 0], "dilation": [1, 2, 1]}
_FINE = _places(40, (2, 4, 6, 5), 3)
# Extents of the grid after the window above.
_COARSE = _places(30, (2, 2, 4, 2), 2)

SAMPLES: dict[str, Sample] = {
    "sparse_subm_conv3d": Sample(
        [_noise(44, 3), _FINE, _noise(27, 3, 5), _noise(5)],
        {**_GRID, "kernel_size": [3, 3, 3], "dilation": [1, 1, 2]},
    ),
    "sparse_conv3d": Sample([_noise(44, 3), _FINE, _noise(18, 3, 5), _noise(5)], {**_WINDOW, "max_voxels": 64}),
    "sparse_inverse_conv3d": Sample([_noise(33, 3), _COARSE, _FINE, _noise(18, 3, 5), _noise(5)], _WINDOW),
    "sparse_to_dense": Sample([_noise(44, 3), _FINE], _GRID),
    "pillar_scatter": Sample([_noise(24, 3), _places(20, (2, 1, 5, 7), 3)], {"grid_size": [5, 7], "batch_size": 2}),
    "deform_conv2d": Sample(
        [_noise(2, 4, 6, 5), _noise(2, 24, 3, 5) * 2, _noise(6, 2, 3, 2), _noise(6), _noise(2, 12, 3, 5).sigmoid()],
        {
            "stride": [2, 1],
            "padding": [1, 1],
            "dilation": [1, 2],
            "groups": 2,
            "offset_groups": 2,
            "use_mask": 1,
        },
    ),
    "multi_scale_deform_attn": Sample(
        [
            _noise(2, 26, 2, 3),
            torch.tensor([[5, 4], [3, 2]], dtype=torch.int32),
            torch.rand(2, 7, 2, 2, 3, 2, generator=_GENERATOR) * 1.4 - 0.2,
            torch.rand(2, 7, 2, 2, 3, generator=_GENERATOR),
        ],
        {},
    ),
    "roi_align": Sample(
        [
            _noise(2, 3, 7, 8),
            torch.tensor([[0, 1.0, 2.0, 11.0, 9.5], [1, -6.0, -3.0, 4.0, 40.0], [2, 0.0, 0.0, 9.0, 9.0]]),
        ],
        {"output_size": [3, 2], "sampling_ratio": 0, "aligned": 1, "spatial_scale": 0.5},
    ),
    "rotated_nms": Sample(
        [
            torch.rand(70, 5, generator=_GENERATOR) * torch.tensor([12.0, 12.0, 4.0, 4.0, 6.0]),
            # Distinct in fp16 too: equal scores would fall in another order there.
            torch.randperm(70, generator=_GENERATOR) / 128,
        ],
        {"max_output": 40, "iou_threshold": 0.2, "score_threshold": 0.1},
    ),
}
