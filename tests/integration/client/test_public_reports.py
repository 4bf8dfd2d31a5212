"""What people report of plugins in public trackers, each kind through the command that a user would have run.

An engine says "Error 9", zeros, or nothing at all, minutes later and on the board. Here each is refused on the spot: the first difference
is named with the node, the tensor, both sides and the command to run, and nothing was sent. The kinds that only the library itself
shows (no kernel image, a template that nobody instantiated, GLIBC_2.34, a missing getCreators) are stopped where it is built:
tests/unit/forge/test_public_reports.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto, helper, save

from ytk_core.errors import ExitCode
from ytk_core.formats.plugin_meta import DeploymentTarget, InputDecl, OutputDecl, Variant

from fakes import client_files as files
from fakes.kernel_bundles import F16, F32

ORIN = "arm64-sm87-dos6010-cu114-trt86"
H100 = "amd64-sm90-linux-cu130-trt1014"
TENSORRT: dict[str, Any] = {"deployment_target": DeploymentTarget.TENSORRT}


def pool_model(path: Path, *, indices: int, name: str = "BevPool", inputs: int = 3) -> Path:
    """A placeholder of features, depths and integer indices, as bird's-eye-view models have."""
    kinds = [(TensorProto.FLOAT, (1, 6, 8)), (TensorProto.FLOAT, (1, 6)), (indices, (1, 6))][:inputs]
    values = [helper.make_tensor_value_info(f"x{i}", kind, dims) for i, (kind, dims) in enumerate(kinds)]
    node = helper.make_node(
        name,
        [value.name for value in values],
        ["y"],
        name="/bev/pool",
        domain="yasp",
        plugin_namespace="yasp",
        plugin_version="1",
    )
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 6, 8))
    graph = helper.make_graph([node], "g", values, [output])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("yasp", 1)]
    save(helper.make_model(graph, opset_imports=opsets), str(path))
    return path


def pool_plugin(directory: Path, *, arch: str = ORIN, variants: list[Variant] | None = None, **more: Any) -> Path:
    """A plugin whose third input is floating point: it was generated from an example that had floats there."""
    f32 = Variant(id="f32", inputs=[F32] * 3, outputs=[F32])
    f16 = Variant(id="f16", inputs=[F16] * 3, outputs=[F16])
    changes: dict[str, Any] = {
        "plugin_name": "BevPool",
        "inputs": [
            InputDecl(name="features", rank=3, dims=[None, 6, 8]),
            InputDecl(name="depths", rank=2, dims=[None, 6]),
            InputDecl(name="indices", rank=2, dims=[None, 6]),
        ],
        "outputs": [OutputDecl(name="y", rank=3, shape=["in0.d0", "in0.d1", "in0.d2"])],
        "variants": variants or [f32, f16],
    }
    return files.plugin(directory, file_name="BevPool.so", arch=arch, **TENSORRT, **(changes | more))


@pytest.fixture
def refused(ytk, fake, tmp_path):
    """Compile a model with a plugin, which has to be refused before anything is sent; gives what was said."""
    files.weights(tmp_path / "model.npz")

    def run(plugin: Path, *, arch: str = ORIN, precision: str = "fp32") -> str:
        model = ("--onnx", "model.onnx", "--npz", "model.npz", "-o", "model.tgz")
        result = ytk("embedded", "compile", "-a", arch, "-p", precision, *model, "--custom-plugin", plugin)
        assert result.code == ExitCode.YOURS, result.err
        assert not {"SubmitJob", "WriteArtifact"} & set(fake.calls)
        return result.err

    return run


def test_int32_where_the_plugin_takes_fp16_and_fp32(refused, tmp_path):
    """'Error 9: could not find any supported formats consistent with input/output data types' on a pooling node."""
    pool_model(tmp_path / "model.onnx", indices=TensorProto.INT32)
    said = refused(pool_plugin(tmp_path))
    assert (
        "yasp::BevPool (/bev/pool) input 2: dtype: the node has int32, the plugin float32 (variants: f32, f16)" in said
    )
    command = f"ytk kernelgen compile -r BevPool.pt2 -g {ORIN} --config deployment_target=tensorrt"
    assert command in said


def test_int64_indices_reach_a_plugin_of_8_6_as_int32(refused, tmp_path):
    pool_model(tmp_path / "model.onnx", indices=TensorProto.INT64)
    assert "the node has int64, which trt86 hands over as int32, the plugin float32" in refused(pool_plugin(tmp_path))


