"""Pre-flight: every kind of difference between a node and a plugin, the first one first."""

import dataclasses

import msgspec
import pytest
from golden import metas

from ytk_core.archspec import ArchSpec
from ytk_core.dtypes import DType
from ytk_core.errors import FormatError
from ytk_core.formats.plugin_meta import Constraints, DeploymentTarget, Format, PluginMeta, TensorType, Variant
from ytk_core.preflight import NodeContract, TensorContract, check_plugins, compare_node_meta, node_contracts_from_onnx

CPU = ArchSpec.parse("amd64-cpuv3-linux-glibc236-ov20264")
ORIN = ArchSpec.parse("arm64-sm87-dos6010-cu114-trt86")
H100 = ArchSpec.parse("amd64-sm90-linux-cu130-trt1014")
F32, F16, BF16, I32, I64 = DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.INT32, DType.INT64


def tensor(dtype, *dims):
    return TensorContract(dtype, len(dims), dims)


def fold_node(**changes):
    node = NodeContract(
        namespace="yasp",
        name="Fold",
        version="1",
        node_name="/head/Fold",
        inputs=(tensor(F32, None, 576, 3136),),
        outputs=(tensor(F32, None, 64, 56, 56),),
        attributes={"plugin_namespace": "yasp", "plugin_version": "1"},
    )
    return dataclasses.replace(node, **changes)


def dw_node(dtype=F32, **changes):
    node = NodeContract(
        namespace="yasp",
        name="DwConv3x3s2C256",
        version="1",
        node_name="/dw",
        inputs=(tensor(dtype, 4, 256, 56, 56), tensor(dtype, 256, 1, 3, 3)),
        outputs=(tensor(dtype, 4, 256, 28, 28),),
        attributes={},
    )
    return dataclasses.replace(node, **changes)


def with_meta(meta: PluginMeta, **changes) -> PluginMeta:
    return msgspec.structs.replace(meta, **changes)


def only(found):
    assert len(found) == 1, [d.text() for d in found]
    assert found[0].hint
    return found[0]


def test_a_plugin_that_fits():
    assert compare_node_meta(fold_node(), metas.fold(), "fp32", CPU) == []
    for precision in ("fp32", "fp16"):
        assert compare_node_meta(dw_node(), metas.depthwise(), precision, ORIN) == []
    assert compare_node_meta(dw_node(F16), metas.depthwise(), "fp16", H100) == []


def test_unknown_is_no_difference():
    unknown = TensorContract(None, None, None)
    assert compare_node_meta(fold_node(inputs=(unknown,), outputs=(unknown,)), metas.fold(), "fp32", CPU) == []


