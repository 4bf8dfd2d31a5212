"""Groups of quantize and dequantize nodes, and the same numbers computed in float.

A quantized value is a small integer, which float holds exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from ytk_client.frontend import torch_adapter

Half = Literal["quantize", "dequantize"]
_NAMESPACE = "quantized_decomposed"
_KINDS = frozenset({"per_tensor", "per_channel", "per_token"})
_MOVES = frozenset(
    f"aten.{name}"
    for name in (
        *("view", "_unsafe_view", "reshape", "permute", "transpose", "t", "clone", "slice", "select", "unsqueeze"),
        *("squeeze", "expand", "cat", "alias", "flatten", "repeat", "contiguous"),
    )
)
_FLOAT_SOURCE = "ytk_float_source"
"""Mark of a conversion whose argument is the same number in float32."""
_INTEGERS = frozenset({torch.int8, torch.uint8, torch.int16, torch.int32})


@dataclass(frozen=True)
class Params:
    """How one node quantizes. ``scale`` and ``zero`` are numbers, or nodes with a tensor; ``axis`` None: they broadcast as they are."""

    scale: Any
    zero: Any
    axis: int | None
    low: int
    high: int
    dtype: torch.dtype


def half_of(node: torch.fx.Node) -> Half | None:
    """Tell which half of a pair a node is; None for other nodes."""
    namespace, _, name = operator_name(node).partition(".")
    for half in ("quantize", "dequantize"):
        if namespace == _NAMESPACE and name.removeprefix(f"{half}_") in _KINDS:
            return half
    return None


def moves(node: torch.fx.Node) -> bool:
    """Tell whether a node only moves values."""
    return operator_name(node) in _MOVES


def operator_name(node: torch.fx.Node) -> str:
    """Give ``aten.view`` of an operator, an empty text for other nodes."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):  # noqa: SLF001 - the class has no public name
        return ""
    return f"{target.namespace}.{target._opname}"  # noqa: SLF001 - as above


def params_of(node: torch.fx.Node) -> Params | None:
    """Read how a half quantizes; None where its bounds are tensors."""
    args: list[Any] = list(node.args)
    axis = None
    if operator_name(node).endswith("_per_channel"):
        axis = int(args.pop(3)) % args[0].meta["val"].dim()
    _, scale, zero, low, high, dtype, *_ = args
    if not isinstance(low, int) or not isinstance(high, int) or not isinstance(dtype, torch.dtype):
        return None
    return Params(scale, zero, axis, low, high, dtype)


def group_of(start: torch.fx.Node) -> list[torch.fx.Node] | None:
    """Give all nodes that share the integers of a half, in order; None where these go to or come from anything else."""
    group: set[torch.fx.Node] = set()
    waiting = [start]
    while waiting:
        node = waiting.pop()
        if node in group:
            continue
        half = half_of(node) if node.op == "call_function" else None
        if half is None and not (node.op == "call_function" and moves(node)):
            return None
        if half is not None and params_of(node) is None:
            return None
        group.add(node)
        if half != "quantize":
            integers = [arg for arg in node.all_input_nodes if _is_integer(arg)]
            waiting += integers[:1] if half == "dequantize" else integers
        if half != "dequantize":
            waiting += list(node.users)
    return [node for node in start.graph.nodes if node in group]


