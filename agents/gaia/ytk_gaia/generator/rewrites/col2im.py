"""Fold (col2im) as a gather: every output pixel sums the columns that cover it.

The general form scatters columns into pixels, which needs an order or atomics and cannot run in parallel. Seen from the
pixel, at most ``ceil(kernel / stride)`` columns per dim cover it, all reads, no order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ytk_gaia.generator import inductor_adapter as inductor
from ytk_gaia.generator.lowering import LoweringPlan, static_int

aten = torch.ops.aten
ops = inductor.ops

_UNROLL_LIMIT = 32
"""Terms printed one by one; above that the sum is a loop."""


@dataclass(frozen=True)
class _Axis:
    """One spatial dim of the fold; ``columns``: how many column positions there are along it."""

    size: int
    kernel: int
    dilation: int
    padding: int
    stride: int

    @property
    def columns(self) -> int:
        return (self.size + 2 * self.padding - self.dilation * (self.kernel - 1) - 1) // self.stride + 1

    @property
    def by_column(self) -> bool:
        """Whether to walk over covering columns, not over taps: fewer terms where columns are further apart than one."""
        return self.stride > 1 and self.dilation == 1

    @property
    def terms(self) -> int:
        return -(-self.kernel // self.stride) if self.by_column else self.kernel

    def term(self, pixel: Any, step: Any) -> tuple[Any, Any, list[Any]]:
        """Give tap, column and conditions of one term of the sum at ``pixel``."""
        padded = pixel + self.padding
        if self.by_column:
            column = inductor.FloorDiv(padded, self.stride) - step
            tap = padded - column * self.stride
            return tap, column, [_within(tap, self.kernel, lower=False), _within(column, self.columns)]
        tap, reach = step, padded - step * self.dilation
        if self.stride == 1:
            return tap, reach, [_within(reach, self.columns)]
        column = inductor.FloorDiv(reach, self.stride)
        # Shifted so that the dividend is never negative.
        shifted = reach + self.stride * self.kernel * self.dilation
        divides = ops.eq(_int64(inductor.ModularIndexing(shifted, 1, self.stride)), ops.constant(0, torch.int64))
        return tap, column, [divides, _within(column, self.columns)]


def _int64(expression: Any) -> Any:
    return ops.index_expr(expression, torch.int64)


def _within(expression: Any, limit: int, *, lower: bool = True) -> Any:
    below = ops.lt(_int64(expression), ops.constant(limit, torch.int64))
    if not lower:
        return below
    return ops.logical_and(ops.ge(_int64(expression), ops.constant(0, torch.int64)), below)


def lower_col2im(x: Any, output_size: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    """Lower ``aten.col2im`` as a gather.

    Args:
        x: (N, C * KH * KW, columns) or without N.
        output_size: (H, W).
        kernel_size: (KH, KW).
        dilation: Per dim.
        padding: Per dim.
        stride: Per dim.

    Returns:
        (N, C, H, W), or without N.
    """
    x.realize()
    load = x.make_loader()
    sizes = [static_int(n) for n in x.get_size()]
    batched = len(sizes) == 3
    height, width = (
        _Axis(*(int(values[d]) for values in (output_size, kernel_size, dilation, padding, stride))) for d in (0, 1)
    )
    taps = height.kernel * width.kernel
    channels = sizes[-2] // taps
    ranges = [channels, height.size, width.size]
    if batched:
        ranges.insert(0, sizes[0])

    def term(index: Any, step_h: Any, step_w: Any) -> Any:
        *batch, channel, h, w = index
        tap_h, column_h, conditions = height.term(h, step_h)
        tap_w, column_w, more = width.term(w, step_w)
        mask = None
        for condition in (*conditions, *more):
            mask = condition if mask is None else ops.logical_and(mask, condition)
        row = channel * taps + tap_h * width.kernel + tap_w
        return ops.masked(mask, lambda: load([*batch, row, column_h * width.columns + column_w]), 0.0)

    def unrolled(index: Any) -> Any:
        total = None
        for step_h in range(height.terms):
            for step_w in range(width.terms):
                value = term(index, step_h, step_w)
                total = value if total is None else ops.add(total, value)
        return total

    if height.terms * width.terms <= _UNROLL_LIMIT:
        return inductor.pointwise(x.get_device(), x.get_dtype(), ranges, unrolled)

    def looped(index: Any, reduced: Any) -> Any:
        return term(index, *reduced)

    return inductor.reduction(x.get_device(), x.get_dtype(), ranges, [height.terms, width.terms], looped)


PLAN = LoweringPlan(
    name="gather",
    strategy="rewrites",
    keep=(aten.col2im.default,),
    lowerings={aten.col2im.default: lower_col2im},
)