CASES = [
    ("name", fold_node(name="Col2im"), metas.fold(), "'Col2im'", "'Fold'"),
    ("namespace", fold_node(namespace="acme", attributes={}), metas.fold(), "'acme'", "'yasp'"),
    ("namespace", fold_node(attributes={"plugin_namespace": "acme"}), metas.fold(), "'acme'", "'yasp'"),
    ("version", fold_node(version="2"), metas.fold(), "'2'", "'1'"),
    ("arity", fold_node(inputs=fold_node().inputs * 2), metas.fold(), "2 inputs", "1 (columns)"),
    ("arity", fold_node(outputs=()), metas.fold(), "0 outputs", "1 (image)"),
    ("dtype", fold_node(inputs=(tensor(I64, None, 576, 3136),)), metas.fold(), "int64", "float32 (variants: f32)"),
    ("dtype", fold_node(outputs=(tensor(DType.BOOL, None, 64, 56, 56),)), metas.fold(), "bool", "float32"),
    ("rank", fold_node(inputs=(tensor(F32, None, 64, 9, 3136),), outputs=(TensorContract(F32, None, None),)), metas.fold(), "rank 4", "rank 3"),
    ("rank", fold_node(outputs=(tensor(F32, None, 64, 3136),)), metas.fold(), "rank 3", "rank 4"),
    ("fixed-dim", fold_node(inputs=(tensor(F32, None, 576, 100),)), metas.fold(), "extent 100", "extent 3136, fixed"),
    ("fixed-dim", fold_node(inputs=(tensor(F32, None, 576, None),)), metas.fold(), "a dynamic extent", "extent 3136"),
    ("extent", fold_node(inputs=(tensor(F32, 17, 576, 3136),)), metas.fold(), "extent 17", "tested for 1..16"),
    ("shape", fold_node(outputs=(tensor(F32, None, 64, 57, 56),)), metas.fold(), "extent 57", "56 (= 56)"),
    ("shape", fold_node(outputs=(tensor(F32, None, 32, 56, 56),)), metas.fold(), "extent 32", "64 (= in0.d1 // 9)"),
    ("attribute", fold_node(attributes={"kernel_size": [5, 5]}), metas.fold(), "[5, 5]", "ints [3, 3], fixed"),
    ("attribute", fold_node(attributes={"kernel_size": "3x3"}), metas.fold(), "'3x3'", "ints [3, 3]"),
    ("arch", fold_node(), with_meta(metas.fold(), constraints=Constraints(arch={"device": "cpuv4"})), "device cpuv3", "device cpuv4 only"),
    ("deployment-target", fold_node(), with_meta(metas.fold(), deployment_target=DeploymentTarget.TENSORRT), "ov20264", "tensorrt"),
    ("deployment-target", fold_node(), with_meta(metas.fold(), deployment_target=DeploymentTarget.TORCH), "openvino", "torch"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "node", "meta", "node_side", "plugin_side"), CASES)
def test_one_difference(check, node, meta, node_side, plugin_side):
    found = only(compare_node_meta(node, meta, "fp32", CPU))
    assert found.check == check
    assert node_side in found.node_side
    assert plugin_side in found.plugin_side
    assert node.node_name in found.where
    assert found.text().startswith(f"{node.namespace}::{node.name} (/head/Fold)")


def test_attributes_by_onnxs_rules():
    meta = metas.embedding()
    node = NodeContract(
        namespace="yasp",
        name="EmbeddingBag",
        version="1",
        node_name="e",
        inputs=(tensor(I64, 4, 16), tensor(F32, 30522, 384)),
        outputs=(tensor(F32, 4, 384),),
        attributes={"mode": "mean", "padding_idx": 0},
    )
    assert compare_node_meta(node, meta, "fp32", H100) == []
    assert (
        only(compare_node_meta(dataclasses.replace(node, attributes={"mode": "sum"}), meta, "fp32", H100)).check
        == "attribute"
    )
    required = [msgspec.structs.replace(a, value=None) for a in meta.attributes]
    found = only(
        compare_node_meta(dataclasses.replace(node, attributes={}), with_meta(meta, attributes=required), "fp32", H100)
    )
    assert (found.node_side, found.plugin_side) == ("no such attribute", "a required string")
    floats = [msgspec.structs.replace(meta.attributes[0], type="floats", value=[0.1])]
    single = 0.10000000149011612  # 0.1 as ONNX stores it
    assert (
        compare_node_meta(
            dataclasses.replace(node, attributes={"mode": single}), with_meta(meta, attributes=floats), "fp32", H100
        )
        == []
    )


def test_the_first_difference_comes_first():
    node = fold_node(name="X", version="3", inputs=(tensor(I64, 17, 9),), attributes={"kernel_size": [1]})
    found = compare_node_meta(node, with_meta(metas.fold(), deployment_target=DeploymentTarget.TENSORRT), "fp32", CPU)
    assert [d.check for d in found] == ["name", "version", "dtype", "rank", "attribute", "deployment-target"]


