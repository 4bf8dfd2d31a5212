"""Translations of our own, where torch's exporter has none or a wrong one and ONNX has the words.

Each is called with the ONNX values and Python arguments of the FX node, while torch's exporter records what it builds.
They write what opset 17 has already, so that no target refuses it for its age. A translation that meets what it has no
words for raises; the operator is carved then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnxscript import opset18 as op

from ytk_client.frontend import translations_exact, translations_selecting

_aten = torch.ops.aten


def _int64(*values: int) -> Any:
    return op.Constant(value=ir.tensor(np.array(values, dtype=np.int64)))


def _extents(x: ir.Value) -> list[int]:
    if x.shape is None or not all(isinstance(extent, int) for extent in x.shape):
        msg = f"the shape {x.shape} is not static"
        raise NotImplementedError(msg)
    return [int(extent) for extent in x.shape]


def _is_float(x: ir.Value) -> bool:
    return x.dtype is not None and x.dtype.is_floating_point()


def _same(x: ir.Value) -> Any:
    """What torch keeps as a flag on the tensor is computed in ONNX already."""
    return op.Identity(x)


def _conjugate(x: ir.Value) -> Any:
    """A complex value is a real one with a last axis (real, imaginary)."""
    dtype = np.float32 if x.dtype is None else x.dtype.numpy()
    return op.Mul(x, op.Constant(value=ir.tensor(np.array([1, -1], dtype=dtype))))


def _fmax(x: ir.Value, other: ir.Value) -> Any:
    """The greater one, or the one that is a number."""
    return _without_nan(x, other, op.Max)


def _fmin(x: ir.Value, other: ir.Value) -> Any:
    """The smaller one, or the one that is a number."""
    return _without_nan(x, other, op.Min)


def _without_nan(x: ir.Value, other: ir.Value, choose: Callable[..., Any]) -> Any:
    if not _is_float(x):
        return choose(x, other)
    return op.Where(op.IsNaN(x), other, op.Where(op.IsNaN(other), x, choose(x, other)))


def _searchsorted(
    sequence: ir.Value,
    values: ir.Value,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: ir.Value | None = None,
) -> Any:
    """The place of a value is the number of elements before it."""
    if sorter is not None or isinstance(values, (int, float)):
        msg = "a sorter, or a number to search for"
        raise NotImplementedError(msg)
    shared = len(_extents(sequence)) == 1
    table = sequence if shared else op.Unsqueeze(sequence, _int64(-2))
    wanted = op.Unsqueeze(values, _int64(-1))
    before = op.Not(op.Greater(table, wanted)) if right or side == "right" else op.Less(table, wanted)
    kind = ir.DataType.INT32 if out_int32 else ir.DataType.INT64
    return op.ReduceSum(op.Cast(before, to=kind), _int64(-1), keepdims=0)


def _bucketize(values: ir.Value, boundaries: ir.Value, *, out_int32: bool = False, right: bool = False) -> Any:
    return _searchsorted(boundaries, values, out_int32=out_int32, right=right)


def _kthvalue(x: ir.Value, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """The last of the k smallest."""
    if not _extents(x):
        return op.Identity(x), op.Constant(value=ir.tensor(np.array(0, dtype=np.int64)))
    values, places = op.TopK(x, _int64(k), axis=dim, largest=0, sorted=1)
    last = [op.Gather(each, _int64(k - 1), axis=dim) for each in (values, places)]
    return tuple(last) if keepdim else tuple(op.Squeeze(each, _int64(dim)) for each in last)


def _median_dim(x: ir.Value, dim: int, keepdim: bool = False) -> Any:
    """The lower one of the two in the middle; integers only, since NaN has no place in ONNX's order."""
    extents = _extents(x)
    if _is_float(x):
        msg = "a float that may be NaN has no place in an order"
        raise NotImplementedError(msg)
    return _kthvalue(x, (extents[dim] + 1) // 2 if extents else 1, dim, keepdim)


def _median(x: ir.Value) -> Any:
    """The lower one of the two in the middle, NaN if there is one."""
    count = int(np.prod(_extents(x), dtype=np.int64))
    flat = op.Reshape(x, _int64(-1))
    values, _ = op.TopK(flat, _int64((count + 1) // 2), axis=0, largest=0, sorted=1)
    middle = op.Gather(values, op.Constant(value=ir.tensor(np.array((count - 1) // 2, dtype=np.int64))), axis=0)
    if not _is_float(x):
        return middle
    spoilt = op.ReduceMax(op.Cast(op.IsNaN(flat), to=ir.DataType.INT32), keepdims=0)
    return op.Where(op.Cast(spoilt, to=ir.DataType.BOOL), op.ReduceSum(flat, keepdims=0), middle)


def _adaptive_avg_pool3d(x: ir.Value, output_size: Sequence[int]) -> Any:
    """A mean over windows is separable: one product with a matrix of window weights per axis."""
    extents = _extents(x)
    rank = len(extents)
    for axis, size in zip(range(rank - 3, rank), output_size, strict=True):
        extent = extents[axis]
        weights = np.zeros((extent, size), dtype=np.float32 if x.dtype is None else x.dtype.numpy())
        for index in range(size):
            start, end = index * extent // size, -(-(index + 1) * extent // size)
            weights[start:end, index] = 1 / (end - start)
        order = [each for each in range(rank) if each != axis] + [axis]
        moved = op.MatMul(op.Transpose(x, perm=order), op.Constant(value=ir.tensor(weights)))
        x = op.Transpose(moved, perm=[order.index(each) for each in range(rank)])
    return x


def _squeeze_dims(x: ir.Value, dims: Sequence[int]) -> Any:
    """Axes longer than 1 stay, which ONNX takes for an error."""
    extents = _extents(x)
    axes = sorted({dim % len(extents) for dim in dims if extents and extents[dim] == 1})
    return op.Squeeze(x, _int64(*axes)) if axes else op.Identity(x)


def _pad(x: ir.Value, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Any:
    """Every mode, and negative widths, which cut."""
    rank = len(_extents(x))
    before, after = [0] * rank, [0] * rank
    for index in range(len(pad) // 2):
        before[rank - 1 - index], after[rank - 1 - index] = int(pad[2 * index]), int(pad[2 * index + 1])
    padded = _widened(x, [max(width, 0) for width in before], [max(width, 0) for width in after], mode, value)
    # Cutting comes last: the values that are repeated or mirrored are those of the whole input.
    for axis in range(rank):
        if before[axis] < 0 or after[axis] < 0:
            end = int(after[axis] if after[axis] < 0 else np.iinfo(np.int64).max)
            padded = op.Slice(padded, _int64(max(-before[axis], 0)), _int64(end), _int64(axis))
    return padded


def _widened(x: ir.Value, before: Sequence[int], after: Sequence[int], mode: str, value: float | None) -> Any:
    if mode == "circular":
        return _pad_circular(x, before, after)
    if not any((*before, *after)):
        return op.Identity(x)
    widths = _int64(*before, *after)
    if mode == "constant":
        dtype = np.float32 if x.dtype is None else x.dtype.numpy()
        return op.Pad(x, widths, op.Constant(value=ir.tensor(np.array(value or 0, dtype=dtype))), mode="constant")
    return op.Pad(x, widths, mode={"reflect": "reflect", "replicate": "edge"}[mode])


def _pad_circular(x: ir.Value, before: Sequence[int], after: Sequence[int]) -> Any:
    for axis, (left, right) in enumerate(zip(before, after, strict=True)):
        parts = [x]
        if left:
            parts.insert(0, op.Slice(x, _int64(-left), _int64(np.iinfo(np.int64).max), _int64(axis)))
        if right:
            parts.append(op.Slice(x, _int64(0), _int64(right), _int64(axis)))
        x = op.Concat(*parts, axis=axis) if len(parts) > 1 else x
    return op.Identity(x)


def _constant_pad(x: ir.Value, pad: Sequence[int], value: float = 0) -> Any:
    return _pad(x, pad, "constant", value)


def _extreme(reduce: Callable[..., Any]) -> Callable[..., Any]:
    def translate(x: ir.Value, dim: Sequence[int] | int = (), keepdim: bool = False) -> Any:
        if x.dtype is None or x.dtype is ir.DataType.BOOL:
            msg = "no order among truth values"
            raise NotImplementedError(msg)
        if not _extents(x):
            return op.Identity(x)
        axes = [dim] if isinstance(dim, int) else list(dim)
        given = [_int64(*axes)] if axes else []
        return reduce(x, *given, keepdims=int(keepdim))

    return translate


def _hypot(x: ir.Value, other: ir.Value) -> Any:
    """The greater one is taken out, so that no square overflows."""
    a, b = op.Abs(x), op.Abs(other)
    big, small = op.Max(a, b), op.Min(a, b)
    none = op.Equal(big, op.Sub(big, big))
    ratio = op.Where(none, small, op.Div(small, big))
    return op.Mul(big, op.Sqrt(op.Add(op.Mul(ratio, ratio), op.CastLike(_number(1.0), big))))


def _number(value: float) -> Any:
    return op.Constant(value=ir.tensor(np.array(value, dtype=np.float32)))


def _complex_pad(x: ir.Value, pad: Sequence[int], value: float = 0) -> Any:
    if value:
        msg = "a pad value that is not 0 beside complex numbers"
        raise NotImplementedError(msg)
    return _pad(x, [0, 0, *pad])


def _in_type(normalise: Callable[..., Any]) -> Callable[..., Any]:
    """Convert first, as torch does: the sum of exponentials is rounded as the asked-for type rounds."""

    def translate(x: ir.Value, dim: int, dtype: int = -1) -> Any:
        rank = len(_extents(x))
        given = op.Cast(x, to=dtype) if dtype not in {None, -1} else x
        if rank:
            return normalise(given, axis=dim)
        return op.Squeeze(normalise(op.Unsqueeze(given, _int64(0)), axis=0), _int64(0))

    return translate


TRANSLATIONS: dict[Any, Callable[..., Any]] = {
    **translations_exact.TRANSLATIONS,
    **translations_selecting.TRANSLATIONS,
    _aten.resolve_conj.default: _same,
    _aten.resolve_neg.default: _same,
    _aten.fmax.default: _fmax,
    _aten.fmin.default: _fmin,
    _aten.searchsorted.Tensor: _searchsorted,
    _aten.bucketize.Tensor: _bucketize,
    _aten.kthvalue.default: _kthvalue,
    _aten.median.default: _median,
    _aten.median.dim: _median_dim,
    _aten._adaptive_avg_pool3d.default: _adaptive_avg_pool3d,  # noqa: SLF001 - an operator name
    _aten.squeeze.dims: _squeeze_dims,
    _aten.pad.default: _pad,
    _aten.constant_pad_nd.default: _constant_pad,
    _aten.amax.default: _extreme(op.ReduceMax),
    _aten.amin.default: _extreme(op.ReduceMin),
    _aten.hypot.default: _hypot,
    _aten.softmax.int: _in_type(op.Softmax),
    _aten.log_softmax.int: _in_type(op.LogSoftmax),
}
"""By overload; they take the place of torch's own."""
COMPLEX_TRANSLATIONS: dict[Any, Callable[..., Any]] = {
    _aten.resolve_conj.default: _same,
    _aten._conj_physical.default: _conjugate,  # noqa: SLF001 - an operator name
    _aten.constant_pad_nd.default: _complex_pad,
}
"""For complex inputs, which are values with one more axis of extent 2 here."""
DISTRUSTED = (_aten.special_erfcx.default,)
"""torch's translations that are wrong in a way that a comparison can miss, so that the operator is carved.

``erfcx`` is written as exp(x * x) * erfc(x), which is 0 or NaN for large x while other elements are huge, and what is small
beside the largest element of an output counts as rounding.
"""
