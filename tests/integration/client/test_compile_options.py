"""What compile reads out of a model and refuses before anything is sent: precisions, ranges of dynamic axes."""

from pathlib import Path

import msgspec
import onnx
import pytest
from onnx import TensorProto, helper

from ytk_client import dynamic_ranges
from ytk_client.inspection import Request, inspect_file
from ytk_core.errors import UserError
from ytk_core.formats.plugin_meta import Extent
from ytk_core.input_ranges import METADATA_KEY, InputRange, encode_ranges
from ytk_core.jobs import JobKind

from fakes import client_files as files

TENSORRT = "arm64-sm87-dos6010-cu114-trt86"
BATCH = InputRange(input="x", axis=0, min=1, opt=4, max=8)


def model(path: Path, ranges=(), *, plugin: bool = False) -> Path:
    """Relu of an input with an open batch, and a placeholder if asked for."""
    nodes = [helper.make_node("Relu", ["x"], ["y" if plugin else "z"])]
    if plugin:
        names = {"plugin_namespace": "yasp", "plugin_version": "1"}
        nodes.append(helper.make_node("Fold", ["y"], ["z"], name="node_fold", domain="yasp", **names))
    shape = ["s7", 3]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, shape)],
        value_info=[helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("yasp", 1)])
    if ranges:
        made.metadata_props.add(key=METADATA_KEY, value=encode_ranges(ranges))
    onnx.save(made, path)
    return path


@pytest.fixture
def compile_model(ytk, tmp_path):
    files.weights(tmp_path / "model.npz")
    common = ("embedded", "compile", "--onnx", "model.onnx", "--npz", "model.npz", "-o", "model.tgz")

    def run(arch, *more):
        return ytk(*common, "-a", arch, *more)

    return run


@pytest.mark.parametrize(
    ("arch", "precision", "able"),
    [
        (files.ARCH, "fp16", "fp32, bf16"),
        (TENSORRT, "bf16", "fp32, tf32, fp16, int8"),
        ("amd64-cpuv3-linux-glibc236-ort132", "int8", "fp32"),
    ],
)
def test_a_precision_that_the_engine_has_not_is_refused_and_nothing_is_sent(
    compile_model, fake, tmp_path, arch, precision, able
):
    model(tmp_path / "model.onnx", [BATCH])
    result = compile_model(arch, "-p", precision)
    assert "error[precision]" in result.err
    assert able in result.err
    assert result.code != 0
    assert fake.specs(JobKind.ENGINE_BUILD) == []


def sent(fake):
    (spec,) = fake.specs(JobKind.ENGINE_BUILD)
    return [(each["input"], each["axis"], each["min"], each["opt"], each["max"]) for each in spec.params["ranges"]]


def test_the_ranges_that_prepare_wrote_reach_the_builder(compile_model, fake, tmp_path):
    model(tmp_path / "model.onnx", [BATCH])
    fake.answer(JobKind.ENGINE_BUILD, outputs={"engine.tgz": files.engine(tmp_path / "made.tgz").read_bytes()})
    assert compile_model(TENSORRT).code == 0
    assert sent(fake) == [("x", 0, 1, 4, 8)]


def test_a_range_on_the_command_line_wins(compile_model, fake, tmp_path):
    model(tmp_path / "model.onnx", [BATCH])
    fake.answer(JobKind.ENGINE_BUILD, outputs={"engine.tgz": files.engine(tmp_path / "made.tgz").read_bytes()})
    assert compile_model(TENSORRT, "--dynamic", "x:0=2,2,3").code == 0
    assert sent(fake) == [("x", 0, 2, 2, 3)]


def test_tensorrt_needs_a_range_for_every_open_axis_and_a_cpu_engine_does_not(compile_model, fake, tmp_path):
    model(tmp_path / "model.onnx")
    result = compile_model(TENSORRT)
    assert "error[dynamic_without_range]" in result.err
    assert "x:0" in result.err
    fake.answer(JobKind.ENGINE_BUILD, outputs={"engine.tgz": files.engine(tmp_path / "made.tgz").read_bytes()})
    assert compile_model(files.ARCH).code == 0
    assert sent(fake) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [("nobody:0=1,2,3", "no input 'nobody'"), ("x:1=1,2,3", "fixed at 3"), ("x:4=1,2,3", "rank 2, so no axis 4")],
)
def test_a_range_that_is_of_no_open_axis_is_refused(compile_model, fake, tmp_path, text, words):
    model(tmp_path / "model.onnx")
    result = compile_model(files.ARCH, "--dynamic", text)
    assert "error[bad_dynamic]" in result.err
    assert words in result.err


