from __future__ import annotations

import dataclasses
import gc
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ytk_core.archspec import ArchSpec
from ytk_core.errors import CandidateError, FormatError, UserError
from ytk_kronos.engines.base import EngineOptions, PluginFile
from ytk_kronos.engines.openvino_engine import OpenVinoEngine

from fakes.kronos_models import FLOAT, custom, save

RNG = np.random.default_rng(7)


@pytest.fixture
def options(arch: ArchSpec) -> EngineOptions:
    return EngineOptions(arch=arch, threads=2)


def fold(x: np.ndarray, kernel: int, out: int, stride: int, padding: int) -> np.ndarray:
    n, rows, _ = x.shape
    channels = rows // kernel**2
    blocks = (out + 2 * padding - kernel) // stride + 1
    x = x.reshape(n, channels, kernel, kernel, blocks, blocks)
    y = np.zeros((n, channels, out + 2 * padding, out + 2 * padding), np.float64)
    for i in range(kernel):
        for j in range(kernel):
            y[:, :, i : i + stride * blocks : stride, j : j + stride * blocks : stride] += x[:, :, i, j]
    return y[:, :, padding : padding + out, padding : padding + out]


def relu_node(source: str, target: str) -> onnx.NodeProto:
    return helper.make_node("Relu", [source], [target], name=f"relu_{target}")


def same_model(path: Path, kind: int = FLOAT, dims: tuple[int | str, ...] = (2, 4)) -> Path:
    return save(path, [custom("Same", ["x"], ["y"], "same")], {"x": (kind, dims)}, {"y": kind})


# ---- several plugins, dtypes, attributes -----------------------------------------------------------------------------


def test_plugins_of_three_namespaces_in_one_model(engine, plugin, options, tmp_path):
    model = save(
        tmp_path / "m.onnx",
        [
            relu_node("x", "r"),
            custom(
                "Col2im", ["r"], ["f"], "fold", kernel_size=[3, 3], output_size=[8, 8], stride=[1, 1], padding=[1, 1]
            ),
            custom("Scale", ["f"], ["s"], "scale", scale=0.5, shift=[1, 2]),
            helper.make_node("ReduceMean", ["s"], ["m"], name="mean", axes=[3], keepdims=0),
            helper.make_node("ReduceMean", ["m"], ["rows"], name="mean2", axes=[0], keepdims=0),
            custom("RowMax", ["rows"], ["best", "index", "positive"], "row_max", namespace=""),
            custom("TakeRows", ["rows", "index"], ["taken"], "take", namespace="acme.vision", plugin_version="2"),
        ],
        {"x": (FLOAT, ("N", 36, 64))},
        {"taken": FLOAT, "best": FLOAT, "index": TensorProto.INT64, "positive": TensorProto.BOOL},
    )
    plugins = [plugin("col2im"), plugin("scale"), plugin("row_max"), plugin("take_rows")]
    built = engine.build(model, plugins, options)
    built.save(tmp_path / "m.blob")
    # Descending along the blocks, so that the largest row means come first: an index that TakeRows has a row for.
    x = np.sort(RNG.standard_normal((2, 36, 64), dtype=np.float32), axis=2)[:, :, ::-1]
    rows = (fold(np.maximum(x, 0), 3, 8, 1, 1) * 0.5 + 3).mean(axis=3).mean(axis=0)
    index = rows.argmax(axis=1)
    assert index.max() < len(rows)
    for loaded in (built, engine.load(tmp_path / "m.blob", plugins, options)):
        got = loaded.run({"x": x})
        np.testing.assert_allclose(got["best"], rows.max(axis=1), rtol=1e-5)
        np.testing.assert_array_equal(got["index"], index)
        assert got["index"].dtype == np.int64
        assert got["positive"].dtype == np.bool_
        assert got["positive"].tolist() == [True] * 4
        np.testing.assert_allclose(got["taken"], rows[index], rtol=1e-5)
        # A node that gives a graph output is called after it.
        assert {layer.name for layer in loaded.layers() if layer.external} == {"fold", "scale", "taken", "best"}


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_a_dynamic_batch_is_sized_at_run_time(engine, plugin, options, tmp_path, batch):
    model = save(
        tmp_path / "m.onnx",
        [custom("Col2im", ["x"], ["y"], "fold", kernel_size=[2, 2], output_size=[4, 6], stride=[2, 2])],
        {"x": (FLOAT, ("N", 12, 6))},
        {"y": FLOAT},
    )
    loaded = engine.build(model, [plugin("col2im")], options)
    assert loaded.outputs[0].shape == (None, 3, 4, 6)
    got = loaded.run({"x": np.ones((batch, 12, 6), np.float32)})["y"]
    assert got.shape == (batch, 3, 4, 6)
    np.testing.assert_array_equal(got, 1)


