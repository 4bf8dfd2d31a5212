"""Translations of our own, where torch's exporter has none or a wrong one and ONNX has the words.

Each is called with the ONNX values and Python arguments of the FX node, while torch's exporter records what it builds.
They write opset 18; what a target does not take of it is judged later, as with torch's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch
from onnxscript import opset18 as op

_aten = torch.ops.aten


def _nonzero(x: ir.Value) -> Any:
    """Indices of a number: torch has a row of no columns where ONNX counts it as one axis."""
    if x.shape is not None and len(x.shape) == 0:
        rows = op.Transpose(op.NonZero(op.Reshape(x, op.Constant(value_ints=[1]))), perm=[1, 0])
        return op.Slice(rows, op.Constant(value_ints=[0]), op.Constant(value_ints=[0]), op.Constant(value_ints=[1]))
    return op.Transpose(op.NonZero(x), perm=[1, 0])


def _same(x: ir.Value) -> Any:
    """What torch keeps as a flag on the tensor is computed in ONNX already."""
    return op.Identity(x)


TRANSLATIONS: dict[Any, Callable[..., Any]] = {
    _aten.nonzero.default: _nonzero,
    _aten.resolve_conj.default: _same,
    _aten.resolve_neg.default: _same,
}
"""By overload; they take the place of torch's own."""
COMPLEX_TRANSLATIONS: dict[Any, Callable[..., Any]] = {_aten.resolve_conj.default: _same}
"""For complex inputs, which are values with one more axis of extent 2 here."""
DISTRUSTED = (_aten.special_erfcx.default,)
"""torch's translations that are wrong in a way that a comparison can miss, so that the operator is carved.

``erfcx`` is written as exp(x * x) * erfc(x), which is 0 or NaN for large x while other elements are huge, and what is small
beside the largest element of an output counts as rounding.
"""