def test_an_fp16_engine_refuses_a_plugin_of_fp32_only():
    fp32_only = with_meta(metas.depthwise(), variants=metas.depthwise().variants[:1])
    assert compare_node_meta(dw_node(), fp32_only, "fp32", ORIN) == []
    found = only(compare_node_meta(dw_node(), fp32_only, "fp16", ORIN))
    assert (found.check, found.plugin_side) == ("precision", "only float32 variants")
    assert "-p fp32" in found.hint
    assert only(compare_node_meta(dw_node(), metas.depthwise(), "bf16", H100)).check == "precision"


def test_int64_is_narrowed_by_tensorrt_8_only():
    node = NodeContract(
        namespace="yasp",
        name="EmbeddingBag",
        version="1",
        node_name="",
        inputs=(tensor(I64, None, None), TensorContract(F32, 2, None)),
        outputs=(TensorContract(F32, 2, None),),
        attributes={},
    )
    by_id = {variant.id: variant for variant in metas.embedding().variants}
    for keep, arch, fits in (("i32", ORIN, True), ("i64", ORIN, False), ("i32", H100, False), ("i64", H100, True)):
        found = compare_node_meta(node, with_meta(metas.embedding(), variants=[by_id[keep]]), "fp32", arch)
        assert (found == []) is fits, (keep, arch, found)
        if arch is ORIN and not fits:
            assert "int64, which trt86 hands over as int32" in only(found).node_side


def test_a_cpu_engine_hands_half_precision_over_as_float32():
    meta = with_meta(
        metas.fold(),
        variants=[
            *metas.fold().variants,
            Variant(id="f16", inputs=[TensorType(dtype=F16)], outputs=[TensorType(dtype=F16)]),
        ],
    )
    node = fold_node(inputs=(tensor(F16, None, 576, 3136),), outputs=(tensor(F16, None, 64, 56, 56),))
    assert compare_node_meta(node, meta, "fp16", CPU) == []
    assert only(compare_node_meta(node, with_meta(meta, variants=meta.variants[1:]), "fp16", CPU)).check == "dtype"


def test_a_format_that_a_cpu_engine_does_not_have():
    hwc8 = Variant(id="hwc8", inputs=[TensorType(dtype=F32, format=Format.HWC8)], outputs=[TensorType(dtype=F32)])
    found = only(compare_node_meta(fold_node(), with_meta(metas.fold(), variants=[hwc8]), "fp32", CPU))
    assert (found.check, found.plugin_side) == ("format", "kHWC8")


def test_divisibility():
    node = dw_node(
        inputs=(tensor(F32, 4, 256, 56, 57), tensor(F32, 256, 1, 3, 3)), outputs=(TensorContract(F32, 4, None),)
    )
    meta = with_meta(metas.depthwise(), constraints=Constraints(divisible=[(0, 3, 8)]))
    assert only(compare_node_meta(node, meta, "fp32", ORIN)).plugin_side == "multiples of 8 only"


def test_a_built_in_name_is_refused_on_tensorrt():
    node = dw_node(name="GridSample")
    meta = with_meta(metas.depthwise(), plugin_name="GridSample")
    assert only(compare_node_meta(node, meta, "fp32", ORIN)).check == "builtin-name"


# ---- a whole model ---------------------------------------------------------------------------------------------------


def test_every_node_finds_its_plugin():
    nodes = [fold_node(), fold_node(node_name="/second"), dw_node()]
    plugins = {"fold.so": metas.fold(), "dw.so": with_meta(metas.depthwise(), deployment_target=DeploymentTarget.CPU)}
    variants = plugins["dw.so"].variants[:1]
    plugins["dw.so"] = with_meta(plugins["dw.so"], variants=variants)
    assert check_plugins(nodes, plugins, precision="fp32", arch=CPU) == []


def test_a_missing_plugin_and_an_unused_one():
    found = check_plugins([fold_node()], {}, precision="fp32", arch=CPU)
    assert only(found).check == "plugin"
    assert "--custom-plugin" in found[0].hint
    found = check_plugins([], {"dw.so": metas.depthwise()}, precision="fp32", arch=ORIN)
    assert (only(found).check, found[0].where) == ("unused-plugin", "dw.so")


