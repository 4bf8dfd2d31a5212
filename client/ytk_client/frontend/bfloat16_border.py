"""A graph that takes and gives float32 where the original has bfloat16, for an engine whose Python has no such arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx

_KIND = onnx.TensorProto


def as_bfloat16(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Give float32 values that are bfloat16 ones in that type."""
    import ml_dtypes

    return array.astype(ml_dtypes.bfloat16)


def with_float32_border(path: Path) -> tuple[Path, frozenset[str]]:
    """Write the graph with conversions at its border beside the file, if it needs any.

    Returns:
        The file to load, and the names of the inputs and outputs that are float32 in place of bfloat16.
    """
    model = onnx.load(str(path), load_external_data=False)
    graph = model.graph
    inputs = [value for value in graph.input if value.type.tensor_type.elem_type == _KIND.BFLOAT16]
    outputs = [value for value in graph.output if value.type.tensor_type.elem_type == _KIND.BFLOAT16]
    if not inputs and not outputs:
        return path, frozenset()
    taken = {name for node in graph.node for name in (*node.input, *node.output)}
    for value in inputs:
        inner = _free(f"{value.name}_bfloat16", taken)
        for node in graph.node:
            node.input[:] = [inner if name == value.name else name for name in node.input]
        graph.node.insert(0, onnx.helper.make_node("Cast", [value.name], [inner], to=_KIND.BFLOAT16))
    for value in outputs:
        inner = _free(f"{value.name}_bfloat16", taken)
        for node in graph.node:
            node.input[:] = [inner if name == value.name else name for name in node.input]
            node.output[:] = [inner if name == value.name else name for name in node.output]
        graph.node.append(onnx.helper.make_node("Cast", [inner], [value.name], to=_KIND.FLOAT))
    narrow = frozenset(value.name for value in (*inputs, *outputs))
    for value in (*inputs, *outputs):
        value.type.tensor_type.elem_type = _KIND.FLOAT
    # What was noted of inner values is of those names no more.
    kept = [info for info in graph.value_info if info.name not in narrow]
    del graph.value_info[:]
    graph.value_info.extend(kept)
    copy = path.with_name(f"{path.name}.float32.onnx")
    copy.write_bytes(model.SerializeToString())
    return copy, narrow


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name
