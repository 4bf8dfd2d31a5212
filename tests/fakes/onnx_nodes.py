"""ONNX models of one node, for what is judged node by node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

from ytk_client.inspection import Finding, Inspection

F32, F64, I64, I32, BOOL = (getattr(TensorProto, name) for name in ("FLOAT", "DOUBLE", "INT64", "INT32", "BOOL"))
IMAGE = (1, 4, 8, 8)


def one_node(
    path: Path,
    op: str,
    inputs: Sequence[Any] = (IMAGE,),
    *,
    opset: int = 17,
    domain: str = "",
    outputs: int = 1,
    out_dtype: int = F32,
    metadata: Mapping[str, str] | None = None,
    name: str = "the_node",
    **attributes: Any,
) -> Path:
    """A model of one node. An input is a shape (a float32 graph input), an array (an initialiser), None (absent), or (shape, dtype)."""
    names, graph_inputs, initializers = [], [], []
    for index, given in enumerate(inputs):
        label = f"x{index}"
        if given is None:
            names.append("")
            continue
        names.append(label)
        if isinstance(given, np.ndarray):
            initializers.append(numpy_helper.from_array(given, label))
        else:
            shape, dtype = given if given and isinstance(given[0], tuple) else (given, F32)
            graph_inputs.append(helper.make_tensor_value_info(label, dtype, shape))
    node = helper.make_node(op, names, [f"y{i}" for i in range(outputs)], name=name, domain=domain, **attributes)
    for key, value in (metadata or {}).items():
        node.metadata_props.add(key=key, value=value)
    results = [helper.make_tensor_value_info(f"y{i}", out_dtype, None) for i in range(outputs)]
    graph = helper.make_graph([node], "g", graph_inputs, results, initializer=initializers)
    imports = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    save(helper.make_model(graph, opset_imports=imports), str(path))
    return path


def of_kind(found: Inspection, kind: str) -> list[Finding]:
    return [finding for finding in found.findings if finding.kind == kind]