def test_attributes_arrive_exactly_also_from_an_engine_file(engine, plugin, options, tmp_path):
    scale = plugin("scale")

    def report(**attributes: object) -> tuple[list[float], list[float]]:
        node = custom("Scale", ["x"], ["y"], "scale", mode="a<&\"'>b", **attributes)
        model = save(tmp_path / "m.onnx", [node], {"x": (FLOAT, (6,))}, {"y": FLOAT})
        built = engine.build(model, [scale], options)
        built.save(tmp_path / "m.blob")
        x = {"x": np.zeros(6, np.float32)}
        return built.run(x)["y"].tolist(), engine.load(tmp_path / "m.blob", [scale], options).run(x)["y"].tolist()

    # attributes, threads, length of the string, length of shift, scale[0] is float32(0.1), number of scales
    assert report(scale=0.1, shift=[3, -(2**62)]) == ([3, 2, 7, 2, 1, 1],) * 2
    assert report(scale=[0.1, 7.0], shift=4) == ([3, 2, 7, 1, 1, 2],) * 2
    # An optional attribute that the node lacks is absent, not empty.
    assert report(scale=0.1) == ([2, 2, 7, -1, 1, 1],) * 2


@pytest.mark.parametrize(
    ("kind", "number", "size", "values"),
    [
        (TensorProto.INT64, 7, 8, np.array([[1, -2, 3, 2**31 - 1]], np.int64)),
        (TensorProto.INT32, 6, 4, np.array([[1, -2, 3, 4]], np.int32)),
        (TensorProto.UINT8, 2, 1, np.array([[0, 1, 200, 255]], np.uint8)),
        (TensorProto.INT8, 3, 1, np.array([[0, -1, 100, -128]], np.int8)),
        (TensorProto.BOOL, 9, 1, np.array([[True, False, True, True]])),
        (TensorProto.FLOAT16, 10, 2, np.array([[1, 0.5, -3, 6e-5]], np.float16)),
        (TensorProto.DOUBLE, 11, 8, np.array([[1, 0.5, -3, 1e30]], np.float64)),
    ],
)
def test_a_kernel_gets_the_dtype_it_was_made_for(engine, plugin, options, tmp_path, kind, number, size, values):
    same = plugin("identity", f"DTYPE={number}", f"BYTES={size}")
    nodes = [custom("Same", ["x"], ["a"], "same"), helper.make_node("Concat", ["a", "x"], ["y"], name="cat", axis=0)]
    model = save(tmp_path / "m.onnx", nodes, {"x": (kind, ("N", 4))}, {"y": kind})
    built = engine.build(model, [same], options)
    built.save(tmp_path / "m.blob")
    for loaded in (built, engine.load(tmp_path / "m.blob", [same], options)):
        got = loaded.run({"x": values})["y"]
        assert got.dtype == values.dtype
        expected = values.astype(np.float32).astype(values.dtype) if values.dtype == np.float64 else values
        np.testing.assert_array_equal(got, np.concatenate([expected, expected]))


