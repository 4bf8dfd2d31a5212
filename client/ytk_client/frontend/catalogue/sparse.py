"""Sparse 3-D convolution in plain torch: the reference of the sparse plugins.

A sparse tensor is ``features`` [N, C] and ``indices`` [N, 4] int32 (batch, z, y, x). A row with a negative number or one
beyond the grid is padding: it takes no part and its result is 0. Of several rows at one place the last one counts.
Weights are [kernel elements, channels in, channels out], elements in (z, y, x) order; the cross-correlation is that of
``torch.nn.functional.conv3d``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from ytk_core.errors import UserError

_PADDING = -1


class _Places:
    """Finds rows by place."""

    def __init__(self, indices: torch.Tensor, shape: Sequence[int], batch_size: int) -> None:
        self._extents = (batch_size, *shape)
        cells = self.cells(indices)
        self._sorted, self._rows = torch.sort(cells, stable=True)

    def cells(self, indices: torch.Tensor) -> torch.Tensor:
        """Number the places; -1 outside the grid."""
        wide = indices.long()
        extents = torch.tensor(self._extents)
        inside = ((wide >= 0) & (wide < extents)).all(1)
        numbers = wide[:, 0]
        for axis in (1, 2, 3):
            numbers = numbers * self._extents[axis] + wide[:, axis]
        return torch.where(inside, numbers, _PADDING)

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """Give the last row at each place, -1 where there is none."""
        cells = self.cells(indices)
        if self._sorted.numel() == 0:
            return torch.full_like(cells, _PADDING)
        at = (torch.searchsorted(self._sorted, cells, right=True) - 1).clamp(min=0)
        found = (self._sorted[at] == cells) & (cells >= 0)
        return torch.where(found, self._rows[at], _PADDING)


def _elements(kernel_size: Sequence[int]) -> list[torch.Tensor]:
    return [
        torch.tensor([z, y, x])
        for z in range(kernel_size[0])
        for y in range(kernel_size[1])
        for x in range(kernel_size[2])
    ]


def _sum(
    neighbours: Callable[[int], torch.Tensor],
    active: torch.Tensor,
    features: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
) -> torch.Tensor:
    """Sum, for each output row, bias and the input row of every kernel element times its matrix."""
    result = bias.repeat(active.shape[0], 1)
    for k in range(weight.shape[0]):
        rows = neighbours(k)
        here = rows >= 0
        result[here] += features[rows[here]] @ weight[k]
    return torch.where(active[:, None], result, torch.zeros((), dtype=result.dtype))


def _with_offset(indices: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return torch.cat([indices[:, :1].long(), places], dim=1)


def strided_shape(
    shape: Sequence[int],
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> list[int]:
    """Give the extents of the grid after a strided convolution."""
    parts = zip(shape, kernel_size, stride, padding, dilation, strict=True)
    return [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in parts]


def subm_conv3d(
    features: torch.Tensor,
    indices: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    spatial_shape: Sequence[int],
    batch_size: int,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
) -> torch.Tensor:
    """Submanifold convolution: active where the input is; the kernel is centred."""
    places = _Places(indices, spatial_shape, batch_size)
    elements, step = _elements(kernel_size), torch.tensor(list(dilation))
    centre = torch.tensor([k // 2 for k in kernel_size])
    active = places.cells(indices) >= 0

    def neighbours(k: int) -> torch.Tensor:
        rows = places.rows(_with_offset(indices, indices[:, 1:].long() + (elements[k] - centre) * step))
        return torch.where(active, rows, _PADDING)

    return _sum(neighbours, active, features, weight, bias)


def conv3d(
    features: torch.Tensor,
    indices: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    spatial_shape: Sequence[int],
    batch_size: int,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    max_voxels: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Convolve; active is every place that some active input reaches, in (batch, z, y, x) order.

    Returns:
        Features [max_voxels, channels], indices [max_voxels, 4] (padding is -1), and the number of active voxels [1].

    Raises:
        UserError: ``voxel_overflow``: more active voxels than ``max_voxels``.
    """
    out_shape = strided_shape(spatial_shape, kernel_size, stride, padding, dilation)
    places, reached = _Places(indices, spatial_shape, batch_size), _Places(indices[:0], out_shape, batch_size)
    elements, step = _elements(kernel_size), torch.tensor(list(dilation))
    strides, pads = torch.tensor(list(stride)), torch.tensor(list(padding))
    valid = places.cells(indices) >= 0
    targets = []
    for element in elements:
        reach = indices[:, 1:].long() + pads - element * step
        fits = valid & ((reach >= 0) & (reach % strides == 0)).all(1)
        targets.append(reached.cells(_with_offset(indices, reach // strides)[fits]))
    cells = torch.unique(torch.cat(targets))
    cells = cells[cells >= 0]
    count = int(cells.numel())
    if count > max_voxels:
        layer = (
            f"{weight.shape[1]} to {weight.shape[2]} channels, kernel {list(kernel_size)}, grid {list(spatial_shape)}"
        )
        msg = f"a sparse convolution ({layer}) gives {count} active voxels, more than its declared maximum of {max_voxels}"
        hint = "Set `max_voxels` on that spconv.SparseConv3d module, for example `conv.max_voxels = 20000`, to the most that any input will give."
        raise UserError(msg, code="voxel_overflow", hint=hint)
    found = torch.full((max_voxels, 4), _PADDING, dtype=torch.int32)
    rest = cells
    for axis in (2, 1, 0):
        found[:count, axis + 1] = (rest % out_shape[axis]).int()
        rest = rest // out_shape[axis]
    found[:count, 0] = rest.int()
    active = found[:, 0] >= 0

    def neighbours(k: int) -> torch.Tensor:
        rows = places.rows(_with_offset(found, found[:, 1:].long() * strides - pads + elements[k] * step))
        return torch.where(active, rows, _PADDING)

    return _sum(neighbours, active, features, weight, bias), found, torch.tensor([count], dtype=torch.int32)


def inverse_conv3d(
    features: torch.Tensor,
    indices: torch.Tensor,
    fine_indices: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    spatial_shape: Sequence[int],
    batch_size: int,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> torch.Tensor:
    """Undo the places of a strided convolution from ``spatial_shape``: results at ``fine_indices``, its input's places."""
    coarse_shape = strided_shape(spatial_shape, kernel_size, stride, padding, dilation)
    places, fine = _Places(indices, coarse_shape, batch_size), _Places(fine_indices[:0], spatial_shape, batch_size)
    elements, step = _elements(kernel_size), torch.tensor(list(dilation))
    strides, pads = torch.tensor(list(stride)), torch.tensor(list(padding))
    active = fine.cells(fine_indices) >= 0

    def neighbours(k: int) -> torch.Tensor:
        reach = fine_indices[:, 1:].long() + pads - elements[k] * step
        rows = places.rows(_with_offset(fine_indices, reach // strides))
        return torch.where(active & ((reach >= 0) & (reach % strides == 0)).all(1), rows, _PADDING)

    return _sum(neighbours, active, features, weight, bias)


def to_dense(
    features: torch.Tensor, indices: torch.Tensor, spatial_shape: Sequence[int], batch_size: int
) -> torch.Tensor:
    """Give the dense tensor [batch, channels, *spatial_shape], 0 where nothing is active."""
    cells = _Places(indices, spatial_shape, batch_size).cells(indices)
    rows = torch.arange(len(cells))[cells >= 0]
    owner = torch.full((batch_size * math.prod(spatial_shape),), _PADDING)
    owner = owner.scatter_reduce(0, cells[cells >= 0], rows, "amax")
    # The row after the last one stands for an empty place.
    padded = torch.cat([features, features.new_zeros(1, features.shape[1])])
    dense = padded[torch.where(owner >= 0, owner, features.shape[0])]
    return dense.reshape(batch_size, *spatial_shape, -1).movedim(-1, 1).contiguous()


def pillar_scatter(
    features: torch.Tensor, coordinates: torch.Tensor, grid_size: Sequence[int], batch_size: int
) -> torch.Tensor:
    """Give the canvas [batch, channels, *grid_size] with the pillars' ``features`` [N, C] at their places.

    ``coordinates`` are [N, 4] int32 (batch, z, y, x), and z is 0. Padding and rows at one place are as in the module's
    head: of several pillars at one place the last one counts, as in a loop of assignments.
    """
    return to_dense(features, coordinates, [1, *grid_size], batch_size)[:, :, 0]
