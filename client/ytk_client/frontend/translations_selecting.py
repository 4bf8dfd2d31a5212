"""Translations of operators whose results are as long as the data says: what is not zero, what a mask takes, what differs.

All of them end in ``NonZero`` of a float32 and ``Gather``, which every target has that has results of such shapes at all;
``Compress`` and ``Unique`` are missing in TensorRT, and their kernels know few types elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnxscript import opset18 as op

_aten = torch.ops.aten
_COMPARED_IN = {ir.DataType.BOOL: ir.DataType.INT32, ir.DataType.BFLOAT16: ir.DataType.FLOAT}
"""Types without an order or a kernel in engines, and the one that holds all their values in the same order."""
_EXACT_FLOAT32 = 2**24
_LAST = np.iinfo(np.int64).max


def nonzero(x: ir.Value) -> Any:
    """Translate ``aten.nonzero``: int64 [count, rank of ``x``]."""
    marks = _marks(x)
    if x.shape is not None and len(x.shape) == 0:
        # torch has a row of no columns where ONNX counts a number as one axis.
        rows = op.Transpose(op.NonZero(op.Reshape(marks, _int64(1))), perm=[1, 0])
        return op.Slice(rows, _int64(0), _int64(0), _int64(1))
    return op.Transpose(op.NonZero(marks), perm=[1, 0])


def masked_select(x: ir.Value, mask: ir.Value) -> Any:
    """Translate ``aten.masked_select``: one row of what is chosen.

    Raises:
        NotImplementedError: An extent is not static.
    """
    shape = np.broadcast_shapes(_extents(x), _extents(mask))
    wide = mask if _extents(mask) == shape else op.Expand(mask, _int64(*shape))
    places = _places(op.Reshape(_marks(wide, mask.dtype), _int64(-1)))
    if _extents(x) != shape:
        # Numbers are repeated, not elements: not every element type has a kernel for it.
        own = np.arange(int(np.prod(_extents(x))), dtype=np.int64).reshape(_extents(x))
        origin = op.Expand(op.Constant(value=ir.tensor(own)), _int64(*shape))
        places = op.Gather(op.Reshape(origin, _int64(-1)), places, axis=0)
    return op.Gather(op.Reshape(x, _int64(-1)), places, axis=0)


def unique_consecutive(
    x: ir.Value, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """Translate ``aten.unique_consecutive``: the first of each run, the run of each element, the lengths of the runs.

    Raises:
        NotImplementedError: Along an axis, of nothing, or an extent is not static.
    """
    count = _count(x)
    if dim is not None:
        msg = "runs along an axis"
        raise NotImplementedError(msg)
    flat = op.Reshape(x, _int64(-1))
    compared = _COMPARED_IN.get(x.dtype) if x.dtype is not None else None
    starts = _starts(op.Cast(flat, to=compared) if compared is not None else flat, count)
    runs = op.Reshape(_run_numbers(starts, count), _int64(*_extents(x))) if return_inverse else _int64()
    places = _places(starts)
    return op.Gather(flat, places, axis=0), runs, _lengths(places, count) if return_counts else _int64()


def unique(x: ir.Value, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False) -> Any:  # noqa: A002, ARG001 - torch's name; it sorts always
    """Translate ``aten._unique2``: each value once in ascending order, NaN last and each NaN for itself.

    Raises:
        NotImplementedError: Of nothing, or an extent is not static.
    """
    count = _count(x)
    flat = op.Reshape(x, _int64(-1))
    compared = _COMPARED_IN.get(x.dtype) if x.dtype is not None else None
    keys = op.Cast(flat, to=compared) if compared is not None else flat
    kind = compared or x.dtype
    if kind is None:
        msg = "the order of an unknown type"
        raise NotImplementedError(msg)
    if kind.is_floating_point():
        values, order, starts = _sorted_floats(keys, kind, count)
    else:
        values, order = op.TopK(keys, _int64(count), axis=0, largest=0, sorted=1)
        starts = _starts(values, count)
    places = _places(starts)
    found = op.Gather(values, places, axis=0)
    found = op.Cast(found, to=x.dtype) if compared is not None else found
    inverse: Any = _int64()
    if return_inverse:
        scattered = op.ScatterElements(_int64(*([0] * count)), order, _run_numbers(starts, count), axis=0)
        inverse = op.Reshape(scattered, _int64(*_extents(x)))
    return found, inverse, _lengths(places, count) if return_counts else _int64()


def _sorted_floats(keys: Any, kind: ir.DataType, count: int) -> tuple[Any, Any, Any]:
    """Sort with NaN at the end, which has no place in ONNX's order: (values, their places before, starts of runs)."""
    infinite = op.Constant(value=ir.tensor(np.array(np.inf, dtype=kind.numpy())))
    is_nan = op.Not(op.Equal(keys, keys))
    # NaN goes behind infinity, beside which it is sorted as one: first of all by place, among equals the earlier first.
    behind = op.Cast(is_nan, to=ir.DataType.FLOAT)
    marks, first = op.TopK(behind, _int64(count), axis=0, largest=0, sorted=1)
    ordered = op.Gather(op.Where(is_nan, infinite, keys), first, axis=0)
    values, second = op.TopK(ordered, _int64(count), axis=0, largest=0, sorted=1)
    # The marks ascend, and so do the values that NaN stands among as the greatest: one is where the other is.
    nan_at = op.Greater(marks, op.Constant(value=ir.tensor(np.array(0.5, dtype=np.float32))))
    not_a_number = op.Constant(value=ir.tensor(np.array(np.nan, dtype=kind.numpy())))
    starts = op.Max(_starts(values, count), marks)
    return op.Where(nan_at, not_a_number, values), op.Gather(first, second, axis=0), starts