def test_a_float32_kernel_stands_in_a_float16_model(engine, plugin, options, tmp_path):
    nodes = [custom("Same", ["x"], ["a"], "same"), helper.make_node("Add", ["a", "x"], ["y"], name="add")]
    model = save(tmp_path / "m.onnx", nodes, {"x": (TensorProto.FLOAT16, (2, 3))}, {"y": TensorProto.FLOAT16})
    got = engine.build(model, [plugin("identity")], options).run({"x": np.full((2, 3), 1.5, np.float16)})["y"]
    assert got.dtype == np.float16
    np.testing.assert_array_equal(got, 3)


def test_a_variant_for_the_engines_own_type_saves_the_conversion(engine, plugin, options, tmp_path):
    model = save(
        tmp_path / "m.onnx",
        [custom("TakeRows", ["x", "i"], ["y"], "take", namespace="acme.vision", plugin_version="2")],
        {"x": (FLOAT, (3, 2)), "i": (TensorProto.INT64, (2,))},
        {"y": FLOAT},
    )
    x, i = np.arange(6, dtype=np.float32).reshape(3, 2), np.array([2, 0])
    for take in (plugin("take_rows"), plugin("take_rows", "INT32")):
        np.testing.assert_array_equal(engine.build(model, [take], options).run({"x": x, "i": i})["y"], x[i])


def test_bfloat16_inputs_and_outputs_keep_their_bits(engine, options, tmp_path):
    bits = np.array([[0x3F80, 0xC040, 0x0000, 0x4049]], np.uint16)
    nodes = [helper.make_node("Identity", ["x"], ["y"], name="id")]
    model = save(tmp_path / "m.onnx", nodes, {"x": (TensorProto.BFLOAT16, (1, 4))}, {"y": TensorProto.BFLOAT16})
    np.testing.assert_array_equal(engine.build(model, [], options).run({"x": bits})["y"], bits)


def test_a_plugin_fed_by_constants_runs_in_the_engine_and_not_at_build_time(engine, plugin, options, tmp_path):
    nodes = [custom("Same", ["c"], ["s"], "same"), helper.make_node("Add", ["x", "s"], ["y"], name="add")]
    constant = {"c": np.arange(6, dtype=np.float32).reshape(2, 3)}
    model = save(tmp_path / "m.onnx", nodes, {"x": (FLOAT, (2, 3))}, {"y": FLOAT}, constant)
    built = engine.build(model, [plugin("identity")], options)
    built.save(tmp_path / "m.blob")
    for loaded in (built, engine.load(tmp_path / "m.blob", [plugin("identity")], options)):
        assert [layer.name for layer in loaded.layers() if layer.external] == ["same"]
        np.testing.assert_array_equal(loaded.run({"x": np.ones((2, 3), np.float32)})["y"], constant["c"] + 1)


def test_a_plugin_inside_a_branch_runs(engine, plugin, options, tmp_path):
    then = helper.make_graph(
        [custom("Scale", ["x"], ["t"], "inner", scale=3.0)],
        "then",
        [],
        [helper.make_tensor_value_info("t", FLOAT, None)],
    )
    other = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["e"], name="id")],
        "else",
        [],
        [helper.make_tensor_value_info("e", FLOAT, None)],
    )
    nodes = [helper.make_node("If", ["c"], ["y"], name="if", then_branch=then, else_branch=other)]
    model = save(tmp_path / "m.onnx", nodes, {"x": (FLOAT, (2, 3)), "c": (TensorProto.BOOL, ())}, {"y": FLOAT})
    built = engine.build(model, [plugin("scale")], options)
    built.save(tmp_path / "m.blob")
    x = np.ones((2, 3), np.float32)
    for loaded in (built, engine.load(tmp_path / "m.blob", [plugin("scale")], options)):
        for condition, factor in ((True, 3), (False, 1)):
            np.testing.assert_array_equal(loaded.run({"x": x, "c": np.array(condition)})["y"], factor * x)


