from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ytk_core.errors import FormatError, UserError
from ytk_kronos.engine_files import PluginNode
from ytk_kronos.onnx_model import check_weights, lay_out, read_facts

from fakes.kronos_models import FLOAT, custom, save, save_with_npz

X = {"x": (FLOAT, (2, 2))}
WEIGHTS = {"w": np.arange(4, dtype=np.float32).reshape(2, 2), "b": np.ones(2, np.float32)}


def weighted(tmp_path: Path, npz: str = "model.npz", name: str = "fold") -> tuple[Path, Path]:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="matmul"),
        helper.make_node("Add", ["m", "b"], ["a"], name="add"),
        custom("Same", ["a"], ["y"], name),
    ]
    save_with_npz(tmp_path / "model.onnx", tmp_path / npz, nodes, X, {"y": FLOAT}, WEIGHTS)
    return tmp_path / "model.onnx", tmp_path / npz


def test_custom_nodes_and_all_names_are_found(tmp_path):
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name=""),
        custom("Same", ["r"], ["s"], "same", plugin_version="3"),
        custom("Any", ["s"], ["e"], "anything", namespace=""),
        helper.make_node("Gelu", ["e"], ["y"], name="gelu", domain="com.microsoft"),
    ]
    facts = read_facts(save(tmp_path / "m.onnx", nodes, X, {"y": FLOAT}))
    assert facts.plugin_nodes == (
        PluginNode(name="same", namespace="yasp", op="Same", version="3"),
        PluginNode(name="anything", namespace="", op="Any", version="1"),
    )
    assert facts.names == {
        "r": "r",
        "same": "same",
        "s": "same",
        "anything": "anything",
        "e": "anything",
        "gelu": "gelu",
        "y": "gelu",
    }
    assert not facts.unnamed
    assert facts.locations == frozenset()


def test_an_operator_that_onnx_does_not_know_needs_a_plugin_even_unmarked(tmp_path):
    nodes = [helper.make_node("Bogus", ["x"], ["y"], name="b")]
    assert read_facts(save(tmp_path / "m.onnx", nodes, X, {"y": FLOAT})).plugin_nodes[0].placeholder == "::Bogus"


def test_nodes_in_bodies_are_found_and_model_functions_are_not_plugins(tmp_path):
    body = helper.make_graph(
        [custom("Inner", ["x"], ["inner"], "inner")], "then", [], [helper.make_tensor_value_info("inner", FLOAT, None)]
    )
    other = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["same"], name="id")],
        "else",
        [],
        [helper.make_tensor_value_info("same", FLOAT, None)],
    )
    nodes = [
        helper.make_node("If", ["c"], ["i"], name="if", then_branch=body, else_branch=other),
        helper.make_node("Local", ["i"], ["y"], name="call", domain="pkg.torch"),
    ]
    path = save(tmp_path / "m.onnx", nodes, {"x": (FLOAT, (2, 2)), "c": (TensorProto.BOOL, ())}, {"y": FLOAT})
    model = onnx.load(path)
    relu = helper.make_node("Relu", ["a"], ["b"])
    model.functions.append(
        helper.make_function("pkg.torch", "Local", ["a"], ["b"], [relu], [helper.make_opsetid("", 17)])
    )
    onnx.save(model, path)
    (node,) = read_facts(path).plugin_nodes
    assert (node.name, node.nested) == ("inner", True)


def test_a_domain_that_contradicts_its_attribute_is_refused(tmp_path):
    nodes = [custom("Same", ["x"], ["y"], "same", plugin_namespace="other")]
    path = save(tmp_path / "m.onnx", nodes, X, {"y": FLOAT})
    with pytest.raises(UserError, match="domain is 'yasp' and its plugin_namespace 'other'"):
        read_facts(path)


@pytest.mark.parametrize("content", [b"", b"not a model at all", b"\x00" * 100])
def test_what_is_no_model_is_refused(tmp_path, content):
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(FormatError, match=r"m\.onnx") as caught:
        read_facts(tmp_path / "m.onnx")
    assert caught.value.code == "bad_onnx"


def test_a_truncated_model_is_refused(tmp_path):
    path, _ = weighted(tmp_path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(FormatError):
        read_facts(path)


def test_weights_that_fit_are_accepted(tmp_path):
    path, npz = weighted(tmp_path)
    check_weights(path, npz)


def test_a_truncated_npz_is_refused(tmp_path):
    path, npz = weighted(tmp_path)
    npz.write_bytes(npz.read_bytes()[:-30])
    with pytest.raises(FormatError, match=r"model\.npz"):
        check_weights(path, npz)


def test_weights_of_another_run_are_refused(tmp_path):
    path, npz = weighted(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    save_with_npz(
        other / "model.onnx",
        npz,
        [helper.make_node("Relu", ["x"], ["y"])],
        X,
        {"y": FLOAT},
        {"z": np.ones(300, np.float32)},
    )
    with pytest.raises(
        FormatError, match=r"weight 'b' is expected at byte \d+ \(8 bytes\), where model\.npz has no array|weight 'w'"
    ):
        check_weights(path, npz)


def test_missing_weights_are_said(tmp_path):
    path, _ = weighted(tmp_path)
    with pytest.raises(UserError, match="2 external weights and no npz was given") as caught:
        check_weights(path, None)
    assert caught.value.code == "missing_weights"


def test_a_model_that_is_ready_is_used_where_it_is(tmp_path):
    path, npz = weighted(tmp_path)
    assert lay_out(path, npz, read_facts(path), tmp_path / "copies") == path
    assert not (tmp_path / "copies").exists()


def test_an_npz_under_another_name_is_found_by_the_engine(tmp_path):
    path, npz = weighted(tmp_path, npz="big weights.npz")
    renamed = npz.rename(tmp_path / "model.npz")
    model = lay_out(path, renamed, read_facts(path), tmp_path / "copies")
    assert model.parent == tmp_path / "copies"
    loaded = onnx.load(model)  # with its external data
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(loaded.graph.initializer[0]), WEIGHTS["w"])


def test_a_custom_node_without_a_name_gets_one(tmp_path):
    path, npz = weighted(tmp_path, name="")
    facts = read_facts(path)
    assert facts.unnamed
    assert facts.plugin_nodes[0].name == "y"
    model = lay_out(path, npz, facts, tmp_path / "copies")
    assert [node.name for node in onnx.load(model).graph.node] == ["matmul", "add", "y"]


@pytest.mark.parametrize("location", ["/etc/passwd", "../secret", "a/../../b", ""])
def test_weights_outside_of_the_models_directory_are_refused(tmp_path, location):
    path, _ = weighted(tmp_path)
    model = onnx.load(path, load_external_data=False)
    model.graph.initializer[0].external_data[0].value = location
    path.write_bytes(model.SerializeToString())
    with pytest.raises(FormatError, match="outside of the model's directory"):
        read_facts(path)


def test_two_weights_files_are_refused(tmp_path):
    path, npz = weighted(tmp_path)
    model = onnx.load(path, load_external_data=False)
    model.graph.initializer[0].external_data[0].value = "second.npz"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(FormatError, match="2 files"):
        lay_out(path, npz, read_facts(path), tmp_path / "copies")