def test_a_misnamed_plugin_is_named_as_such_for_every_site():
    nodes = [fold_node(name="Col2im", node_name="a"), fold_node(name="Col2im", node_name="b")]
    found = check_plugins(nodes, {"f.so": metas.fold()}, precision="fp32", arch=CPU)
    assert [d.check for d in found] == ["name", "name"]
    assert "--plugin-name Col2im" in found[0].hint


def test_two_plugins_of_one_identity():
    found = check_plugins([fold_node()], {"a.so": metas.fold(), "b.so": metas.fold()}, precision="fp32", arch=CPU)
    assert only(found).check == "duplicate-plugin"
    assert "a.so and b.so" in found[0].plugin_side


# ---- from ONNX -------------------------------------------------------------------------------------------------------


def _model(tmp_path, *, shapes=True):
    from onnx import TensorProto, helper, save

    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 576, 3136])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 64, 56, 56])
    middle = helper.make_tensor_value_info("m", TensorProto.FLOAT, ["n", 64, 56, 56])
    placeholder = helper.make_node(
        "Fold",
        ["r"],
        ["m"],
        name="/head/Fold",
        domain="yasp",
        plugin_namespace="yasp",
        plugin_version="1",
        kernel_size=[3, 3],
    )
    nodes = [helper.make_node("Relu", ["x"], ["r"]), placeholder, helper.make_node("Relu", ["m"], ["y"])]
    inner = helper.make_node("Inner", ["r"], ["i"], domain="yasp", scale=0.5, mode="a", axis=2)
    branch = helper.make_graph([inner], "then", [], [helper.make_tensor_value_info("i", TensorProto.FLOAT, None)])
    condition = helper.make_tensor("cond", TensorProto.BOOL, [], [True])
    nodes.append(helper.make_node("If", ["cond"], ["z"], then_branch=branch, else_branch=branch))
    outputs = [y, helper.make_tensor_value_info("z", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", [x], outputs, [condition], value_info=[middle] if shapes else [])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("yasp", 1)]
    save(helper.make_model(graph, opset_imports=imports, ir_version=8), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_nodes_from_onnx(tmp_path):
    fold, inner, other = node_contracts_from_onnx(_model(tmp_path))
    assert fold == fold_node(attributes={"plugin_namespace": "yasp", "plugin_version": "1", "kernel_size": [3, 3]})
    assert compare_node_meta(fold, metas.fold(), "fp32", CPU) == []
    assert inner.inputs == (tensor(F32, None, 576, 3136),)
    assert (inner.attributes, inner.version, inner == other) == ({"scale": 0.5, "mode": "a", "axis": 2}, "1", True)


def test_what_the_graph_does_not_say_is_unknown(tmp_path):
    fold = node_contracts_from_onnx(_model(tmp_path, shapes=False))[0]
    assert fold.outputs == (TensorContract(None, None, None),)
    assert fold.inputs == (tensor(F32, None, 576, 3136),)


def test_a_file_that_is_no_model(tmp_path):
    data = _model(tmp_path).read_bytes()
    for content in (b"", b"hello, this is text", data[: len(data) // 2], b"\x00" * 64):
        (tmp_path / "bad.onnx").write_bytes(content)
        with pytest.raises(FormatError, match=r"bad\.onnx"):
            node_contracts_from_onnx(tmp_path / "bad.onnx")
    with pytest.raises(FormatError, match="no such file"):
        node_contracts_from_onnx(tmp_path / "none.onnx")


def test_external_weights_are_not_read(tmp_path):
    import onnx

    model = onnx.load(_model(tmp_path))
    weight = onnx.TensorProto(name="w", data_type=1, dims=[4], data_location=onnx.TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value="missing.npz")
    model.graph.initializer.append(weight)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    assert len(node_contracts_from_onnx(tmp_path / "m.onnx")) == 3