# ---- precision -------------------------------------------------------------------------------------------------------


@pytest.fixture
def deep_model(tmp_path: Path) -> tuple[Path, np.ndarray, np.ndarray]:
    """A product whose result in bfloat16 is off by 1e-3 and more."""
    weight = RNG.standard_normal((256, 256)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="matmul")]
    model = save(tmp_path / "deep.onnx", nodes, {"x": (FLOAT, (8, 256))}, {"y": FLOAT}, {"w": weight})
    x = RNG.standard_normal((8, 256)).astype(np.float32)
    return model, x, x.astype(np.float64) @ weight.astype(np.float64)


def largest_error(loaded, x: np.ndarray, want: np.ndarray) -> float:
    return float(np.abs(loaded.run({"x": x})["y"] - want).max())


def test_fp32_is_fp32_by_value_at_build_and_at_import(engine, options, deep_model, tmp_path):
    model, x, want = deep_model
    built = engine.build(model, [], options)
    built.save(tmp_path / "m.blob")
    assert largest_error(built, x, want) < 1e-4
    assert largest_error(engine.load(tmp_path / "m.blob", [], options), x, want) < 1e-4


def test_without_the_force_this_cpu_would_compute_in_bfloat16(engine, arch, options, deep_model, tmp_path):
    import openvino as ov

    if "bf16" not in engine.precisions(arch):
        pytest.skip("this CPU has no bfloat16, so the default is f32 anyway")
    model, x, want = deep_model
    engine.build(model, [], options).save(tmp_path / "m.blob")
    plain = ov.Core().import_model((tmp_path / "m.blob").read_bytes(), "CPU", {})
    assert np.abs(plain({0: x})[0] - want).max() > 1e-3
    half = engine.build(model, [], EngineOptions(arch=arch, precision="bf16", threads=2))
    assert largest_error(half, x, want) > 1e-3


def test_plugins_work_in_float32_inside_a_bfloat16_engine(engine, plugin, arch, tmp_path):
    if "bf16" not in engine.precisions(arch):
        pytest.skip("this CPU has no bfloat16")
    weights = {name: RNG.standard_normal((16, 16, 3, 3)).astype(np.float32) for name in ("w", "v")}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="conv_1", pads=[1, 1, 1, 1]),
        custom("Scale", ["a"], ["b"], "scale", scale=0.5),
        helper.make_node("Conv", ["b", "v"], ["y"], name="conv_2", pads=[1, 1, 1, 1]),
    ]
    model = save(tmp_path / "m.onnx", nodes, {"x": (FLOAT, ("N", 16, 9, 9))}, {"y": FLOAT}, weights)
    options = EngineOptions(arch=arch, precision="bf16", threads=2)
    built = engine.build(model, [plugin("scale")], options)
    built.save(tmp_path / "m.blob")
    x = {"x": RNG.standard_normal((2, 16, 9, 9)).astype(np.float32)}
    exact = engine.build(model, [plugin("scale")], EngineOptions(arch=arch, threads=2)).run(x)["y"]
    for loaded in (built, engine.load(tmp_path / "m.blob", [plugin("scale")], options)):
        kinds = {layer.name: layer.precision for layer in loaded.layers()}
        assert kinds["conv_1"] == "bf16"
        assert kinds["scale"] == "f32"
        error = np.abs(loaded.run(x)["y"] - exact).max() / np.abs(exact).max()
        assert 1e-5 < error < 3e-2


@pytest.mark.parametrize("precision", ["fp16", "int8", "bogus"])
def test_a_precision_that_cannot_be_done_is_refused_with_what_can(engine, arch, deep_model, precision):
    with pytest.raises(UserError, match=rf"cannot build {precision}.*it can do: fp32") as caught:
        engine.build(deep_model[0], [], EngineOptions(arch=arch, precision=precision))
    assert caught.value.code == "precision"


