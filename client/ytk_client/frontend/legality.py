"""Hold an ONNX graph against what the target accepts, node by node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from ytk_core.dtypes import FROM_ONNX_NUMBER

if TYPE_CHECKING:
    from ytk_core.targets import NodeFacts, TargetProfile, Verdict

STANDARD_DOMAINS = frozenset({"", "ai.onnx"})
_MAX_CONSTANT_ELEMENTS = 64
"""Axes, sizes and pads are short; of weights only that they are constant matters, so their value is given as []."""


@dataclass(frozen=True)
class IllegalNode:
    """A node that the target does not take, with the profile's verdict."""

    node: ir.Node
    verdict: Verdict


def standard_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Give every node of the standard domain, subgraphs included."""
    return (node for node in ir.traversal.RecursiveGraphIterator(model.graph) if node.domain in STANDARD_DOMAINS)


def illegal_nodes(model: ir.Model, profile: TargetProfile) -> list[IllegalNode]:
    """List every standard-domain node that the profile refuses, in graph order."""
    opset = model.opset_imports.get("", profile.opset)
    found = []
    for node in standard_nodes(model):
        verdict = profile.check(node_facts(node, opset))
        if not verdict.ok:
            found.append(IllegalNode(node, verdict))
    return found


def is_constant(node: ir.Node) -> bool:
    """Tell whether a node has inputs and all are constants, so that folding will remove it."""
    values = [value for value in node.inputs if value is not None]
    return not values or all(ir.convenience.get_const_tensor(value) is not None for value in values)


def node_facts(node: ir.Node, opset: int) -> NodeFacts:
    """Describe one node in the words of the target profile; unknown ranks and dtypes are None."""
    from ytk_core.targets import NodeFacts

    constants: dict[int, list[Any]] = {}
    for index, value in enumerate(node.inputs):
        tensor = None if value is None else ir.convenience.get_const_tensor(value)
        if tensor is not None:
            constants[index] = tensor.numpy().ravel().tolist() if tensor.size <= _MAX_CONSTANT_ELEMENTS else []
    return NodeFacts(
        op_type=node.op_type,
        domain=node.domain,
        opset=opset,
        input_ranks=tuple(None if value is None or value.shape is None else len(value.shape) for value in node.inputs),
        input_dtypes=tuple(_dtype(value) for value in node.inputs),
        output_dtypes=tuple(_dtype(value) for value in node.outputs),
        attributes={name: _attribute(attribute) for name, attribute in node.attributes.items()},
        constant_inputs=constants,
        absent_inputs=frozenset(index for index, value in enumerate(node.inputs) if value is None),
        absent_outputs=frozenset(index for index, value in enumerate(node.outputs) if not _is_used(value)),
    )


def _is_used(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _dtype(value: ir.Value | None) -> str | None:
    """Give our name of a dtype, ONNX's in lower case for one that we have no word for."""
    if value is None or value.dtype is None:
        return None
    ours = FROM_ONNX_NUMBER.get(int(value.dtype))
    return str(value.dtype.name).lower() if ours is None else str(ours)


def _attribute(attribute: ir.Attr) -> Any:
    value = attribute.value
    return list(value) if isinstance(value, (list, tuple)) else value
