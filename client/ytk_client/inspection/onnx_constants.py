"""Which values of a graph are constants, and the values of the small ones.

A parser folds what it can before it looks at a node ("axes must be constant"), so shape arithmetic on known extents counts too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_MAX_ELEMENTS = 64
"""Axes, sizes and pads are short; of weights only that they are constant matters."""
_NUMERIC = {1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 16}


class Constants:
    """Collects constants in the order of the graph."""

    def __init__(self, opset: int) -> None:
        self._opset = opset
        self._arrays: dict[str, np.ndarray[Any, Any] | None] = {}
        """None: constant, but of no interest or not read."""

    def __contains__(self, name: str) -> bool:
        """Whether a tensor is constant."""
        return name in self._arrays

    def array(self, name: str) -> np.ndarray[Any, Any] | None:
        """Give a small constant's value; None for a large one, or none at all."""
        return self._arrays.get(name)

    def values(self, name: str) -> list[Any]:
        """Give the elements of a small constant in a flat list; empty for a large one."""
        array = self._arrays.get(name)
        return [] if array is None else list(array.ravel().tolist())

    def add_unread(self, name: str) -> None:
        """Note a constant whose value is in another file."""
        self._arrays[name] = None

    def add_initializer(self, tensor: Any) -> None:
        """Note an initialiser with its data."""
        self._arrays[tensor.name] = small_array(tensor)

    def add_node(self, node: Any, input_dims: Mapping[str, Sequence[int | str | None] | None]) -> None:
        """Note the outputs of a node whose inputs are constants, with values where these are simple to compute."""
        if node.domain not in {"", "ai.onnx"} or not node.output:
            return
        if node.op_type == "Constant":
            self._arrays[node.output[0]] = _constant(node)
            return
        if node.op_type == "Shape" and not node.attribute:
            dims = input_dims.get(node.input[0])
            if dims is not None and all(isinstance(dim, int) for dim in dims):
                self._arrays[node.output[0]] = np.array(dims, np.int64)
            return
        names = [name for name in node.input if name]
        if names and all(name in self._arrays for name in names):
            value = self._fold(node)
            if value is not None:
                self._arrays[node.output[0]] = value

    def _fold(self, node: Any) -> np.ndarray[Any, Any] | None:
        arrays = [self._arrays.get(name) for name in node.input if name]
        if any(array is None for array in arrays):
            return None
        found = [array for array in arrays if array is not None]
        attributes = {attribute.name: attribute for attribute in node.attribute}
        try:
            value = _folded(node.op_type, found, attributes)
        except (ValueError, IndexError, TypeError, ZeroDivisionError, OverflowError):
            return None  # a broken graph; the checker names the place
        return value if value is not None and value.size <= _MAX_ELEMENTS else None


def small_array(tensor: Any) -> np.ndarray[Any, Any] | None:
    """Give the value of a small TensorProto with inline data, bfloat16 as float32; None for any other."""
    from onnx import numpy_helper

    if tensor.data_type not in _NUMERIC or math.prod(tensor.dims) > _MAX_ELEMENTS:
        return None
    try:
        array: np.ndarray[Any, Any] = numpy_helper.to_array(tensor)
    except (ValueError, TypeError):
        return None  # its data is shorter than its shape; the checker says so
    return array.astype(np.float32) if array.dtype.kind == "V" or array.dtype.name == "bfloat16" else array


def _constant(node: Any) -> np.ndarray[Any, Any] | None:
    if not node.attribute:
        return None
    attribute = node.attribute[0]
    match attribute.name:
        case "value":
            return small_array(attribute.t)
        case "value_int":
            return np.array(attribute.i, np.int64)
        case "value_ints":
            return np.array(attribute.ints, np.int64) if len(attribute.ints) <= _MAX_ELEMENTS else None
        case "value_float":
            return np.array(attribute.f, np.float32)
        case "value_floats":
            return np.array(attribute.floats, np.float32) if len(attribute.floats) <= _MAX_ELEMENTS else None
    return None


def _folded(op: str, arrays: list[np.ndarray[Any, Any]], attributes: Mapping[str, Any]) -> np.ndarray[Any, Any] | None:
    """Compute what shape arithmetic is made of; None for anything else."""
    first = arrays[0]
    match op:
        case "Identity":
            return first
        case "Neg":
            return -first
        case "Concat":
            return np.concatenate(arrays, axis=attributes["axis"].i if "axis" in attributes else 0)
        case "Reshape":
            return first.reshape([int(extent) for extent in arrays[1]])
        case "Gather":
            return np.take(first, arrays[1], axis=attributes["axis"].i if "axis" in attributes else 0)
        case "Cast":
            kinds = {1: np.float32, 6: np.int32, 7: np.int64, 9: np.bool_, 11: np.float64}
            kind = kinds.get(attributes["to"].i if "to" in attributes else 0)
            return None if kind is None else first.astype(kind)
        case "Unsqueeze" | "Squeeze":
            given = attributes["axes"].ints if "axes" in attributes else arrays[1] if len(arrays) > 1 else ()
            axes = tuple(int(axis) for axis in given)
            return np.expand_dims(first, axes) if op == "Unsqueeze" else np.squeeze(first, axes or None)
        case "Add" | "Sub" | "Mul":
            with np.errstate(over="ignore"):
                return np.asarray({"Add": np.add, "Sub": np.subtract, "Mul": np.multiply}[op](first, arrays[1]))
        case "Div" if first.dtype.kind in "iu" and (first >= 0).all() and (arrays[1] > 0).all():
            return np.asarray(first // arrays[1])  # ONNX truncates, numpy floors: the same for these
    return None