def test_a_hint_that_the_device_changes_is_an_error(engine, options, deep_model, monkeypatch):
    import openvino as ov

    # The device turns f16 into bf16 without a word; had we asked for it, the read-back has to notice.
    monkeypatch.setattr("ytk_kronos.engines.openvino_engine._HINT_OF", {"fp32": "f16"})
    if "BF16" not in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        pytest.skip("this CPU has no bfloat16")
    with pytest.raises(Exception, match="asked for f16 and runs in bf16") as caught:
        engine.build(deep_model[0], [], options)
    assert getattr(caught.value, "code", "") == "precision_changed"


# ---- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dims", [(2, 4), ("N", 4)])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_launch_status_names_the_plugin_and_the_number(engine, plugin, arch, tmp_path, threads, dims):
    options = EngineOptions(arch=arch, threads=threads)
    loaded = engine.build(same_model(tmp_path / "m.onnx", dims=dims), [plugin("identity", "BAD_LAUNCH")], options)
    with pytest.raises(
        CandidateError, match=r"plugin yasp::Same: launch returned status 7 \(device error\) .*float32\[2,4\]"
    ) as caught:
        loaded.run({"x": np.zeros((2, 4), np.float32)})
    assert caught.value.code == "plugin_failed"


@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_of_the_engines_own_is_never_swallowed(engine, arch, tmp_path, threads):
    add = helper.make_node("Add", ["x", "z"], ["y"], name="add")
    model = save(tmp_path / "m.onnx", [add], {"x": (FLOAT, ("N", 4)), "z": (FLOAT, ("M", 4))}, {"y": FLOAT})
    loaded = engine.build(model, [], EngineOptions(arch=arch, threads=threads))
    assert loaded.run({"x": np.ones((3, 4), np.float32), "z": np.ones((3, 4), np.float32)})["y"].sum() == 24
    with pytest.raises(UserError, match="the engine failed at run time") as caught:
        loaded.run({"x": np.ones((2, 4), np.float32), "z": np.ones((3, 4), np.float32)})
    assert caught.value.code == "engine_failed"


def test_a_kernels_own_status_is_shown(engine, plugin, options, tmp_path):
    model = save(
        tmp_path / "m.onnx",
        [custom("TakeRows", ["x", "i"], ["y"], "take", namespace="acme.vision", plugin_version="2")],
        {"x": (FLOAT, (3, 2)), "i": (TensorProto.INT64, (1,))},
        {"y": FLOAT},
    )
    loaded = engine.build(model, [plugin("take_rows")], options)
    with pytest.raises(CandidateError, match=r"status 77 \(the kernel's own code\)"):
        loaded.run({"x": np.zeros((3, 2), np.float32), "i": np.array([3])})


@pytest.mark.parametrize(
    ("define", "message"),
    [
        ("BAD_SHAPE", r"its shape function refused float32\[2,4\] with status 3 \(bad shape\)"),
        ("LIES_ABOUT_DTYPE", "gave output 0 int8, its variant promises float32"),
    ],
)
def test_a_bad_shape_function_fails_the_build(engine, plugin, options, tmp_path, define, message):
    with pytest.raises(CandidateError, match=message):
        engine.build(same_model(tmp_path / "m.onnx"), [plugin("identity", define)], options)


def test_a_refusing_workspace_function_fails_the_run(engine, plugin, options, tmp_path):
    loaded = engine.build(same_model(tmp_path / "m.onnx"), [plugin("identity", "BAD_WORKSPACE")], options)
    with pytest.raises(CandidateError, match=r"its workspace function refused .* with -3"):
        loaded.run({"x": np.zeros((2, 4), np.float32)})


def test_a_dtype_without_variant_lists_the_variants(engine, plugin, options, tmp_path):
    model = same_model(tmp_path / "m.onnx", TensorProto.INT64)
    with pytest.raises(
        UserError, match=r"no variant takes \(int64\) in linear layout; it has only \(float32\)"
    ) as caught:
        engine.build(model, [plugin("identity")], options)
    assert caught.value.code == "plugin_mismatch"


