"""Operators written in terms of others that have a loop form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ytk_gaia.generator import scatter

aten = torch.ops.aten

_NEAREST = 1
_BORDER, _REFLECTION = 1, 2


def _unnormalise(coordinate: torch.Tensor, size: int, *, align_corners: bool) -> torch.Tensor:
    if align_corners:
        return (coordinate + 1) / 2 * (size - 1)
    return ((coordinate + 1) * size - 1) / 2


def _reflect(coordinate: torch.Tensor, twice_low: int, twice_high: int) -> torch.Tensor:
    if twice_low == twice_high:
        return torch.zeros_like(coordinate)
    low, span = twice_low / 2, (twice_high - twice_low) / 2
    distance = (coordinate - low).abs()
    flips = torch.floor(distance / span)
    rest = distance - flips * span
    return torch.where(torch.remainder(flips, 2) == 0, rest + low, span - rest + low)


def _source_coordinate(coordinate: torch.Tensor, size: int, padding_mode: int, *, align_corners: bool) -> torch.Tensor:
    source = _unnormalise(coordinate, size, align_corners=align_corners)
    if padding_mode == _BORDER:
        return source.clamp(0, size - 1)
    if padding_mode == _REFLECTION:
        bounds = (0, 2 * (size - 1)) if align_corners else (-1, 2 * size - 1)
        return _reflect(source, *bounds).clamp(0, size - 1)
    return source


def grid_sampler_3d(
    volume: torch.Tensor, grid: torch.Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> torch.Tensor:
    """Sample ``volume`` (N, C, D, H, W) at ``grid`` (N, OD, OH, OW, 3) giving (N, C, OD, OH, OW); one pointwise loop.

    Args:
        volume: Values.
        grid: Coordinates in [-1, 1] as (x, y, z); outside reads by ``padding_mode``.
        interpolation_mode: 0 trilinear, 1 nearest.
        padding_mode: 0 zeros, 1 border, 2 reflection.
        align_corners: Whether -1 and 1 are the centres of the corner voxels.
    """
    batch, channels, depth, height, width = volume.shape
    sizes = (width, height, depth)
    # A broadcast channel axis keeps the result in NCDHW, written in one pass.
    x, y, z = (
        _source_coordinate(grid[..., axis], size, padding_mode, align_corners=align_corners).unsqueeze(1)
        for axis, size in enumerate(sizes)
    )
    n = torch.arange(batch, device=volume.device).view(batch, 1, 1, 1, 1)
    c = torch.arange(channels, device=volume.device).view(1, channels, 1, 1, 1)

    def voxel(*position: torch.Tensor) -> torch.Tensor:
        inside = None
        for value, size in zip(position, sizes, strict=True):
            within = (value >= 0) & (value < size)
            inside = within if inside is None else inside & within
        xi, yi, zi = (v.clamp(0, s - 1).to(torch.int64) for v, s in zip(position, sizes, strict=True))
        taken = aten.index(volume, [n, c, zi, yi, xi])
        return torch.where(inside, taken, torch.zeros((), dtype=volume.dtype, device=volume.device))

    if interpolation_mode == _NEAREST:
        return voxel(torch.round(x), torch.round(y), torch.round(z))
    floors = tuple(torch.floor(v) for v in (x, y, z))
    total = None
    for dz in (0, 1):
        for dy in (0, 1):
            for dx in (0, 1):
                corner = (floors[0] + dx, floors[1] + dy, floors[2] + dz)
                weight = torch.ones((), dtype=grid.dtype, device=grid.device)
                for source, at in zip((x, y, z), corner, strict=True):
                    weight = weight * (1 - (source - at).abs())
                term = voxel(*corner) * weight
                total = term if total is None else total + term
    return total


def topk(
    x: torch.Tensor,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,  # noqa: A002 -- aten's name
) -> tuple[torch.Tensor, torch.Tensor]:
    """Give the first ``k`` of a stable sort; which of two equal values wins is unspecified in torch."""
    del sorted  # sorted output satisfies both
    if x.dim() == 0:
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    values, indices = aten.sort.stable(x, stable=True, dim=dim, descending=largest)
    return values.narrow(dim, 0, k).clone(), indices.narrow(dim, 0, k).clone()


def kthvalue(x: torch.Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Give element ``k`` (from 1) of a stable ascending sort along ``dim``."""
    if x.dim() == 0:
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    values, indices = aten.sort.stable(x, stable=True, dim=dim, descending=False)

    def pick(t: torch.Tensor) -> torch.Tensor:
        return (t.narrow(dim, k - 1, 1) if keepdim else t.select(dim, k - 1)).clone()

    return pick(values), pick(indices)


