"""Lowering to opset 17: the result is valid at 17 and computes the same as the opset-18 graph."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from ytk_client.frontend.lower_opset import RULES, expand_cast_like, has_lower_form, lower_to_opset_17

RNG = np.random.default_rng(0)
FLOAT = TensorProto.FLOAT


def graph(
    op: str,
    inputs: dict[str, np.ndarray],
    constants: dict[str, Any],
    outputs: Sequence[tuple[str, Sequence[int | str]]],
    *,
    order: Sequence[str] | None = None,
    output_type: int = FLOAT,
    **attributes: Any,
) -> onnx.ModelProto:
    """One opset-18 node; `order` gives the node's inputs where one of them is left out ("")."""
    names = list(order) if order is not None else [*inputs, *constants]
    node = helper.make_node(op, names, [name for name, _ in outputs], name="the_node", **attributes)
    made = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for k, v in inputs.items()
        ],
        [helper.make_tensor_value_info(name, output_type, shape) for name, shape in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def run(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def lowered(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[str]]:
    work = ir.from_proto(model)
    refused = lower_to_opset_17(work)
    return ir.to_proto(work), [problem.rule for problem in refused]


def same_at_17(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> onnx.ModelProto:
    result, refused = lowered(model)
    assert refused == []
    assert [(entry.domain, entry.version) for entry in result.opset_import] == [("", 17)]
    onnx.checker.check_model(result, full_check=True)
    want = run(model, inputs)
    got = run(result, inputs)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        assert a.dtype == b.dtype
    return result


def image(*shape: int) -> dict[str, np.ndarray]:
    return {"x": RNG.normal(size=shape).astype(np.float32)}


def test_every_operator_whose_schema_is_new_in_18_has_a_rule():
    latest: dict[str, set[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain in {"", "ai.onnx"}:
            latest.setdefault(schema.name, set()).add(schema.since_version)
    assert {name for name, versions in latest.items() if 18 in versions} == set(RULES)


@pytest.mark.parametrize("op", [name for name in RULES if name.startswith("Reduce")])
@pytest.mark.parametrize(("axes", "shape"), [([1], [2, 4]), ([-1, 0], [3]), (None, [])])
def test_reduce_axes_become_an_attribute(op, axes, shape):
    inputs = {"x": RNG.uniform(0.5, 2.0, size=(2, 3, 4)).astype(np.float32)}
    constants = {} if axes is None else {"axes": np.array(axes, dtype=np.int64)}
    result = same_at_17(graph(op, inputs, constants, [("y", shape)], keepdims=0), inputs)
    [node] = result.graph.node
    assert len(node.input) == 1
    found = {attribute.name: list(attribute.ints) for attribute in node.attribute if attribute.ints}
    assert found == ({} if axes is None else {"axes": axes})


def test_reduce_without_axes_and_noop_is_the_identity():
    inputs = image(2, 3)
    constants = {"axes": np.array([], dtype=np.int64)}
    result = same_at_17(graph("ReduceMax", inputs, constants, [("y", [2, 3])], noop_with_empty_axes=1), inputs)
    assert [node.op_type for node in result.graph.node] == ["Identity"]


def test_reduce_with_computed_axes_is_refused():
    inputs = {**image(2, 3), "axes": np.array([1], dtype=np.int64)}
    model = graph("ReduceMean", inputs, {}, [("y", ["a", "b"])])
    result, refused = lowered(model)
    assert refused == ["ReduceMean: axes must be a constant: opset 17 has them as an attribute"]
    assert result.opset_import[0].version == 18


def test_reduce_sum_is_left_alone():
    """Its axes have been an input since opset 13; an attribute would be invalid at 17."""
    inputs = image(2, 3)
    result = same_at_17(graph("ReduceSum", inputs, {"axes": np.array([1], dtype=np.int64)}, [("y", [2, 1])]), inputs)
    assert len(result.graph.node[0].input) == 2


@pytest.mark.parametrize(("extent", "parts", "sizes"), [(7, 3, [3, 3, 1]), (6, 3, [2, 2, 2])])
def test_split_into_uneven_parts(extent, parts, sizes):
    inputs = image(2, extent)
    model = graph("Split", inputs, {}, [(f"y{i}", [2, s]) for i, s in enumerate(sizes)], axis=1, num_outputs=parts)
    result = same_at_17(model, inputs)
    assert numpy_helper.to_array(result.graph.initializer[0]).tolist() == sizes


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
def test_pad_axes(mode):
    inputs = image(2, 3, 5, 4)
    constants = {"pads": np.array([1, 0, 2, 1], dtype=np.int64), "axes": np.array([2, -1], dtype=np.int64)}
    model = graph("Pad", inputs, constants, [("y", [2, 3, 8, 5])], order=["x", "pads", "", "axes"], mode=mode)
    same_at_17(model, inputs)


def test_pad_with_a_value():
    inputs = image(2, 3)
    constants = {
        "pads": np.array([1, 1], dtype=np.int64),
        "value": np.array(7.0, dtype=np.float32),
        "axes": np.array([0], dtype=np.int64),
    }
    same_at_17(graph("Pad", inputs, constants, [("y", [4, 3])]), inputs)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize_axes_with_sizes(mode):
    inputs = image(1, 2, 5, 6)
    constants = {"sizes": np.array([9, 7], dtype=np.int64)}
    order = ["x", "", "", "sizes"]
    model = graph("Resize", inputs, constants, [("y", [1, 2, 9, 7])], order=order, mode=mode, axes=[2, 3])
    same_at_17(model, inputs)


def test_resize_axes_with_scales():
    inputs = image(1, 2, 5, 6)
    constants = {"scales": np.array([2.0, 3.0], dtype=np.float32)}
    model = graph(
        "Resize", inputs, constants, [("y", [1, 2, 10, 18])], order=["x", "", "scales"], mode="nearest", axes=[-2, -1]
    )
    same_at_17(model, inputs)


def test_resize_that_keeps_the_ratio_is_refused():
    inputs = image(1, 1, 5, 6)
    constants = {"sizes": np.array([9, 10], dtype=np.int64)}
    options = {"mode": "linear", "axes": [2, 3], "keep_aspect_ratio_policy": "not_larger"}
    model = graph("Resize", inputs, constants, [("y", [1, 1, 8, 10])], order=["x", "", "", "sizes"], **options)
    assert lowered(model)[1] == ["Resize: keep_aspect_ratio_policy has no opset-17 form"]


def test_resize_antialias_is_refused():
    inputs = image(1, 2, 8, 8)
    constants = {"sizes": np.array([1, 2, 4, 4], dtype=np.int64)}
    model = graph(
        "Resize", inputs, constants, [("y", [1, 2, 4, 4])], order=["x", "", "", "sizes"], mode="linear", antialias=1
    )
    assert lowered(model)[1] == ["Resize: antialias has no opset-17 form"]


@pytest.mark.parametrize("op", ["ScatterElements", "ScatterND"])
@pytest.mark.parametrize(
    ("reduction", "lowers"), [("none", True), ("add", True), ("mul", True), ("max", False), ("min", False)]
)
def test_scatter_reductions(op, reduction, lowers):
    inputs = {**image(4, 3), "updates": RNG.normal(size=(1, 3)).astype(np.float32)}
    indices = np.array([[1, 0, 2]] if op == "ScatterElements" else [[2]], dtype=np.int64)
    model = graph(
        op, inputs, {"indices": indices}, [("y", [4, 3])], order=["x", "indices", "updates"], reduction=reduction
    )
    if lowers:
        same_at_17(model, inputs)
    else:
        assert lowered(model)[1] == [f"{op}: reduction={reduction} came with opset 18"]


def test_group_normalization():
    """The opset-18 operator has a scale and a bias per group."""
    inputs = image(2, 6, 4, 5)
    constants = {"scale": np.array([0.5, 2.0], dtype=np.float32), "bias": np.array([1.0, -1.0], dtype=np.float32)}
    model = graph("GroupNormalization", inputs, constants, [("y", [2, 6, 4, 5])], num_groups=2, epsilon=1e-3)
    result, refused = lowered(model)
    assert refused == []
    onnx.checker.check_model(result, full_check=True)
    grouped = inputs["x"].reshape(2, 2, -1)
    normal = (grouped - grouped.mean(-1, keepdims=True)) / np.sqrt(grouped.var(-1, keepdims=True) + 1e-3)
    want = (normal * constants["scale"].reshape(1, 2, 1) + constants["bias"].reshape(1, 2, 1)).reshape(2, 6, 4, 5)
    np.testing.assert_allclose(run(result, inputs)[0], want, rtol=1e-4, atol=1e-5)
    assert result.graph.node[-1].output == ["y"]


def test_mish_and_its_metadata():
    inputs = image(3, 4)
    model = graph("Mish", inputs, {}, [("y", [3, 4])])
    entry = model.graph.node[0].metadata_props.add()
    entry.key, entry.value = "pkg.torch.onnx.name_scopes", "['', 'act']"
    result = same_at_17(model, inputs)
    assert all(node.metadata_props[0].value == "['', 'act']" for node in result.graph.node)


def test_bitwise_not():
    inputs = {"x": np.array([-3, 0, 7, 2**40], dtype=np.int64)}
    model = graph("BitwiseNot", inputs, {}, [("y", [4])], output_type=TensorProto.INT64)
    result, refused = lowered(model)
    assert refused == []
    onnx.checker.check_model(result, full_check=True)
    np.testing.assert_array_equal(run(result, inputs)[0], ~inputs["x"])


def test_lp_pool_defaults_are_dropped_and_new_forms_refused():
    inputs = image(1, 1, 6, 6)
    same_at_17(
        graph("LpPool", inputs, {}, [("y", [1, 1, 5, 5])], kernel_shape=[2, 2], dilations=[1, 1], ceil_mode=0), inputs
    )
    dilated = graph("LpPool", inputs, {}, [("y", [1, 1, 4, 4])], kernel_shape=[2, 2], dilations=[2, 2])
    assert len(lowered(dilated)[1]) == 1


@pytest.mark.parametrize("op", ["BitwiseAnd", "CenterCropPad", "Col2Im", "OptionalHasElement"])
def test_operators_without_an_opset_17_form(op):
    assert not has_lower_form(op)
    node = ir.Node("", op, [ir.Value(name="x")], num_outputs=1)
    model = ir.Model(ir.Graph([], [], nodes=[node], opset_imports={"": 18}), ir_version=10)
    assert [problem.rule for problem in lower_to_opset_17(model)] == [f"{op}: the operator came with opset 18"]


def test_nodes_in_subgraphs_are_lowered():
    """An If branch holds a Reduce: its axes input would be ignored there just as well."""
    axes = numpy_helper.from_array(np.array([1], dtype=np.int64), "axes")
    y = helper.make_tensor_value_info("y", FLOAT, [2, 1])

    def branch(op: str, name: str) -> onnx.GraphProto:
        node = helper.make_node(op, ["x", "axes"], ["y"], name=f"{name}_node")
        return helper.make_graph([node], name, [], [y])

    node = helper.make_node(
        "If", ["c"], ["z"], then_branch=branch("ReduceMax", "a"), else_branch=branch("ReduceMin", "b")
    )
    inputs = {**image(2, 3), "c": np.array(False)}
    made = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", FLOAT, [2, 3]), helper.make_tensor_value_info("c", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("z", FLOAT, [2, 1])],
        [axes],
    )
    same_at_17(helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), inputs)


def test_cast_like_becomes_cast():
    inputs = {**image(3), "like": np.array([1], dtype=np.int64)}
    work = ir.from_proto(graph("CastLike", inputs, {}, [("y", [3])], output_type=TensorProto.INT64))
    expand_cast_like(work)
    result = ir.to_proto(work)
    assert [node.op_type for node in result.graph.node] == ["Cast"]
    onnx.checker.check_model(result, full_check=True)
    np.testing.assert_array_equal(run(result, inputs)[0], inputs["x"].astype(np.int64))
