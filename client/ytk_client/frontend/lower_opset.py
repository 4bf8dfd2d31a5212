"""Lower an opset-18 graph to opset-17 semantics.

torch writes opset 18 whatever it is asked for, TensorRT 8.6 reads opset 17 and ignores what came later without a word
(a Reduce* whose axes are an input reduces over everything), and onnx's own converter has no way back. Every operator
whose schema changed or appeared in 18 is in :data:`RULES`; a test holds the table against ``onnx.defs``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

LOWEST_OPSET = 17
IR_VERSION = 8
"""The IR version of opset 17's time; a parser of that time may look at it."""


@dataclass(frozen=True)
class NotLowered:
    """A node that has no opset-17 form, and why."""

    node: ir.Node
    rule: str


class _Refuse(Exception):  # noqa: N818 - a verdict, not an error; it never leaves this module
    """The node cannot be lowered; the text is the rule."""


def lower_to_opset_17(model: ir.Model) -> list[NotLowered]:
    """Rewrite the graph and its subgraphs in place; give the nodes that have no opset-17 form.

    With an empty answer the model is opset 17 and says so in its imports; otherwise it stays opset 18 in part and must
    not be used until these nodes are carved.
    """
    refused: list[NotLowered] = []
    for node in list(ir.traversal.RecursiveGraphIterator(model.graph)):
        rule = RULES.get(node.op_type) if node.domain in {"", "ai.onnx"} else None
        if rule is None:
            continue
        try:
            rule(node)
        except _Refuse as verdict:
            refused.append(NotLowered(node, f"{node.op_type}: {verdict}"))
    if not refused:
        model.opset_imports[""] = LOWEST_OPSET
        for node in ir.traversal.RecursiveGraphIterator(model.graph):
            if node.domain in {"", "ai.onnx"}:
                node.version = None
        model.ir_version = IR_VERSION
    return refused


def expand_cast_like(model: ir.Model) -> None:
    """Put ``Cast`` in the place of ``CastLike`` where the type is known: the same, and every target has it."""
    for node in list(ir.traversal.RecursiveGraphIterator(model.graph)):
        if node.domain in {"", "ai.onnx"} and node.op_type == "CastLike":
            like = node.inputs[1]
            if like is not None and like.dtype is not None:
                _replace(
                    node, [("Cast", [node.inputs[0]], {"to": ir.AttrInt64("to", int(like.dtype))})], dtype=like.dtype
                )


# ---- one rule per operator -------------------------------------------------------------------------------------------


def _reduce(node: ir.Node) -> None:
    """Axes: input in 18, attribute in 17; ``noop_with_empty_axes`` is new."""
    axes = _constant(node, 1, "axes must be a constant: opset 17 has them as an attribute")
    noop = _int(node, "noop_with_empty_axes", 0)
    node.attributes.pop("noop_with_empty_axes", None)
    if (axes is None or axes.size == 0) and noop:
        _replace(node, [("Identity", [node.inputs[0]], {})])
        return
    node.resize_inputs(1)
    if axes is not None and axes.size:
        node.attributes["axes"] = ir.AttrInt64s("axes", [int(axis) for axis in axes.ravel()])


def _split(node: ir.Node) -> None:
    """``num_outputs`` is new: 17 splits evenly without sizes, so uneven parts need the ``split`` input."""
    if "num_outputs" not in node.attributes:
        return
    axis = _int(node, "axis", 0)
    extent = _static_shape(node, 0, "the length of the split axis must be static")[axis]
    count = _int(node, "num_outputs", len(node.outputs))
    size = math.ceil(extent / count)
    sizes = [size] * (count - 1) + [extent - size * (count - 1)]
    if sizes[-1] < 0:
        msg = f"{extent} cannot be split into {count} parts"
        raise _Refuse(msg)
    node.attributes.pop("num_outputs")
    _set_input(node, 1, _int64(node, sizes, "split"))


def _pad(node: ir.Node) -> None:
    """The ``axes`` input is new: 17 wants begin and end of every axis."""
    axes = _constant(node, 3, "axes must be constant")
    if axes is None:
        node.resize_inputs(min(len(node.inputs), 3))
        return
    pads = _constant(node, 1, "pads must be constant where axes are given")
    if pads is None:
        msg = "pads must be constant where axes are given"
        raise _Refuse(msg)
    rank = _rank(node, 0)
    full = np.zeros((2, rank), dtype=np.int64)
    for index, axis in enumerate(axes.ravel()):
        full[:, int(axis)] = pads.reshape(2, -1)[:, index]
    node.resize_inputs(3)
    _set_input(node, 1, _int64(node, full.ravel().tolist(), "pads"))


