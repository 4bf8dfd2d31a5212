"""Quantize and dequantize nodes in a form that the target takes, computing what torch computes.

A target takes some forms only: TensorRT wants int8 and a zero point of 0, and torch's quantizers give uint8, zero points, narrower ranges.
Where the target refuses a form, both halves of the pair, and what only moves values between them, are computed in float. A half is
never left alone: where the integers go anywhere else, nothing is changed and the nodes are carved together.

The exporter drops ``quant_min`` and ``quant_max``; where these are no bounds of the element type, the values are clamped before.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

import torch

from ytk_client.frontend import torch_adapter
from ytk_client.frontend.forms import RewrittenOp
from ytk_client.frontend.quantized_float import (
    Emitter,
    Params,
    compute_in_float,
    computed_params_in_float,
    group_of,
    half_of,
    moves,
    operator_name,
    params_of,
)
from ytk_client.frontend.stored_tensors import add_parameter, stored
from ytk_core.targets import NodeFacts

if TYPE_CHECKING:
    from ytk_core.targets import TargetProfile

_OP = {"quantize": "QuantizeLinear", "dequantize": "DequantizeLinear"}


def bring_into_form(
    program: torch.export.ExportedProgram, profile: TargetProfile, keep: AbstractSet[torch.fx.Node] = frozenset()
) -> list[RewrittenOp]:
    """Rewrite what the target refuses or the exporter would drop.

    Args:
        program: Decomposed, not carved yet; changed in place.
        profile: The target.
        keep: Nodes that stay as they are: somebody selected them.

    Returns:
        What was brought into another form.
    """
    worker = _Worker(program, profile)
    for node in list(program.graph_module.graph.nodes):
        if operator_name(node) == "quantized_decomposed.choose_qparams" and node not in keep:
            computed_params_in_float(program, node)
            worker.note("computed quantization parameters", ("the same in float",), node.name)
    for node in _halves(program, "quantize"):
        # One of a group that was rewritten with its first member is not there any more.
        if node not in keep and node.users:
            worker.quantizer(node, keep)
    for node in _halves(program, "dequantize"):
        if node not in keep:
            worker.stored_weight(node)
    worker.finish()
    return worker.found


def store_loose_weights(program: torch.export.ExportedProgram, profile: TargetProfile) -> list[RewrittenOp]:
    """Store the float numbers of quantized weights whose operators were carved: their half of the pair is of no use alone.

    Args:
        program: Partly carved; changed in place.
        profile: The target.
    """
    worker = _Worker(program, profile)
    for node in _halves(program, "dequantize"):
        regions = [getattr(user.target, "namespace", "") == torch_adapter.REGION_NAMESPACE for user in node.users]
        if regions and all(regions):
            worker.store_float(node)
    worker.finish()
    return worker.found


def pairs_in_float(
    program: torch.export.ExportedProgram, nodes: set[torch.fx.Node]
) -> tuple[set[torch.fx.Node], set[torch.fx.Node]]:
    """Complete the pairs that a set of nodes holds a half of, and compute them in float.

    Returns:
        The set with what stands for the pairs now, and the nodes that are gone.
    """
    found, gone = set(nodes), set[torch.fx.Node]()
    for node in nodes:
        group = group_of(node) if node not in gone and half_of(node) is not None else None
        if group is None:
            continue
        made = compute_in_float(program, group, stored(program))
        gone |= {each for each in group if not moves(each)}
        found = (found | set(group) | made) - gone
    return found, gone


def _halves(program: torch.export.ExportedProgram, half: str) -> list[torch.fx.Node]:
    nodes = program.graph_module.graph.nodes
    return [node for node in nodes if node.op == "call_function" and half_of(node) == half]


class _Worker:
    def __init__(self, program: torch.export.ExportedProgram, profile: TargetProfile) -> None:
        self._program = program
        self._graph = program.graph_module.graph
        self._profile = profile
        self._stored = stored(program)
        self.found: list[RewrittenOp] = []

    def finish(self) -> None:
        """Leave a program that can be run."""
        if self.found:
            self._graph.eliminate_dead_code()
            self._program.graph_module.recompile()

    def quantizer(self, node: torch.fx.Node, keep: AbstractSet[torch.fx.Node]) -> None:
        """Bring a quantize node, and what takes its integers, into a form that the target takes."""
        params, group = params_of(node), group_of(node)
        if params is None or group is None or not keep.isdisjoint(group):
            return
        rule = next((rule for rule in map(self._refusal, group) if rule), None)
        narrow = (params.low, params.high) != _bounds(params.dtype)
        if rule or (narrow and not (isinstance(params.scale, float) and isinstance(params.zero, int))):
            compute_in_float(self._program, group, self._stored)
            self.note("quantize/dequantize pair", ("the same in float",), node.name)
        elif narrow:
            self._clamp_before(node, params)

    def stored_weight(self, node: torch.fx.Node) -> None:
        """Store a quantized weight as float numbers where the target cannot use it as it is.

        TensorRT computes in int8 only where the activation is quantized, too.
        """
        tensorrt = self._profile.engine == "tensorrt"
        alone = tensorrt and not any(_has_quantized_partner(user, node) for user in node.users)
        if alone or self._refusal(node):
            self.store_float(node)

    def store_float(self, node: torch.fx.Node) -> None:
        """Put a stored float weight in the place of a dequantize node of a stored one; other nodes stay."""
        source: Any = node.args[0]
        values = [self._value(arg) for arg in node.args]
        if any(isinstance(value, torch.fx.Node) for value in values):
            return
        operator: Any = node.target
        result = operator(*values, **node.kwargs)
        _, _, qualified = torch_adapter.lifted_tensors(self._program)[source.name]
        new = add_parameter(self._program, f"{qualified}.dequantized", result.contiguous())
        node.replace_all_uses_with(new)
        torch_adapter.replace_in_signature(self._program, node.name, new.name)
        self._graph.erase_node(node)
        self.note("dequantized weight", ("stored float weight",), node.name)

    def _refusal(self, node: torch.fx.Node) -> str:
        """Give the target's objection to the ONNX node that the exporter would write, or an empty text."""
        half = half_of(node)
        if half is None:
            dtype = _word(node.meta["val"].dtype)
            return "" if dtype in self._profile.dtypes else f"{self._profile.name} moves no {dtype} tensors"
        params = params_of(node)
        if params is None:
            return "its bounds are tensors"
        values = [self._value(params.scale), self._value(params.zero)]
        if any(isinstance(value, torch.fx.Node) for value in values):
            return "its scale or zero point is computed"
        rank = 0 if params.axis is None else 1
        data: Any = node.args[0]
        integer = _word(params.dtype)
        types = ("float32", integer) if half == "quantize" else (integer, "float32")
        facts = NodeFacts(
            op_type=_OP[half],
            opset=self._profile.opset,
            input_ranks=(data.meta["val"].dim(), rank, rank),
            input_dtypes=(types[0], "float32", integer),
            output_dtypes=(types[1],),
            attributes={} if params.axis is None else {"axis": params.axis},
            constant_inputs={index: torch.as_tensor(value).tolist() for index, value in enumerate(values, start=1)},
        )
        verdict = self._profile.check(facts)
        return "" if verdict.ok else verdict.rule

    def _value(self, arg: Any) -> Any:
        return self._stored.get(arg.name, arg) if isinstance(arg, torch.fx.Node) else arg

    def note(self, op: str, becomes: tuple[str, ...], name: str) -> None:
        """Count one rewrite."""
        for index, known in enumerate(self.found):
            if (known.op, known.becomes) == (op, becomes):
                self.found[index] = RewrittenOp(op, becomes, known.count + 1, known.first_node)
                return
        self.found.append(RewrittenOp(op, becomes, 1, name))

    def _clamp_before(self, node: torch.fx.Node, params: Params) -> None:
        emit = Emitter(self._graph, node)
        low, high = ((bound - params.zero) * params.scale for bound in (params.low, params.high))
        node.update_arg(0, emit(torch.ops.aten.clamp.default, node.args[0], low, high))
        for index, bound in zip((3, 4), _bounds(params.dtype), strict=True):
            node.update_arg(index, bound)
        self.note("quantize with a narrower range", ("clamp", "quantize"), node.name)


def _has_quantized_partner(node: torch.fx.Node, weight: torch.fx.Node) -> bool:
    """Tell whether an operator takes another value that was dequantized, besides a weight."""
    partners: list[Any] = [arg for arg in node.all_input_nodes if arg is not weight and half_of(arg) == "dequantize"]
    return any(partner.args[0].op == "call_function" for partner in partners)


def _bounds(dtype: torch.dtype) -> tuple[int, int]:
    info = torch.iinfo(dtype)
    return int(info.min), int(info.max)


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