def cdist_forward(x: torch.Tensor, y: torch.Tensor, p: float = 2.0, _compute_mode: int | None = None) -> torch.Tensor:
    """Give pairwise distances of the rows of ``x`` (..., P, M) and ``y`` (..., R, M) as (..., P, R)."""
    return _norms((x.unsqueeze(-2) - y.unsqueeze(-3)).abs(), p)


def _norms(difference: torch.Tensor, p: float) -> torch.Tensor:
    if p == float("inf"):
        return difference.amax(-1)
    if p == 0:
        return (difference != 0).to(difference.dtype).sum(-1)
    if p == 1:
        return difference.sum(-1)
    return difference.pow(p).sum(-1).pow(1 / p)


def upsample_nearest2d(
    x: torch.Tensor, output_size: list[int] | None, scales_h: float | None = None, scales_w: float | None = None
) -> Any:
    """Repeat every pixel a whole number of times, by integer indices alone; other scales have a general form elsewhere."""
    if output_size is None:
        return NotImplemented
    factors = []
    for given, size, scale in zip(output_size, x.shape[-2:], (scales_h, scales_w), strict=True):
        if not isinstance(size, int) or not isinstance(given, int) or not size or given % size:
            return NotImplemented
        factors.append(given // size)
        if scale is not None and scale != factors[-1]:
            return NotImplemented
    (h, w), (height, width) = factors, x.shape[-2:]
    spread = x.unsqueeze(-2).unsqueeze(-1).expand(*x.shape[:-2], height, h, width, w)
    # The dims are now (..., H, 1 -> h, W, 1 -> w) in the order of the result.
    return spread.reshape(*x.shape[:-2], height * h, width * w)


def _upsample_nearest2d_vec(x: torch.Tensor, output_size: list[int] | None, scale_factors: list[float] | None) -> Any:
    if output_size is None and scale_factors is not None:
        output_size = [int(n * s) for n, s in zip(x.shape[-2:], scale_factors, strict=True)]
    return upsample_nearest2d(x, output_size, *(scale_factors or (None, None)))


def trilinear(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    expand_a: list[int],
    expand_b: list[int],
    expand_c: list[int],
    summed: list[int],
    unroll_dim: int = 1,
) -> torch.Tensor:
    """Give the sum over ``summed`` of the product of three tensors, each with dims of one put in where it lacks them."""
    del unroll_dim
    spread = []
    for tensor, dims in ((a, expand_a), (b, expand_b), (c, expand_c)):
        for dim in dims:
            tensor = tensor.unsqueeze(dim)  # noqa: PLW2901 -- one step of the same tensor
        spread.append(tensor)
    return (spread[0] * spread[1] * spread[2]).sum(summed)


def searchsorted(
    boundaries: torch.Tensor,
    x: torch.Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: torch.Tensor | None = None,
) -> Any:
    """Give how many boundaries (..., M) lie before each value (..., N), by counting; NaN is after all of them."""
    if sorter is not None:
        return NotImplemented
    boundaries, values = boundaries.unsqueeze(-2), x.unsqueeze(-1)
    after = boundaries > values if right or side == "right" else boundaries >= values
    return (~after).sum(-1).to(torch.int32 if out_int32 else torch.int64)


def bucketize(x: torch.Tensor, boundaries: torch.Tensor, *, out_int32: bool = False, right: bool = False) -> Any:
    """Give the bucket of each value among boundaries (M,)."""
    return searchsorted(boundaries, x.reshape(-1), out_int32=out_int32, right=right).reshape(x.shape)


def addbmm(base: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: float = 1, alpha: float = 1) -> torch.Tensor:
    """Give ``beta * base + alpha *`` the sum over the batch of ``a @ b``."""
    product = torch.bmm(a, b).sum(0)
    product = product if alpha == 1 else product * alpha
    return product if beta == 0 else product + (base if beta == 1 else base * beta)


_MAX_ROWS = 64


def pdist_forward(x: torch.Tensor, p: float = 2.0) -> Any:
    """Give the distances of all pairs of rows of (N, M), in the order (0, 1), (0, 2), ..."""
    rows = x.shape[0]
    if not isinstance(rows, int) or rows > _MAX_ROWS:
        return NotImplemented
    if rows < 2:
        return torch.zeros(0, dtype=x.dtype, device=x.device)
    difference = torch.cat([x[k : k + 1] - x[k + 1 :] for k in range(rows - 1)]).abs()
    return _norms(difference, p)


def adaptive_avg_pool3d(x: torch.Tensor, output_size: list[int]) -> Any:
    """Give means over windows that cover (..., D, H, W) as evenly as can be; they may overlap."""
    for dim, wanted in zip((-3, -2, -1), output_size, strict=True):
        size = x.shape[dim]
        if not isinstance(size, int) or wanted > _MAX_ROWS:
            return NotImplemented
        bounds = [(k * size // wanted, -(-(k + 1) * size // wanted)) for k in range(wanted)]
        # Means of means: the windows of the other dims are the same for all elements of one.
        x = torch.cat([x.narrow(dim, low, high - low).mean(dim, keepdim=True) for low, high in bounds], dim)
    return x


def nanmedian_dim(x: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Give the lower median of the elements along ``dim`` that are numbers, and where it is."""
    if x.dim() == 0:
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    values, indices = aten.sort.stable(x, stable=True, dim=dim, descending=False)
    place = ((~x.isnan()).sum(dim, keepdim=True) - 1).clamp_min(0) // 2

    def pick(t: torch.Tensor) -> torch.Tensor:
        found = torch.gather(t, dim, place)
        return found if keepdim else found.squeeze(dim)

    return pick(values), pick(indices)


def nanmedian(x: torch.Tensor) -> torch.Tensor:
    """Give the lower median of all elements that are numbers."""
    return nanmedian_dim(x.reshape(-1), 0)[0]


def histc(x: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> torch.Tensor:  # noqa: A002 -- aten's names
    """Count elements in equal bins between two limits, those of the data where both are the same."""
    flat = x.reshape(-1)
    if min == max:
        low, high = flat.amin(), flat.amax()
        same = low == high
        low, high = torch.where(same, low - 1, low), torch.where(same, high + 1, high)
    else:
        low, high = (torch.full((), float(v), dtype=x.dtype, device=x.device) for v in (min, max))
    place = ((flat - low) * bins / (high - low)).floor().clamp_max(bins - 1)
    inside = (flat >= low) & (flat <= high)
    hits = (place.unsqueeze(0) == torch.arange(bins, device=x.device).unsqueeze(1)) & inside
    return hits.sum(1).to(x.dtype)


TABLE: dict[Any, Callable[..., Any]] = {
    aten.upsample_nearest2d.default: upsample_nearest2d,
    aten.upsample_nearest2d.vec: _upsample_nearest2d_vec,
    aten._trilinear.default: trilinear,  # noqa: SLF001 -- the operator's name
    aten.searchsorted.Tensor: searchsorted,
    aten.bucketize.Tensor: bucketize,
    aten.index_reduce.default: scatter.index_reduce,
    aten.scatter_reduce.two: scatter.scatter_mean,
    aten.grid_sampler_3d.default: grid_sampler_3d,
    aten.topk.default: topk,
    aten.addbmm.default: addbmm,
    aten._pdist_forward.default: pdist_forward,  # noqa: SLF001 -- the operator's name
    aten._adaptive_avg_pool3d.default: adaptive_avg_pool3d,  # noqa: SLF001 -- the operator's name
    aten.nanmedian.dim: nanmedian_dim,
    aten.nanmedian.default: nanmedian,
    aten.histc.default: histc,
    aten.kthvalue.default: kthvalue,
    aten._cdist_forward.default: cdist_forward,  # noqa: SLF001 -- the operator's name
}

BEFORE: dict[Any, Callable[..., Any]] = {
    op: TABLE[op] for op in (aten.upsample_nearest2d.default, aten.upsample_nearest2d.vec)
}
"""What torch's default table would otherwise write in floating-point coordinates."""