def _starts(flat: Any, count: int) -> Any:
    """Mark with 1 where a run of equal elements begins: float32 [count]."""
    first = op.Constant(value=ir.tensor(np.array([1], dtype=np.float32)))
    if count == 1:
        return first
    after, before = (
        op.Slice(flat, _int64(1), _int64(_LAST), _int64(0)),
        op.Slice(flat, _int64(0), _int64(-1), _int64(0)),
    )
    return op.Concat(first, op.Cast(op.Not(op.Equal(after, before)), to=ir.DataType.FLOAT), axis=0)


def _run_numbers(starts: Any, count: int) -> Any:
    """Give the number of the run that each element is in: int64 [count]."""
    if count > _EXACT_FLOAT32:
        starts = op.Cast(starts, to=ir.DataType.INT64)
    numbers = op.CumSum(starts, op.Constant(value=ir.tensor(np.array(0, dtype=np.int64))))
    return op.Sub(op.Cast(numbers, to=ir.DataType.INT64), _int64(1))


def _lengths(places: Any, count: int) -> Any:
    """Give the lengths of runs from the places where they begin."""
    following = op.Concat(op.Slice(places, _int64(1), _int64(_LAST), _int64(0)), _int64(count), axis=0)
    return op.Sub(following, places)


def _places(marks: Any) -> Any:
    """Give the places of what is not zero in a row: int64 [found]."""
    return op.Reshape(op.NonZero(marks), _int64(-1))


def _marks(x: ir.Value, dtype: ir.DataType | None = None) -> Any:
    """Give a float of the shape of ``x`` that is zero where ``x`` is."""
    dtype = dtype or x.dtype
    if dtype in {ir.DataType.FLOAT, ir.DataType.FLOAT16}:
        return x
    if dtype is None or dtype is ir.DataType.DOUBLE:
        # Smaller ones than float32 has are not zero.
        return op.Cast(op.Cast(x, to=ir.DataType.BOOL), to=ir.DataType.FLOAT)
    return op.Cast(x, to=ir.DataType.FLOAT)


def _count(x: ir.Value) -> int:
    count = int(np.prod(_extents(x), dtype=np.int64))
    if count == 0:
        msg = "runs of nothing"
        raise NotImplementedError(msg)
    return count


def _extents(x: ir.Value) -> tuple[int, ...]:
    if x.shape is None or not all(isinstance(extent, int) for extent in x.shape):
        msg = f"the shape {x.shape} is not static"
        raise NotImplementedError(msg)
    return tuple(int(extent) for extent in x.shape)


def _int64(*values: int) -> Any:
    return op.Constant(value=ir.tensor(np.array(values, dtype=np.int64)))


TRANSLATIONS: dict[Any, Callable[..., Any]] = {
    _aten.nonzero.default: nonzero,
    _aten.masked_select.default: masked_select,
    _aten.unique_consecutive.default: unique_consecutive,
    _aten._unique2.default: unique,  # noqa: SLF001 - an operator name
}
"""By overload."""
