"""Convolution and transposed convolution as one summing reduction, any number of spatial dims, groups and dilation."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from ytk_gaia.generator import inductor_adapter as inductor

aten = torch.ops.aten
ops = inductor.ops

CONVOLUTIONS = frozenset(
    {aten.convolution.default, aten.conv1d.default, aten.conv2d.default, aten.conv2d.padding, aten.conv3d.default}
)
_MAX_TAPS = 64


@dataclass(frozen=True)
class _Geometry:
    """Sizes of one convolution; all tuples are per spatial dim."""

    inputs: tuple[Any, ...]
    kernel: tuple[Any, ...]
    outputs: tuple[Any, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    groups: int
    in_channels_per_group: Any
    out_channels_per_group: Any


def _int64(expression: Any) -> Any:
    return ops.index_expr(expression, torch.int64)


def _at_least_zero(expression: Any) -> Any:
    return ops.ge(_int64(expression), ops.constant(0, torch.int64))


def _below(expression: Any, limit: Any) -> Any:
    return ops.lt(_int64(expression), _int64(sympy.sympify(limit)))


def _source(geometry: _Geometry, d: int, out: Any, tap: Any) -> tuple[Any, list[Any]]:
    """Give the input position along dim ``d`` that output ``out`` reads through ``tap``, and when it exists."""
    stride, padding, dilation = geometry.stride[d], geometry.padding[d], geometry.dilation[d]
    size, taps = geometry.inputs[d], geometry.kernel[d]
    conditions = []
    if geometry.transposed:
        reach = out + padding - tap * dilation
        position = inductor.FloorDiv(reach, stride) if stride != 1 else reach
        if stride != 1:
            # The shift keeps the dividend non-negative, where C's and Python's remainders agree.
            shifted = reach + stride * taps * dilation
            remainder = inductor.ModularIndexing(shifted, 1, stride)
            conditions.append(ops.eq(_int64(remainder), ops.constant(0, torch.int64)))
        conditions += [_at_least_zero(reach), _below(position, size)]
        return position, conditions
    position = out * stride - padding + tap * dilation
    if padding > 0:
        conditions.append(_at_least_zero(position))
    last = (geometry.outputs[d] - 1) * stride - padding + (taps - 1) * dilation
    if (sympy.sympify(last) < size) is not sympy.true:  # symbolic, or not always inside
        conditions.append(_below(position, size))
    return position, conditions


def _geometry(
    x: Any, weight: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: int
) -> _Geometry:
    sizes, weights = list(x.get_size()), list(weight.get_size())
    spatial = len(weights) - 2

    def per_dim(values: Any) -> tuple[int, ...]:
        return tuple(int(v) for v in (list(values) * spatial if len(values) == 1 else values))

    stride, padding, dilation, extra = map(per_dim, (stride, padding, dilation, output_padding))
    inputs, kernel = sizes[-spatial:], weights[2:]
    outputs = []
    for d in range(spatial):
        span = dilation[d] * (kernel[d] - 1)
        if transposed:
            outputs.append((inputs[d] - 1) * stride[d] - 2 * padding[d] + span + extra[d] + 1)
        else:
            outputs.append(inductor.FloorDiv(inputs[d] + 2 * padding[d] - span - 1, stride[d]) + 1)
    return _Geometry(
        inputs=tuple(inputs),
        kernel=tuple(kernel),
        outputs=tuple(outputs),
        stride=stride,
        padding=padding,
        dilation=dilation,
        transposed=transposed,
        groups=groups,
        in_channels_per_group=inductor.FloorDiv(weights[0], groups) if transposed else weights[1],
        out_channels_per_group=weights[1] if transposed else inductor.FloorDiv(weights[0], groups),
    )


def lower_convolution(
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Any:
    """Lower ``aten.convolution``.

    Args:
        x: (N, C, *spatial) or (C, *spatial).
        weight: (OC, C / groups, *kernel); transposed (C, OC / groups, *kernel).
        bias: (OC,) or None.
        stride: One number or one per spatial dim; so ``padding``, ``dilation``, ``output_padding``.
        padding: See stride.
        dilation: See stride.
        transposed: Whether this is the gradient form.
        output_padding: See stride; transposed only.
        groups: Channel groups.
    """
    x.realize()
    weight.realize()
    geometry = _geometry(x, weight, stride, padding, dilation, transposed, output_padding, groups)
    spatial = len(geometry.kernel)
    batched = len(x.get_size()) == spatial + 2
    load_x, load_weight = x.make_loader(), weight.make_loader()
    per_group_in, per_group_out = geometry.in_channels_per_group, geometry.out_channels_per_group

    def body(index: Any, reduced: Any) -> Any:
        n, channel, *out = index if batched else (None, *index)
        in_channel, *taps = reduced
        group = sympy.Integer(0) if groups == 1 else inductor.FloorDiv(channel, per_group_out)
        positions, conditions = [], []
        for d in range(spatial):
            position, needed = _source(geometry, d, out[d], taps[d])
            positions.append(position)
            conditions += needed
        source = [group * per_group_in + in_channel, *positions]
        if batched:
            source.insert(0, n)
        if transposed:
            tap = [group * per_group_in + in_channel, channel - group * per_group_out, *taps]
        else:
            tap = [channel, in_channel, *taps]

        def product() -> Any:
            return ops.mul(load_x(source), load_weight(tap))

        if not conditions:
            return product()
        mask = conditions[0]
        for condition in conditions[1:]:
            mask = ops.logical_and(mask, condition)
        return ops.masked(mask, product, 0.0)

    ranges = _ranges(geometry, x, batched=batched)
    result = inductor.reduction(x.get_device(), x.get_dtype(), ranges, [per_group_in, *geometry.kernel], body)
    return _with_bias(result, bias, geometry)


def _ranges(geometry: _Geometry, x: Any, *, batched: bool) -> list[Any]:
    ranges = [geometry.out_channels_per_group * geometry.groups, *geometry.outputs]
    return [x.get_size()[0], *ranges] if batched else ranges


def _with_bias(result: Any, bias: Any, geometry: _Geometry) -> Any:
    if bias is None:
        return result
    shape = [geometry.out_channels_per_group * geometry.groups, *([1] * len(geometry.kernel))]
    return inductor.lowerings[aten.add.Tensor](result, inductor.lowerings[aten.view.default](bias, shape))


def lower_unrolled(
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Any:
    """Lower a depthwise ``aten.convolution`` as one pointwise expression, a term per tap; others as :func:`lower_convolution`.

    Left unrealised, so that what follows (bias, activation, a residual) becomes part of the same loop; the loop is vectorised
    along the innermost dim, and split where padding ends.
    """
    geometry = _geometry(x, weight, stride, padding, dilation, transposed, output_padding, groups)
    counts = [sympy.sympify(n) for n in (geometry.in_channels_per_group, *geometry.kernel)]
    if transposed or counts[0] != 1 or not all(n.is_Integer for n in counts) or sympy.prod(counts) > _MAX_TAPS:
        arguments = (x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
        return lower_convolution(*arguments)
    x.realize()
    weight.realize()
    load_x, load_weight = x.make_loader(), weight.make_loader()
    batched = len(x.get_size()) == len(geometry.kernel) + 2

    def term(index: Any, taps: tuple[int, ...]) -> Any:
        n, channel, *out = index if batched else (None, *index)
        steps = [_source(geometry, d, out[d], sympy.Integer(tap)) for d, tap in enumerate(taps)]
        source = [inductor.FloorDiv(channel, geometry.out_channels_per_group), *(position for position, _ in steps)]
        if batched:
            source.insert(0, n)
        weight_index = [channel, sympy.Integer(0), *map(sympy.Integer, taps)]
        mask = None
        for condition in (c for _, conditions in steps for c in conditions):
            mask = condition if mask is None else ops.logical_and(mask, condition)

        # The weight stands outside the mask: it always exists, and lanes share it.
        value = load_x(source) if mask is None else ops.masked(mask, lambda: load_x(source), 0.0)
        return ops.mul(value, load_weight(weight_index))

    def body(index: Any) -> Any:
        total = None
        for taps in itertools.product(*(range(int(n)) for n in geometry.kernel)):
            value = term(index, taps)
            total = value if total is None else ops.add(total, value)
        return total

    ranges = _ranges(geometry, x, batched=batched)
    result = inductor.pointwise(x.get_device(), x.get_dtype(), ranges, body, realize=False)
    return _with_bias(result, bias, geometry)


def lower_padded(
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Any:
    """Lower a depthwise ``aten.convolution`` as :func:`lower_unrolled` over a padded copy of its input: no term has a mask.

    With the rows of both fused, the copy is one channel that stays in the cache.
    """
    arguments = (weight, bias, stride, padding, dilation, transposed, output_padding, groups)
    geometry = _geometry(x, weight, stride, padding, dilation, transposed, output_padding, groups)
    if transposed or geometry.in_channels_per_group != 1 or not any(geometry.padding):
        return lower_unrolled(x, *arguments)
    around = [p for amount in reversed(geometry.padding) for p in (amount, amount)]
    padded = inductor.lowerings[aten.constant_pad_nd.default](x, around, 0.0)
    padded.realize()
    return lower_unrolled(padded, weight, bias, stride, [0] * len(geometry.kernel), *arguments[4:])
