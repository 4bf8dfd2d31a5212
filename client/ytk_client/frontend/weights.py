"""Write ``model.onnx`` and ``model.npz``: weights as external data inside the npz."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from ytk_core.formats.weights_npz import write_weights

INLINE_BYTES = 1024
_INLINE_INTEGER_BYTES = 1 << 20
"""Shapes, axes and indices are integers and engines refuse them as external data; no shape is larger than this."""

_MUST_BE_INLINE: dict[str, frozenset[int]] = {
    "Resize": frozenset({1, 2}),
    "Upsample": frozenset({1}),
    "Pad": frozenset({2}),
}
"""Float inputs that engines read while they parse: scales, regions of interest, pad values."""


def write_model(model: ir.Model, onnx_path: Path, npz_path: Path) -> None:
    """Write the graph and its weights; ``npz_path`` must lie in the directory of ``onnx_path``.

    Initializers above :data:`INLINE_BYTES` go to the npz under their own names, bfloat16 as uint16. What an engine
    needs to see while parsing (integers, scales) stays in the ONNX.

    Raises:
        BoardError: ``disk_full``.
    """
    external = {str(value.name): value for value in model.graph.initializers.values() if _is_external(value)}
    spans = write_weights(npz_path, {name: _array(value) for name, value in external.items()})
    location = npz_path.name
    for name, value in external.items():
        tensor = value.const_value
        assert tensor is not None
        span = spans[name]
        value.const_value = ir.ExternalTensor(
            location,
            span.offset,
            span.length,
            tensor.dtype,
            shape=tensor.shape,
            name=name,
            base_dir=str(npz_path.parent),
        )
    onnx_path.write_bytes(ir.to_proto(model).SerializeToString())


def _is_external(value: ir.Value) -> bool:
    tensor = value.const_value
    if tensor is None or tensor.nbytes <= INLINE_BYTES:
        return False
    if not tensor.dtype.is_floating_point() and tensor.nbytes <= _INLINE_INTEGER_BYTES:
        return False
    return not any(index in _MUST_BE_INLINE.get(node.op_type, ()) for node, index in value.uses())


def _array(value: ir.Value) -> np.ndarray[Any, Any]:
    tensor = value.const_value
    assert tensor is not None
    array: np.ndarray[Any, Any] = tensor.numpy()
    return array
