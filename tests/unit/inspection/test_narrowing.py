"""int64 and float64 on a target that has neither: sentinels are harmless, real values are not."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, save

from ytk_client.inspection import Request, Severity, inspect_file, onnx_narrowing

from fakes.onnx_nodes import F64, I64, of_kind

MAX, MIN = 2**63 - 1, -(2**63)


def ints(*values):
    return np.array(values, np.int64)


def test_to_the_end_is_a_sentinel(look):
    found = look("Slice", [(8, 8), ints(0), ints(MAX), ints(1), ints(1)])
    finding = of_kind(found, "int64-sentinel")[0]
    assert finding.severity is Severity.NOTE
    assert "2147483647" in finding.message
    assert found.ok


@pytest.mark.parametrize("end", [MAX, MAX - 1, MIN, MIN + 1, 2**40, -(2**31) - 1])
def test_any_far_slice_end_is_clamped_to_the_extent_anyway(look, end):
    assert of_kind(look("Slice", [(8, 8), ints(end), ints(end), ints(1)]), "int64") == []


@pytest.mark.parametrize("step", [2**40, MAX])
def test_a_slice_step_is_no_end(look, step):
    assert of_kind(look("Slice", [(8, 8), ints(0), ints(MAX), ints(1), ints(step)]), "int64")


@pytest.mark.parametrize(
    ("value", "kind"), [(2**31 - 1, None), (-(2**31), None), (2**31, "int64"), (-(2**31) - 1, "int64"), (MAX, "int64")]
)
def test_a_real_value_is_an_error_exactly_from_where_it_is_clamped(look, value, kind):
    found = look("Add", [((1,), I64), ints(value)], out_dtype=I64)
    assert bool(of_kind(found, "int64")) == (kind is not None)
    assert not of_kind(found, "int64-sentinel")
    if kind:
        finding = of_kind(found, "int64")[0]
        assert finding.severity is Severity.ERROR
        assert str(value) in finding.message
        assert (finding.node, finding.op) == ("x1", "Add")
        assert "int64 as int32" in finding.rule


def test_a_bound_is_open_only_at_the_extremes(look):
    low_high = [((3,), I64), np.array(MIN, np.int64), np.array(MAX, np.int64)]
    assert not of_kind(look("Clip", low_high, out_dtype=I64), "int64")
    assert of_kind(look("Clip", [((3,), I64), None, np.array(2**40, np.int64)], out_dtype=I64), "int64")


def test_one_real_value_among_sentinels_is_found(look):
    found = look("Where", [((3,), TensorProto.BOOL), ints(MAX, 2**40, 1), ((3,), I64)], out_dtype=I64)
    assert str(2**40) in of_kind(found, "int64")[0].message


def test_a_target_with_int64_has_no_such_hazard(look):
    assert look("Add", [((1,), I64), ints(2**40)], out_dtype=I64, target="trt101").ok


def test_values_pass_through_reshapes_and_concats(tmp_path):
    """starts of a Slice that come through Concat and Unsqueeze are still its starts; those of an Add are not."""

    def model(name, last):
        nodes = [
            helper.make_node("Constant", [], ["far"], value_int=MAX),
            helper.make_node("Unsqueeze", ["far", "zero"], ["row"]),
            helper.make_node("Concat", ["row", "one"], ["both"], axis=0),
            last,
        ]
        graph = helper.make_graph(
            nodes,
            "g",
            [
                helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 4]),
                helper.make_tensor_value_info("k", I64, [2]),
            ],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT if last.op_type == "Slice" else I64, None)],
            initializer=[
                helper.make_tensor("zero", I64, [1], [0]),
                helper.make_tensor("one", I64, [1], [1]),
                helper.make_tensor("starts", I64, [2], [0, 0]),
            ],
        )
        path = tmp_path / name
        save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), str(path))
        return inspect_file(path, Request.of())

    sliced = model("s.onnx", helper.make_node("Slice", ["x", "starts", "both"], ["y"]))
    assert of_kind(sliced, "int64") == []
    assert of_kind(sliced, "int64-sentinel")
    assert of_kind(model("a.onnx", helper.make_node("Add", ["k", "both"], ["y"])), "int64")


def test_a_detector_that_takes_everything_for_a_sentinel_would_be_seen(look, monkeypatch):
    monkeypatch.setattr(onnx_narrowing, "_is_sentinel", lambda _value, _uses: True)
    assert not of_kind(look("Add", [((1,), I64), ints(2**40)], out_dtype=I64), "int64")


def test_float64_is_a_warning_and_an_error_where_it_overflows(look):
    double = [((2,), F64), np.array([1.0, 2.0])]
    found = look("Mul", double, out_dtype=F64)
    assert of_kind(found, "narrowed-float64")[0].severity is Severity.WARNING
    assert not of_kind(found, "float64")
    beyond = look("Mul", [((2,), F64), np.array([1.0, 1e300])], out_dtype=F64)
    assert "1e+300" in of_kind(beyond, "float64")[0].message
    infinite = look("Mul", [((2,), F64), np.array([1.0, np.inf])], out_dtype=F64)
    assert not of_kind(infinite, "float64")
    assert not of_kind(look("Mul", double, out_dtype=F64, target="onnxruntime"), "narrowed-float64")


def test_int64_inputs_are_a_note(look):
    found = look("Gather", [(4, 3), ((2,), I64)])
    assert found.ok
    assert "inputs and outputs: x1" in of_kind(found, "narrowed-int64")[0].message
