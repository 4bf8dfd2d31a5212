"""Scatter reductions that Inductor leaves to a library: the largest, smallest, product and mean of what lands on an element."""

from __future__ import annotations

from typing import Any

import torch

from ytk_gaia.generator import inductor_adapter as inductor

aten = torch.ops.aten

MODES = {"amax": "maximum", "amin": "minimum", "prod": "mul", "sum": "add"}
"""torch's word to the scalar operation that joins the element with what lands on it."""


def _neutral(reduce: str, dtype: torch.dtype) -> Any:
    if reduce in {"sum", "prod"}:
        return 0 if reduce == "sum" else 1
    if dtype is torch.bool:
        return reduce == "amin"
    if dtype.is_floating_point:
        return float("-inf") if reduce == "amax" else float("inf")
    limits = torch.iinfo(dtype)
    return limits.min if reduce == "amax" else limits.max


def lower_scatter_reduce(x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True) -> Any:
    """Lower ``aten.scatter_reduce.two``: one pass over the source, each value joined with the element it lands on.

    Args:
        x: What is scattered into; not changed.
        dim: Dim that the index speaks of.
        index: Integer, of the source's rank.
        source: Values.
        reduce: A key of :data:`MODES`; ``mean`` is a decomposition.
        include_self: Whether ``x`` takes part where something lands.
    """
    if reduce not in MODES:
        msg = f"scatter_reduce {reduce}"
        raise NotImplementedError(msg)
    result = inductor.lowerings[aten.clone.default](x)
    scalar = not result.get_size()
    view = inductor.lowerings[aten.view.default]
    if scalar:
        result = view(result, [1])
    index, source = (view(t, [1]) if not t.get_size() else t for t in (index, source))
    rank = len(result.get_size())
    dim = dim % rank if rank else 0
    result.realize()
    load_index, load_source = index.make_loader(), source.make_loader()

    def place(position: Any) -> list[Any]:
        target = list(position)
        target[dim] = inductor.ops.indirect_indexing(load_index(position), result.get_size()[dim], wrap_neg=False)
        return target

    if not include_self:
        neutral = _neutral(reduce, result.get_dtype())
        dtype = result.get_dtype()
        inductor.scatter(result, index.get_size(), lambda _p: inductor.ops.constant(neutral, dtype), place, None)
    inductor.scatter(result, index.get_size(), load_source, place, MODES[reduce])
    return view(result, []) if scalar else result


def index_reduce(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *, include_self: bool = True
) -> torch.Tensor:
    """Write an index reduction as the scatter reduction with the index spread over the other dims."""
    if not x.dim():
        flat = index_reduce(x.view(1), 0, index.view(-1), source.view(-1), reduce, include_self=include_self)
        return flat.view(())
    shape = [1] * source.dim()
    shape[dim] = index.shape[0]
    return aten.scatter_reduce(x, dim, index.view(shape).expand_as(source), source, reduce, include_self=include_self)


def scatter_mean(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    """Write a scattered mean as a sum over a count; other reductions have a lowering."""
    if reduce != "mean":
        return NotImplemented
    ones = torch.ones_like(source)
    start = torch.ones_like(x) if include_self else torch.zeros_like(x)
    counts = aten.scatter_add(start, dim, index, ones)
    base = x if include_self else aten.scatter(x, dim, index, 0)
    sums = aten.scatter_add(base, dim, index, source)
    counts = torch.where(counts < 1, torch.ones_like(counts), counts)
    if x.dtype.is_floating_point:
        return sums / counts
    return torch.div(sums, counts, rounding_mode="floor")
