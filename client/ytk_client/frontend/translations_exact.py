"""Constants in the type that they are for.

torch's exporter makes every Python number a float32 tensor first, and rounds it again to the type that was asked for: a
float64 model computes with constants of seven digits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnxscript import opset18 as op

Number = bool | int | float
_UNSAID = (None, -1)
"""What stands for a dtype that the call does not name."""


def scalar_tensor(s: Number | ir.Value, dtype: int | None = None, **_placement: Any) -> Any:
    """Translate ``aten.scalar_tensor``: a 0-d tensor of a number, float32 if nothing is said.

    Raises:
        NotImplementedError: The number or the dtype is complex.
    """
    return _in_dtype(s, ir.DataType.FLOAT if dtype in _UNSAID else ir.DataType(dtype))


def full(
    size: Sequence[int | ir.Value], fill_value: Number | ir.Value, dtype: int | None = None, **_placement: Any
) -> Any:
    """Translate ``aten.full``.

    Raises:
        NotImplementedError: The number or the dtype is complex, or neither dtype nor number is known.
    """
    if dtype in _UNSAID:
        if isinstance(fill_value, ir.Value):
            msg = "a computed number in a type that is not named"
            raise NotImplementedError(msg)
        dtype = _dtype_of(fill_value)
    return op.Expand(_in_dtype(fill_value, ir.DataType(dtype)), _extents(size))


def full_like(x: ir.Value, fill_value: Number | ir.Value, dtype: int | None = None, **_placement: Any) -> Any:
    """Translate ``aten.full_like``.

    Raises:
        NotImplementedError: The number or the dtype is complex, or the dtype is known neither here nor of ``x``.
    """
    wanted = x.dtype if dtype in _UNSAID else ir.DataType(dtype)
    if wanted is None:
        msg = "a tensor like one of unknown type"
        raise NotImplementedError(msg)
    return op.Expand(_in_dtype(fill_value, wanted), op.Shape(x))


def new_full(
    x: ir.Value,
    size: Sequence[int | ir.Value],
    fill_value: Number | ir.Value,
    dtype: int | None = None,
    **_placement: Any,
) -> Any:
    """Translate ``aten.new_full``.

    Raises:
        NotImplementedError: As :func:`full_like`.
    """
    wanted = x.dtype if dtype in _UNSAID else ir.DataType(dtype)
    if wanted is None:
        msg = "a tensor like one of unknown type"
        raise NotImplementedError(msg)
    return op.Expand(_in_dtype(fill_value, wanted), _extents(size))


def fill(x: ir.Value, value: Number | ir.Value) -> Any:
    """Translate ``aten.fill.Scalar``.

    Raises:
        NotImplementedError: As :func:`full_like`.
    """
    return full_like(x, value)


def _dtype_of(number: Number) -> ir.DataType:
    if isinstance(number, bool):
        return ir.DataType.BOOL
    return ir.DataType.INT64 if isinstance(number, int) else ir.DataType.FLOAT


def _in_dtype(number: Number | ir.Value, dtype: ir.DataType) -> Any:
    if isinstance(number, ir.Value):
        return op.Cast(number, to=dtype)
    if isinstance(number, complex) or dtype in {ir.DataType.COMPLEX64, ir.DataType.COMPLEX128}:
        msg = "a complex constant"
        raise NotImplementedError(msg)
    return op.Constant(value=ir.tensor(_rounded(number, dtype.numpy())))


def _rounded(number: Number, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Round once, as torch does: a half type from float32, since its constructor takes one."""
    if isinstance(number, float) and dtype.itemsize < np.dtype(np.float32).itemsize:
        return np.array(np.float32(number)).astype(dtype)
    return np.array(number).astype(dtype)


def _extents(size: Sequence[int | ir.Value]) -> Any:
    known = [each for each in size if not isinstance(each, ir.Value)]
    if len(known) == len(size):
        return op.Constant(value=ir.tensor(np.array(known, dtype=np.int64)))
    one = op.Constant(value=ir.tensor(np.array([1], dtype=np.int64)))
    parts = [
        op.Reshape(op.Cast(each, to=ir.DataType.INT64), one)
        if isinstance(each, ir.Value)
        else op.Constant(value=ir.tensor(np.array([each], dtype=np.int64)))
        for each in size
    ]
    return op.Concat(*parts, axis=0)


TRANSLATIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.scalar_tensor.default: scalar_tensor,
    torch.ops.aten.full.default: full,
    torch.ops.aten.full_like.default: full_like,
    torch.ops.aten.new_full.default: new_full,
    torch.ops.aten.fill.Scalar: fill,
}
"""By overload."""