def _is_integer(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype in _INTEGERS


class Emitter:
    """Puts nodes before another one, as if they had come from the same place in the model."""

    def __init__(self, graph: torch.fx.Graph, place: torch.fx.Node) -> None:
        self._graph = graph
        self._place = place
        first: Any = place.args[0]
        self._mode = first.meta["val"].fake_mode
        self.made: set[torch.fx.Node] = set()

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        """Put a call there."""
        with self._graph.inserting_before(self._place):
            node = self._graph.call_function(target, args, kwargs)
        self.made.add(node)
        node.meta = {key: value for key, value in self._place.meta.items() if key != "val"}
        values = [arg.meta["val"] if isinstance(arg, torch.fx.Node) else arg for arg in args]
        with self._mode:
            node.meta["val"] = target(*values, **kwargs)
        return node

    def as_float(self, node: Any) -> Any:
        """Give a node's value as float32."""
        if node.meta["val"].dtype is torch.float32:
            return node
        if _FLOAT_SOURCE in node.meta:
            return node.args[0]
        return self(torch.ops.aten._to_copy.default, node, dtype=torch.float32)  # noqa: SLF001 - an operator name


def compute_in_float(
    program: torch.export.ExportedProgram, group: Iterable[torch.fx.Node], known: Mapping[str, torch.Tensor]
) -> set[torch.fx.Node]:
    """Compute a whole group in float.

    Args:
        program: Changed in place.
        group: From :func:`group_of`.
        known: The stored tensors by placeholder name, to see which zero points are zero.

    Returns:
        The nodes that stand for its halves now.
    """
    graph = program.graph_module.graph
    made = set[torch.fx.Node]()
    for node in group:
        half = half_of(node)
        if half is None:
            node.meta["val"] = node.meta["val"].to(torch.float32)
            continue
        emit = Emitter(graph, node)
        new = _quantized(emit, node, known) if half == "quantize" else _dequantized(emit, node, known)
        made |= emit.made
        node.replace_all_uses_with(new)
        torch_adapter.replace_in_signature(program, node.name, new.name)
        graph.erase_node(node)
    return made


def computed_params_in_float(program: torch.export.ExportedProgram, node: torch.fx.Node) -> None:
    """Write ``choose_qparams`` with operators that every target has: torch's own formula of a scale and a zero point.

    scale = max((max(x, 0) - min(x, 0)) / (high - low), eps), zero = clamp(low - round(min(x, 0) / scale), low, high)
    """
    aten = torch.ops.aten
    emit = Emitter(program.graph_module.graph, node)
    _, low, high, eps, *_ = node.args
    x = emit.as_float(node.args[0])
    lowest = emit(aten.clamp.default, emit(aten.amin.default, x), None, 0.0)
    highest = emit(aten.clamp.default, emit(aten.amax.default, x), 0.0)
    steps = float(high - low)
    scale = emit(aten.div.Tensor, emit(aten.sub.Tensor, highest, lowest), steps)
    scale = emit(aten.view.default, emit(aten.clamp.default, scale, eps), [1])
    rounded = emit(aten.round.default, emit(aten.div.Tensor, emit(aten.view.default, lowest, [1]), scale))
    zero = emit(aten.add.Tensor, emit(aten.neg.default, rounded), float(low))
    zero = emit(aten.clamp.default, zero, float(low), float(high))
    for user in list(node.users):
        source, dtype = ((scale, torch.float64), (zero, torch.int64))[user.args[1]]
        value = emit(aten._to_copy.default, source, dtype=dtype)  # noqa: SLF001 - an operator name
        value.meta[_FLOAT_SOURCE] = True
        user.replace_all_uses_with(value)
        torch_adapter.replace_in_signature(program, user.name, value.name)
        program.graph_module.graph.erase_node(user)
    program.graph_module.graph.erase_node(node)


def _quantized(emit: Emitter, node: torch.fx.Node, known: Mapping[str, torch.Tensor]) -> torch.fx.Node:
    """round(x * (1 / scale)) + zero, clamped: torch's own formula, so that halves round alike."""
    params = params_of(node)
    assert params is not None
    aten = torch.ops.aten
    x = emit.as_float(node.args[0])
    if isinstance(params.scale, torch.fx.Node):
        inverse = emit(aten.reciprocal.default, _shaped(emit, params.scale, params, x, known))
    else:
        inverse = 1.0 / params.scale
    rounded = emit(aten.round.default, emit(aten.mul.Tensor, x, inverse))
    zero = _shaped(emit, params.zero, params, x, known)
    shifted = rounded if zero == 0.0 else emit(aten.add.Tensor, rounded, zero)
    return emit(aten.clamp.default, shifted, float(params.low), float(params.high))


def _dequantized(emit: Emitter, node: torch.fx.Node, known: Mapping[str, torch.Tensor]) -> torch.fx.Node:
    params = params_of(node)
    assert params is not None
    aten = torch.ops.aten
    x: Any = node.args[0]
    zero = _shaped(emit, params.zero, params, x, known)
    shifted = x if zero == 0.0 else emit(aten.sub.Tensor, x, zero)
    result = emit(aten.mul.Tensor, shifted, _shaped(emit, params.scale, params, x, known))
    wanted = node.kwargs.get("out_dtype")
    if wanted not in {None, torch.float32}:
        result = emit(aten._to_copy.default, result, dtype=wanted)  # noqa: SLF001 - an operator name
    return result


def _shaped(emit: Emitter, value: Any, params: Params, data: Any, known: Mapping[str, torch.Tensor]) -> Any:
    """Give a scale or a zero point as a float number, or as a float tensor that broadcasts against ``data``."""
    if not isinstance(value, torch.fx.Node):
        return float(value)
    tensor = known.get(value.name)
    if tensor is not None and not tensor.to(torch.float32).any():
        return 0.0
    floating = emit.as_float(value)
    if params.axis is None:
        return floating
    shape = [-1 if axis == params.axis else 1 for axis in range(data.meta["val"].dim())]
    return emit(torch.ops.aten.view.default, floating, shape)