def test_arity_and_attributes_are_compared(engine, plugin, options, tmp_path):
    two = save(tmp_path / "two.onnx", [custom("Same", ["x", "x"], ["y"], "same")], {"x": (FLOAT, (2,))}, {"y": FLOAT})
    with pytest.raises(UserError, match="the node has 2 inputs, the plugin takes 1"):
        engine.build(two, [plugin("identity")], options)
    bare = save(tmp_path / "bare.onnx", [custom("Scale", ["x"], ["y"], "scale")], {"x": (FLOAT, (2,))}, {"y": FLOAT})
    with pytest.raises(UserError, match="the node lacks the required attribute 'scale'"):
        engine.build(bare, [plugin("scale")], options)
    wrong = save(
        tmp_path / "wrong.onnx", [custom("Scale", ["x"], ["y"], "s", scale="big")], {"x": (FLOAT, (2,))}, {"y": FLOAT}
    )
    with pytest.raises(UserError, match="attribute 'scale' is string on the node, the plugin reads floats"):
        engine.build(wrong, [plugin("scale")], options)


@pytest.mark.parametrize(
    ("defines", "message"),
    [
        (("NOT_A_PLUGIN",), r"is not a kernel library: it exports no ytk_plugin\(\)"),
        (("ABI=2",), "kernel ABI 2 with a table of .*this host speaks ABI 1"),
    ],
)
def test_what_is_no_kernel_library_is_refused(engine, plugin, options, tmp_path, defines, message):
    with pytest.raises(UserError, match=message) as caught:
        engine.build(same_model(tmp_path / "m.onnx"), [plugin("identity", *defines)], options)
    assert caught.value.code == "bad_plugin"


@pytest.mark.parametrize(("name", "version"), [("Other", "1"), ("Same", "2")])
def test_a_library_that_registers_another_name_than_promised_is_refused(
    engine, plugin, options, tmp_path, name, version
):
    lying = dataclasses.replace(plugin("identity"), name=name, version=version)
    with pytest.raises(UserError, match=rf"registers yasp::Same 1, its manifest says yasp::{name} {version}") as caught:
        engine.build(same_model(tmp_path / "m.onnx"), [lying], options)
    assert caught.value.code == "bad_plugin"


def test_text_as_a_library_is_refused(engine, options, tmp_path):
    (tmp_path / "x.so").write_text("not ELF")
    bogus = PluginFile(path=tmp_path / "x.so", namespace="yasp", name="Same", version="1")
    with pytest.raises(UserError, match=r"cannot load .*x.so") as caught:
        engine.build(same_model(tmp_path / "m.onnx"), [bogus], options)
    assert caught.value.code == "bad_plugin"


def test_two_libraries_of_one_name_are_refused(engine, plugin, options, tmp_path):
    twice = [plugin("identity"), plugin("identity", "PEEKS")]
    with pytest.raises(UserError, match="plugin yasp::Same is given twice"):
        engine.build(same_model(tmp_path / "m.onnx"), twice, options)


def test_a_missing_plugin_is_named_at_build_and_at_import(engine, plugin, options, tmp_path):
    model = same_model(tmp_path / "m.onnx")
    with pytest.raises(UserError, match=r"no implementation of .*Same") as caught:
        engine.build(model, [plugin("scale")], options)
    assert caught.value.code == "unsupported_op"
    engine.build(model, [plugin("identity")], options).save(tmp_path / "m.blob")
    with pytest.raises(UserError, match="needs the plugin yasp::Same") as caught:
        engine.load(tmp_path / "m.blob", [plugin("scale")], options)
    assert caught.value.code == "missing_plugin"