@pytest.mark.parametrize("entry", ["[{]", '[{"input": "x", "axis": 0, "min": 9, "opt": 4, "max": 8}]'])
def test_damaged_ranges_are_refused(compile_model, tmp_path, entry):
    made = onnx.load(model(tmp_path / "model.onnx"))
    made.metadata_props.add(key=METADATA_KEY, value=entry)
    onnx.save(made, tmp_path / "model.onnx")
    assert "error[bad_ranges]" in compile_model(files.ARCH).err


def test_a_plugin_that_was_tested_for_less_than_the_model_may_be_given_is_named(tmp_path):
    path = model(tmp_path / "model.onnx", [BATCH], plugin=True)
    meta = files.kernel(plugin_name="Fold").meta
    for low, high, problem in ((1, 8, ""), (3, 8, "tested for 3 to 8"), (1, 4, "tested for 1 to 4")):
        extents = [Extent(input=0, axis=0, min=low, opt=4, max=high)]
        tested = msgspec.structs.replace(meta, extents=extents)
        if not problem:
            dynamic_ranges.check_plugins_take(path, [BATCH], [tested])
            continue
        with pytest.raises(UserError, match=problem):
            dynamic_ranges.check_plugins_take(path, [BATCH], [tested])


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("2*s7 + 1", r"may be 3 to 17 \(2\*s7 \+ 1, s7 = x:0\).*tested for 3 to 16"),
        ("2*s7", ""),
        ("s99 + 1", ""),
    ],
)
def test_an_extent_that_is_an_expression_of_an_open_axis_is_followed(tmp_path, written, problem):
    made = onnx.load(model(tmp_path / "model.onnx", [BATCH], plugin=True))
    made.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [written, 3]))
    made.graph.node[1].input[0] = "w"
    onnx.save(made, tmp_path / "model.onnx")
    extents = [Extent(input=0, axis=0, min=2 if problem == "" else 3, opt=8, max=16)]
    tested = msgspec.structs.replace(files.kernel(plugin_name="Fold").meta, extents=extents)
    if not problem:
        dynamic_ranges.check_plugins_take(tmp_path / "model.onnx", [BATCH], [tested])
        return
    with pytest.raises(UserError, match=problem):
        dynamic_ranges.check_plugins_take(tmp_path / "model.onnx", [BATCH], [tested])


@pytest.mark.parametrize("name", ["batch-size", "a(b", "in", "x.1_dim"])
def test_an_axis_is_followed_whatever_its_name(tmp_path, name):
    made = onnx.load(model(tmp_path / "model.onnx", [BATCH], plugin=True))
    for info in (*made.graph.input, *made.graph.value_info, *made.graph.output):
        for dim in info.type.tensor_type.shape.dim:
            if dim.HasField("dim_param"):
                dim.dim_param = name
    onnx.save(made, tmp_path / "model.onnx")
    extents = [Extent(input=0, axis=0, min=3, opt=4, max=8)]
    tested = msgspec.structs.replace(files.kernel(plugin_name="Fold").meta, extents=extents)
    with pytest.raises(UserError, match="tested for 3 to 8"):
        dynamic_ranges.check_plugins_take(tmp_path / "model.onnx", [BATCH], [tested])


def test_inspect_tells_the_range_and_has_no_objection(tmp_path):
    found = inspect_file(model(tmp_path / "model.onnx", [BATCH]), Request.of("trt86"))
    kinds = {finding.kind: finding.message for finding in found.findings}
    assert kinds["dynamic-range"] == "axis 0 may be 1 to 8, usually 4"
    assert "dynamic-shape" not in kinds
    assert found.ok