def test_one_input_less_than_the_plugin_takes(refused, tmp_path):
    pool_model(tmp_path / "model.onnx", indices=TensorProto.FLOAT, inputs=2)
    said = refused(pool_plugin(tmp_path))
    assert "yasp::BevPool (/bev/pool): arity: the node has 2 inputs, the plugin 3 (features, depths, indices)" in said


def test_a_plugin_built_for_another_tensorrt(refused, tmp_path):
    """It worked with 8.6 and fails after the move to 10: nothing is registered, and the node is 'not supported'."""
    pool_model(tmp_path / "model.onnx", indices=TensorProto.FLOAT)
    plugin = pool_plugin(tmp_path, arch=ORIN)
    said = refused(plugin, arch=H100)
    assert "was built for" in said
    assert "engine trt86 instead of trt1014" in said
    assert "TensorRT would look for getCreators in it, and it has getPluginCreators" in said
    assert f"ytk embedded build-plugin -a {H100} --plugin-name BevPool" in said


def test_an_fp32_plugin_in_an_fp16_engine(refused, tmp_path):
    """Every output is 0 or NaN: all plugins were fp32 only, and the engine was built with fp16."""
    pool_model(tmp_path / "model.onnx", indices=TensorProto.FLOAT)
    plugin = pool_plugin(tmp_path, variants=[Variant(id="f32", inputs=[F32] * 3, outputs=[F32])])
    said = refused(plugin, precision="fp16")
    assert "precision: the node has an engine built with -p fp16, the plugin only float32 variants" in said
    assert "--config precision=fp16" in said
    assert "or compile with -p fp32" in said


def test_a_plugin_named_like_a_built_in(refused, ytk, fake, tmp_path):
    """The engine's own GridSample runs in its place, silently."""
    pool_model(tmp_path / "model.onnx", indices=TensorProto.FLOAT, name="GridSample")
    said = refused(pool_plugin(tmp_path, plugin_name="GridSample"))
    assert (
        "builtin-name: the node has 'GridSample', the plugin a name that TensorRT's own importer takes first, silently"
        in said
    )
    (tmp_path / "k.py").write_bytes(files.kernel_text(**TENSORRT))
    build = ("embedded", "build-plugin", "-a", ORIN, "-s", "k.py", "-o", "x.so", "--plugin-name")
    result = ytk(*build, "GridSample")
    assert result.code == ExitCode.YOURS
    assert "error[builtin_name]" in result.err
    assert "TensorRT's own importer takes GridSample" in result.err
    assert not {"SubmitJob", "WriteArtifact"} & set(fake.calls)


def test_a_library_made_by_hand(ytk, fake, tmp_path):
    files.weights(tmp_path / "model.npz")
    pool_model(tmp_path / "model.onnx", indices=TensorProto.FLOAT)
    (tmp_path / "hand.so").write_bytes(b"\x7fELF")
    model = ("--onnx", "model.onnx", "--npz", "model.npz", "-o", "model.tgz", "--custom-plugin", "hand.so")
    result = ytk("embedded", "compile", "-a", ORIN, *model)
    assert result.code == ExitCode.YOURS
    assert "error[no_manifest]" in result.err
    assert "ytk kernelgen skeleton" in result.err
    assert "ytk embedded inspect hand.so" in result.err


class TestBuildPlugin:
    """The same comparison where the plugin is built, so that nothing is built in vain."""

    @pytest.fixture
    def build(self, ytk, fake, tmp_path):
        (tmp_path / "k.py").write_bytes(files.kernel_text())

        def run(*more: str) -> str:
            words = ("embedded", "build-plugin", "-a", files.ARCH, "-s", "k.py", "-o", "x.so", "--onnx", "m.onnx")
            result = ytk(*words, *more)
            assert result.code == ExitCode.YOURS, result.err
            assert "error[preflight]" in result.err
            assert not {"SubmitJob", "WriteArtifact"} & set(fake.calls)
            return result.err

        return run

    def test_a_name_that_no_node_has(self, build, tmp_path):
        files.model(tmp_path / "m.onnx")
        said = build("--plugin-name", "fold")
        assert "m.onnx has no node yasp::fold; it has yasp::Fold" in said

    def test_a_node_that_differs(self, build, tmp_path):
        files.model(tmp_path / "m.onnx", dtype=TensorProto.INT32)
        said = build("--plugin-name", "Fold")
        assert "yasp::Fold (node_fold) input 0: dtype: the node has int32" in said