@pytest.mark.parametrize("content", [b"", b"garbage" * 100])
def test_a_damaged_engine_file_is_refused(engine, options, tmp_path, content):
    (tmp_path / "m.blob").write_bytes(content)
    with pytest.raises(FormatError, match=r"cannot import m\.blob") as caught:
        engine.load(tmp_path / "m.blob", [], options)
    assert caught.value.code == "bad_engine_file"


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"z": np.zeros((2, 4), np.float32)}, r"inputs are \['x'\], given are \['z'\]"),
        ({"x": np.zeros((2, 4))}, r"input 'x' is float64\[2, 4\], the engine takes float32\[2, 4\]"),
        ({"x": np.zeros((2, 5), np.float32)}, r"float32\[2, 5\]"),
        ({"x": np.zeros(8, np.float32)}, r"float32\[8\]"),
    ],
)
def test_wrong_inputs_are_named(engine, plugin, options, tmp_path, inputs, message):
    loaded = engine.build(same_model(tmp_path / "m.onnx"), [plugin("identity")], options)
    with pytest.raises(UserError, match=message):
        loaded.run(inputs)


# ---- memory and threads ----------------------------------------------------------------------------------------------


def test_inputs_live_as_long_as_they_are_bound(engine, plugin, options, tmp_path):
    model = same_model(tmp_path / "m.onnx", dims=(64, 1024))
    loaded = engine.build(model, [plugin("identity")], options)
    values = RNG.standard_normal((64, 1024), dtype=np.float32)
    run = loaded.bind({"x": values.copy()})
    gc.collect()
    litter = [np.full((64, 1024), np.nan, np.float32) for _ in range(50)]  # takes freed memory, if it was freed
    run()
    np.testing.assert_array_equal(loaded._request.get_output_tensor(0).data, values)
    assert len(litter) == 50


def test_unaligned_memory_reaches_kernels_aligned(engine, plugin, options, tmp_path):
    import openvino as ov

    # The Scale kernel refuses tensors and workspace that are not 64-byte aligned. The engine passes on the memory that an
    # application binds, so this goes past our own bind(), which makes aligned copies.
    scale = custom("Scale", ["x"], ["y"], "s", scale=2.0)
    model = save(tmp_path / "m.onnx", [scale], {"x": (FLOAT, (3, 5))}, {"y": FLOAT})
    loaded = engine.build(model, [plugin("scale")], options)
    request = loaded._request
    memory, results = np.arange(80, dtype=np.float32), np.zeros(80, np.float32)
    for start in range(1, 17):
        x, y = memory[start : start + 15].reshape(3, 5), results[start : start + 15].reshape(3, 5)
        request.set_input_tensor(ov.Tensor(x, shared_memory=True))
        request.set_output_tensor(ov.Tensor(y, shared_memory=True))
        request.start_async()
        request.wait()
        np.testing.assert_array_equal(y, 2 * x)


def test_requests_at_once_do_not_share_workspace(engine, plugin, options, tmp_path):
    model = save(
        tmp_path / "m.onnx", [custom("Scale", ["x"], ["y"], "s", scale=3.0)], {"x": (FLOAT, ("N", 257))}, {"y": FLOAT}
    )
    loaded = [engine.build(model, [plugin("scale")], options) for _ in range(3)]
    wrong: list[str] = []

    def work(number: int) -> None:
        for turn in range(60):
            x = np.full((1 + (turn * 7 + number) % 40, 257), number + turn, np.float32)
            if not (loaded[number].run({"x": x})["y"] == 3 * x).all():
                wrong.append(f"{number}/{turn}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(loaded))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_an_engine_file_is_the_same_each_time(engine, plugin, options, tmp_path):
    model = same_model(tmp_path / "m.onnx")
    for name in ("a", "b"):
        engine.build(model, [plugin("identity")], options).save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_version_is_the_wheels(engine: OpenVinoEngine):
    import openvino as ov

    assert ov.get_version().startswith(engine.version)