def _resize(node: ir.Node) -> None:
    """``antialias``, ``axes`` and ``keep_aspect_ratio_policy`` are new."""
    if _int(node, "antialias", 0):
        msg = "antialias has no opset-17 form"
        raise _Refuse(msg)
    if _string(node, "keep_aspect_ratio_policy", "stretch") != "stretch":
        # The kept ratio is also the sampling step, which sizes rounded to integers do not give.
        msg = "keep_aspect_ratio_policy has no opset-17 form"
        raise _Refuse(msg)
    axes_attribute = node.attributes.get("axes")
    if axes_attribute is not None:
        _resize_all_axes(node, [int(axis) for axis in axes_attribute.as_ints()])
    _drop(node, "antialias", "keep_aspect_ratio_policy", "axes")


def _resize_all_axes(node: ir.Node, axes: list[int]) -> None:
    """Extend sizes or scales from the given axes to all."""
    if _string(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        msg = "axes together with a region of interest have no opset-17 form"
        raise _Refuse(msg)
    sizes = _constant(node, 3, "sizes must be constant where axes are given")
    scales = _constant(node, 2, "scales must be constant where axes are given")
    if sizes is not None and sizes.size:
        full = np.array(_static_shape(node, 0, "the shape must be static where axes are given"))
        full[axes] = sizes.ravel()
        _set_input(node, 3, _int64(node, full.tolist(), "sizes"))
    elif scales is not None and scales.size:
        factors = np.ones(_rank(node, 0), dtype=np.float32)
        factors[axes] = scales.ravel()
        _set_input(node, 2, _initializer(node, factors, "scales"))


def _scatter(node: ir.Node) -> None:
    """The reductions ``max`` and ``min`` are new."""
    reduction = _string(node, "reduction", "none")
    if reduction in {"max", "min"}:
        msg = f"reduction={reduction} came with opset 18"
        raise _Refuse(msg)
    if reduction == "none":  # the default; some parsers refuse the attribute's presence
        node.attributes.pop("reduction", None)


def _group_norm(node: ir.Node) -> None:
    """New in 18, with one scale and bias per *group*: instance normalisation over (N, groups, rest) is the same."""
    groups = _int(node, "num_groups", 1)
    data, scale, bias = node.inputs
    shape = _static_shape(node, 0, "the shape must be static")
    epsilon = node.attributes.get("epsilon") or ir.AttrFloat32("epsilon", 1e-5)
    grouped = _int64(node, [shape[0], groups, -1], "grouped")
    original = _int64(node, shape, "shape")
    _replace(
        node,
        [
            ("Reshape", [data, grouped], {}),
            ("InstanceNormalization", [None, scale, bias], {"epsilon": epsilon}),
            ("Reshape", [None, original], {}),
        ],
    )


def _mish(node: ir.Node) -> None:
    """New in 18: x * tanh(softplus(x))."""
    _replace(node, [("Softplus", [node.inputs[0]], {}), ("Tanh", [None], {}), ("Mul", [node.inputs[0], None], {})])


def _bitwise_not(node: ir.Node) -> None:
    """New in 18; on two's complement it is -1 - x."""
    data = node.inputs[0]
    dtype = data.dtype if data is not None else None
    if dtype not in {ir.DataType.INT32, ir.DataType.INT64}:
        msg = f"no opset-17 form for {dtype}"
        raise _Refuse(msg)
    minus_one = _initializer(node, np.array(-1, dtype=dtype.numpy()), "minus_one")
    _replace(node, [("Sub", [minus_one, data], {})])


def _lp_pool(node: ir.Node) -> None:
    """``dilations`` and ``ceil_mode`` are new."""
    dilations = node.attributes.get("dilations")
    if _int(node, "ceil_mode", 0) or (dilations and any(step != 1 for step in dilations.as_ints())):
        msg = "dilations and ceil_mode came with opset 18"
        raise _Refuse(msg)
    _drop(node, "ceil_mode", "dilations")


def _newer(_node: ir.Node) -> None:
    msg = "the operator came with opset 18"
    raise _Refuse(msg)


_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")

RULES: dict[str, Callable[[ir.Node], None]] = {
    **{f"Reduce{kind}": _reduce for kind in _REDUCTIONS},
    "Split": _split,
    "Pad": _pad,
    "Resize": _resize,
    "ScatterElements": _scatter,
    "ScatterND": _scatter,
    "GroupNormalization": _group_norm,
    "Mish": _mish,
    "LpPool": _lp_pool,
    "BitwiseNot": _bitwise_not,
    "BitwiseAnd": _newer,
    "BitwiseOr": _newer,
    "BitwiseXor": _newer,
    "CenterCropPad": _newer,
    "Col2Im": _newer,
    "OptionalGetElement": _newer,
    "OptionalHasElement": _newer,
}
"""By operator, all whose schema is new in opset 18; ReduceSum had its axes as an input before."""


def has_lower_form(op_type: str) -> bool:
    """Tell whether nodes of an operator may be rewritten here, so that it is too early to judge them."""
    return RULES.get(op_type, _newer) is not _newer


# ---- small words over ir.Node ----------------------------------------------------------------------------------------


def _constant(node: ir.Node, index: int, rule: str) -> np.ndarray | None:
    """Give the value of a constant input, None where the input is absent; refuse one that is computed."""
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None:
        return None
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is None:
        raise _Refuse(rule)
    array: np.ndarray = tensor.numpy()
    return array


def _rank(node: ir.Node, index: int) -> int:
    value = node.inputs[index]
    if value is None or value.shape is None:
        msg = "the rank must be known"
        raise _Refuse(msg)
    return len(value.shape)


def _static_shape(node: ir.Node, index: int, rule: str) -> list[int]:
    value = node.inputs[index]
    if value is None or value.shape is None or not all(isinstance(dim, int) for dim in value.shape):
        raise _Refuse(rule)
    return [int(dim) for dim in value.shape]


def _int(node: ir.Node, name: str, default: int) -> int:
    attribute = node.attributes.get(name)
    return default if attribute is None else int(attribute.as_int())


def _string(node: ir.Node, name: str, default: str) -> str:
    attribute = node.attributes.get(name)
    return default if attribute is None else str(attribute.as_string())


def _drop(node: ir.Node, *names: str) -> None:
    for name in names:
        node.attributes.pop(name, None)


def _set_input(node: ir.Node, index: int, value: ir.Value) -> None:
    if index >= len(node.inputs):
        node.resize_inputs(index + 1)
    node.replace_input_with(index, value)


def _int64(node: ir.Node, values: Sequence[int], role: str) -> ir.Value:
    return _initializer(node, np.array(values, dtype=np.int64), role)


def _initializer(node: ir.Node, array: np.ndarray, role: str) -> ir.Value:
    """Add an initializer to the node's graph, named after what it feeds."""
    graph = node.graph
    if graph is None:
        msg = "the node belongs to no graph"
        raise _Refuse(msg)
    base = f"{node.outputs[0].name}_{role}"
    name = base
    serial = 0
    while name in graph.initializers:
        serial += 1
        name = f"{base}_{serial}"
    value = ir.Value(name=name, const_value=ir.tensor(array, name=name))
    value.shape = ir.Shape(array.shape)
    value.dtype = ir.DataType.from_numpy(array.dtype)
    graph.initializers.add(value)
    return value


_Step = tuple[str, list["ir.Value | None"], dict[str, ir.Attr]]


def _replace(node: ir.Node, steps: Sequence[_Step], dtype: ir.DataType | None = None) -> None:
    """Put a chain of nodes in a node's place; None as an input stands for the result of the step before.

    The last node takes over the output with its name, type and place among the graph's outputs; every node takes over
    the metadata, so that the time it costs is still attributed.
    """
    graph = node.graph
    if graph is None:
        msg = "the node belongs to no graph"
        raise _Refuse(msg)
    old = node.outputs[0]
    made: list[ir.Node] = []
    for op_type, inputs, attributes in steps:
        result = made[-1].outputs[0] if made else None
        new = ir.Node("", op_type, [result if value is None else value for value in inputs], list(attributes.values()))
        new.name = f"{node.name}_{op_type}_{len(made) + 1}"
        new.metadata_props.update(node.metadata_props)
        new.meta.update(node.meta)
        made.append(new)
        new.outputs[0].dtype = dtype or old.dtype
        new.outputs[0].name = f"{old.name}_{op_type}_{len(made)}"
    graph.insert_before(node, made)
    last = made[-1].outputs[0]
    name, last.shape = old.name, old.shape
    last.metadata_props.update(old.metadata_props)
    ir.convenience.replace_all_uses_with(old, last, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    last.name = name
