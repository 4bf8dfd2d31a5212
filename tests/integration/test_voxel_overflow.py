"""More active voxels than a model's declared maximum: the engine's run fails and says why, whatever the outputs would look like."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from ytk_core import sandbox
from ytk_core.archspec import host_arch_specs
from ytk_core.catalogue import NAMESPACE, bundles_for
from ytk_core.dtypes import DType
from ytk_core.errors import YtkError
from ytk_core.formats.kernel_bundle import render_bundle
from ytk_core.formats.plugin_manifest import SUFFIX
from ytk_core.formats.plugin_meta import DeploymentTarget
from ytk_core.formats.reference import Reference, Sample, TensorInfo, write_reference
from ytk_core.formats.weights_npz import write_weights
from ytk_core.jobs import EngineBuildParams
from ytk_core.node_contracts import node_contracts_from_onnx
from ytk_forge.build import build_plugin
from ytk_kronos import library as kronos
from ytk_kronos.hostlib import engine_field

from fakes.kronos_models import FLOAT, custom, save

MAXIMUM, ROWS = 8, 12


def model(path: Path) -> None:
    """A pointwise-stride convolution of 12 rows with place for 8."""
    settings = {
        "spatial_shape": [4, 4, 4],
        "batch_size": [1],
        "kernel_size": [1, 1, 1],
        "stride": [1, 1, 1],
        "padding": [0, 0, 0],
        "dilation": [1, 1, 1],
        "max_voxels": [MAXIMUM],
    }
    names = (["features", "indices", "weight", "bias"], ["result", "places", "active"])
    node = custom("SparseConv3d", *names, "conv", NAMESPACE, **settings)
    inputs = {"features": (FLOAT, (ROWS, 2)), "indices": (6, (ROWS, 4))}
    weights = {"weight": np.ones((1, 2, 3), np.float32), "bias": np.zeros(3, np.float32)}
    save(path, [node], inputs, {"result": FLOAT, "active": 6}, weights)


def reference(path: Path, active: int) -> None:
    """A frame of that many voxels; the output is only right if it fits."""
    indices = np.full((ROWS, 4), -1, np.int32)
    for row in range(active):
        indices[row] = (0, row // 4, row % 4, 1)
    features = np.ones((ROWS, 2), np.float32)
    result = np.zeros((MAXIMUM, 3), np.float32)
    result[:active] = 2
    write_reference(
        path,
        Reference(
            inputs=(
                TensorInfo(name="features", dtype=DType.FLOAT32, shape=features.shape),
                TensorInfo(name="indices", dtype=DType.INT32, shape=indices.shape),
            ),
            outputs=(
                TensorInfo(name="result", dtype=DType.FLOAT32, shape=result.shape),
                TensorInfo(name="active", dtype=DType.INT32, shape=(1,)),
            ),
            samples=(
                Sample(
                    inputs={"features": features, "indices": indices},
                    outputs={"result": result, "active": np.array([active], np.int32)},
                ),
            ),
        ),
    )


@pytest.mark.skipif(sandbox.detect().kind == "none", reason=sandbox.detect().reason)
def test_at_the_maximum_it_runs_and_beyond_it_fails(tmp_path: Path) -> None:
    arch = host_arch_specs(engine_field())[0]
    onnx, npz, engine = tmp_path / "model.onnx", tmp_path / "model.npz", tmp_path / "model.tgz"
    model(onnx)
    write_weights(npz, {})
    [(name, bundle)] = bundles_for(node_contracts_from_onnx(onnx), DeploymentTarget.CPU).items()
    source, plugin = tmp_path / "kernel.module_source.py", tmp_path / f"{name}.so"
    source.write_text(render_bundle(bundle))
    build_plugin(source, arch, tmp_path / "built", tmp_path / "cache")
    shutil.copy(tmp_path / "built" / "plugin.so", plugin)
    shutil.copy(tmp_path / "built" / "manifest.json", plugin.with_name(plugin.name + SUFFIX))
    said: list[str] = []
    params = EngineBuildParams(precision="fp32", iterations=1, warmup=0, threads=1)
    kronos.build(onnx, npz, engine, plugins=[plugin], arch=arch, params=params, log=said.append)
    for active in (MAXIMUM, 3):
        reference(tmp_path / "fits.npz", active)
        verdict = kronos.verify(tmp_path / "fits.npz", engine, tmp_path / "verify.json", log=said.append)
        assert all(output.ok for output in verdict.outputs), verdict.outputs
    reference(tmp_path / "full.npz", MAXIMUM + 1)
    with pytest.raises(YtkError) as caught:
        kronos.verify(tmp_path / "full.npz", engine, tmp_path / "verify.json", log=said.append)
    assert "SparseConv3d" in caught.value.message
    assert "overflow: more results than the declared maximum" in caught.value.message
