"""Small ONNX models with custom nodes, for the tests of Kronos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ytk_core.formats.weights_npz import write_weights

FLOAT = TensorProto.FLOAT


def custom(
    op: str, inputs: Sequence[str], outputs: Sequence[str], name: str, namespace: str = "yasp", **attributes: Any
) -> Any:
    """A placeholder node as ``prepare`` writes it."""
    attributes = {"plugin_namespace": namespace, "plugin_version": "1"} | attributes
    return helper.make_node(op, list(inputs), list(outputs), name=name, domain=namespace, **attributes)


def save(
    path: Path,
    nodes: Sequence[Any],
    inputs: Mapping[str, tuple[int, Sequence[int | str]]],
    outputs: Mapping[str, int],
    weights: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """Write a model; inputs by name to (element type, dims), outputs to element type."""
    graph = helper.make_graph(
        list(nodes),
        "model",
        [helper.make_tensor_value_info(name, kind, list(dims)) for name, (kind, dims) in inputs.items()],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    domains = {node.domain for node in nodes} - {""}
    opsets = [helper.make_opsetid("", 17), *(helper.make_opsetid(domain, 1) for domain in sorted(domains))]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def save_with_npz(
    path: Path, npz: Path, nodes: Sequence[Any], inputs: Any, outputs: Any, weights: Mapping[str, np.ndarray]
) -> None:
    """Write a model whose weights are external data in an npz, as ``prepare`` does."""
    spans = write_weights(npz, weights)
    save(path, nodes, inputs, outputs)
    model = onnx.load(path)
    for name, array in weights.items():
        tensor = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(array.dtype), dims=array.shape)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in {"location": npz.name, "offset": spans[name].offset, "length": spans[name].length}.items():
            tensor.external_data.add(key=key, value=str(value))
        model.graph.initializer.append(tensor)
    path.write_bytes(model.SerializeToString())
