"""List everything that the exporter or the target refuses, in one go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from ytk_client.frontend import legality, torch_adapter
from ytk_client.frontend.lower_opset import NotLowered, has_lower_form
from ytk_client.frontend.refusals import Refusal
from ytk_core.errors import UserError
from ytk_core.formats.prepare_outputs import CandidateReason

if TYPE_CHECKING:
    from ytk_core.targets import TargetProfile

_REASON = {
    "missing-op": CandidateReason.TARGET_ILLEGAL,
    "refuse": CandidateReason.TARGET_ILLEGAL,
    "rank": CandidateReason.RANK,
    "dtype": CandidateReason.DTYPE,
    "misparse": CandidateReason.MISPARSE,
}
_CERTAIN_EARLY = frozenset({"missing-op", "rank"})
"""Kinds that no constant folding changes: they are acted on before the graph is optimised, which is the dear part."""
_REWRITTEN = ("CastLike", "Sequence", "SplitToSequence", "ConcatFromSequence", "Optional")
"""Operators (by prefix) that translations use as intermediate forms; the optimiser or the lowering replaces them."""


def exporter_refusals(program: torch.export.ExportedProgram) -> list[Refusal]:
    """List every node of a decomposed program for which the exporter has no translation.

    Of a higher-order operator (torch.cond) with such a node in one of its branches, the whole operator is listed.
    """
    found: dict[str, Refusal] = {}
    inner = [(node, owner) for graph, owner in torch_adapter.subgraph_owners(program).items() for node in graph.nodes]
    for node, owner in [*((node, node) for node in program.graph_module.graph.nodes), *inner]:
        text = torch_adapter.refusal_text(node) if node.op == "call_function" else None
        if text is not None:
            found.setdefault(owner.name, Refusal(owner.name, CandidateReason.EXPORT_UNSUPPORTED, text))
    return list(found.values())


def early_target_refusals(
    model: ir.Model, profile: TargetProfile, program: torch.export.ExportedProgram
) -> list[Refusal]:
    """List what the target certainly refuses of a graph that is not optimised yet."""
    illegal = [
        found
        for found in legality.illegal_nodes(model, profile)
        if found.verdict.kind in _CERTAIN_EARLY
        and not found.node.op_type.startswith(_REWRITTEN)
        and not has_lower_form(found.node.op_type)
        and not legality.is_constant(found.node)
    ]
    return _refusals(illegal, profile, program)


def target_refusals(
    model: ir.Model,
    profile: TargetProfile,
    program: torch.export.ExportedProgram,
    not_lowered: Sequence[NotLowered] = (),
) -> list[Refusal]:
    """List what the target refuses of the final graph, and what has no form in the target's opset."""
    origins = _Origins(program)
    found = _refusals(legality.illegal_nodes(model, profile), profile, program)
    known = {refusal.node for refusal in found}
    for problem in not_lowered:
        node = origins.of(problem.node)
        if node not in known:
            known.add(node)
            text = f"exported as ONNX {problem.node.op_type}, which has no form in opset {profile.opset} of the target {profile.name}: {problem.rule}"
            found.append(
                Refusal(node, CandidateReason.TARGET_ILLEGAL, text, rule=problem.rule, source="onnx operator schemas")
            )
    return found


def _refusals(
    illegal: Sequence[legality.IllegalNode], profile: TargetProfile, program: torch.export.ExportedProgram
) -> list[Refusal]:
    """Turn illegal ONNX nodes into refusals of the FX nodes that they were translated from, one per FX node."""
    origins = _Origins(program)
    found: dict[str, Refusal] = {}
    for item in illegal:
        verdict = item.verdict
        name = origins.of(item.node)
        text = f"exported as ONNX {item.node.op_type}, which the target {profile.name} (opset {profile.opset}) refuses: {verdict.rule}"
        found.setdefault(name, Refusal(name, _REASON[verdict.kind], text, rule=verdict.rule, source=verdict.source))
    return list(found.values())


def origin(node: ir.Node, program: torch.export.ExportedProgram) -> str:
    """Give the name of the FX node that an ONNX node was translated from.

    Raises:
        UserError: ``unattributed_node``.
    """
    return _Origins(program).of(node)


class _Origins:
    """Finds the FX node behind an ONNX node, also where a rewrite of the graph lost the metadata."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        self._nodes: Mapping[str, torch.fx.Node] = {
            node.name: node for node in program.graph_module.graph.nodes if node.op == "call_function"
        }
        self._owners = torch_adapter.subgraph_owners(program)

    def of(self, node: ir.Node) -> str:
        """Give the FX node's name.

        Raises:
            UserError: ``unattributed_node``: neither the node nor its neighbourhood is connected to the program.
        """
        direct = self._own(node)
        if direct:
            return direct
        for neighbours in (ir.Node.predecessors, ir.Node.successors):
            seen, waiting = {node}, [node]
            while waiting:
                for other in neighbours(waiting.pop(0)):
                    if other in seen:
                        continue
                    seen.add(other)
                    origin = self._own(other)
                    # A placeholder is not what is refused here, so the search does not end at one.
                    if origin and other.domain in legality.STANDARD_DOMAINS:
                        return origin
                    waiting.append(other)
        msg = f"the target refuses the ONNX node {node.name!r} ({node.op_type}), which belongs to no operator of the model"
        raise UserError(msg, code="unattributed_node", hint="Report the model; -a with another target may accept it.")

    def _own(self, node: ir.Node) -> str | None:
        exact = torch_adapter.fx_node(node)
        if exact is not None and exact.graph in self._owners:
            return str(self._owners[exact.graph].name)
        names = [torch_adapter.fx_node_name(node), *(value.name for value in node.outputs)]
        for name in names:
            fx = self._nodes.get(name or "")
            if fx is not None:
                return str(fx.all_input_nodes[0].name) if torch_adapter.is_getitem(fx) else str(fx.name)
        return None
