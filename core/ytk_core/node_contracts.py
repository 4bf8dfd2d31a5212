"""Placeholder nodes of a graph as contracts: what the graph says about a plugin's tensors and attributes."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ytk_core.dtypes import FROM_ONNX_NUMBER, DType
from ytk_core.errors import FormatError, NotAvailableError

STANDARD_DOMAINS = frozenset(
    {"", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training", "com.microsoft"}
)


class TensorContract(NamedTuple):
    """What the graph says about one tensor; None where it does not say. None in ``dims`` is a dynamic extent."""

    dtype: DType | None
    rank: int | None
    dims: tuple[int | None, ...] | None


UNNAMED_DOMAIN = "ytk.unnamed"
"""Domain of nodes for plugins of the empty namespace: the empty domain is that of the standard operators."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class NodeContract:
    """One placeholder node of a graph."""

    namespace: str
    name: str
    version: str
    node_name: str
    inputs: tuple[TensorContract, ...]
    outputs: tuple[TensorContract, ...]
    attributes: dict[str, Any]

    @property
    def identity(self) -> tuple[str, str, str]:
        """Namespace, name, version: what engines look a plugin up by."""
        return self.namespace, self.name, self.version


def node_contracts_from_onnx(path: Path | str) -> list[NodeContract]:
    """Read the placeholder nodes of a model, subgraphs included; weights are not read.

    Raises:
        FormatError: The file is no ONNX model.
        NotAvailableError: The onnx package is not installed.
    """
    try:
        import onnx
    except ImportError as err:
        msg = "the onnx package is not installed"
        raise NotAvailableError(msg, hint="pip install 'yasp-toolkit[torch]'") from err
    try:
        model = onnx.load(str(path), load_external_data=False)
    except FileNotFoundError as err:
        msg = f"{path}: no such file (an ONNX model is expected here)"
        raise FormatError(
            msg, code="no_such_file", hint="Check the path, or run `ytk embedded prepare` first."
        ) from err
    except Exception as err:  # protobuf's DecodeError has no public common base with onnx's own
        msg = f"{path}: no ONNX model, or truncated ({err})"
        raise FormatError(msg, code="bad_onnx", hint="Make it again with `ytk embedded prepare`.") from err
    if not model.graph.node and not model.graph.output:
        msg = f"{path}: no ONNX model (it has no graph)"
        raise FormatError(msg, code="bad_onnx", hint="Make it again with `ytk embedded prepare`.")
    local = {(function.domain, function.name) for function in model.functions}
    # Inference only adds knowledge; what it cannot say stays None.
    with contextlib.suppress(Exception):
        model = onnx.shape_inference.infer_shapes(model)
    return list(_graph_contracts(model.graph, {}, local))


def _graph_contracts(
    graph: Any, outer: Mapping[str, TensorContract], local: set[tuple[str, str]]
) -> Iterator[NodeContract]:
    tensors = dict(outer)
    for info in (*graph.input, *graph.value_info, *graph.output):
        tensors[info.name] = _from_type(info.type)
    for weight in graph.initializer:
        dims = tuple(weight.dims)
        tensors[weight.name] = TensorContract(FROM_ONNX_NUMBER.get(weight.data_type), len(dims), dims)
    unknown = TensorContract(None, None, None)
    for node in graph.node:
        for attribute in node.attribute:
            for subgraph in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
                yield from _graph_contracts(subgraph, tensors, local)
        if node.domain in STANDARD_DOMAINS or (node.domain, node.op_type) in local:
            continue
        attributes = {attribute.name: _attribute_value(attribute) for attribute in node.attribute}
        yield NodeContract(
            namespace="" if node.domain == UNNAMED_DOMAIN else node.domain,
            name=node.op_type,
            version=str(attributes.get("plugin_version", "1")),
            node_name=node.name,
            inputs=tuple(tensors.get(name, unknown) for name in node.input),
            outputs=tuple(tensors.get(name, unknown) for name in node.output),
            attributes=attributes,
        )


def _from_type(kind: Any) -> TensorContract:
    tensor = kind.tensor_type
    dtype = FROM_ONNX_NUMBER.get(tensor.elem_type)
    if not tensor.HasField("shape"):
        return TensorContract(dtype, None, None)
    dims = tuple(int(dim.dim_value) if dim.HasField("dim_value") else None for dim in tensor.shape.dim)
    return TensorContract(dtype, len(dims), dims)


def _attribute_value(attribute: Any) -> Any:
    import onnx

    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if hasattr(value, "__len__") and not isinstance(value, str) and not hasattr(value, "DESCRIPTOR"):
        return [item.decode("utf-8", "replace") if isinstance(item, bytes) else item for item in value]
    return value
