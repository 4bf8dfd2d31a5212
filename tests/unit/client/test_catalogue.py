"""`ytk embedded catalogue`, and what compile takes from the catalogue."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ytk_client.cli import main as entry
from ytk_client.shipped import shipped_bundles
from ytk_core.archspec import ArchSpec
from ytk_core.catalogue import ENTRIES, NAMESPACE
from ytk_core.errors import ExitCode, UserError
from ytk_core.formats.kernel_bundle import read_bundle
from ytk_core.formats.plugin_meta import DeploymentTarget

from fakes import client_files as files
from fakes.kronos_models import FLOAT, custom, save

CPU = ArchSpec.parse(files.ARCH)
GPU = "arm64-sm87-dos6010-cu114-trt86"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Rotated boxes, and a node of somebody else's."""
    settings = {"max_output": [6], "iou_threshold": [0.5], "score_threshold": [0.0]}
    nodes = [
        custom("RotatedNms_1", ["boxes", "scores"], ["kept", "count"], "nms", NAMESPACE, **settings),
        custom("Other", ["boxes"], ["y"], "other"),
    ]
    inputs = {"boxes": (FLOAT, (9, 5)), "scores": (FLOAT, (9,))}
    return save(tmp_path / "model.onnx", nodes, inputs, {"kept": 6, "count": 6, "y": FLOAT})


def test_the_list(capsys):
    assert entry.run(["embedded", "catalogue", "-o", "json"]) == ExitCode.OK
    assert [row["name"] for row in json.loads(capsys.readouterr().out)["plugins"]] == [each.name for each in ENTRIES]


@pytest.mark.parametrize(("arch", "target"), [(str(CPU), DeploymentTarget.CPU), (GPU, DeploymentTarget.TENSORRT)])
def test_the_kernels_of_a_model(model, tmp_path, capsys, arch, target):
    words = ["embedded", "catalogue", "--onnx", str(model), "-a", arch, "--sources", str(tmp_path / "s"), "-o", "json"]
    assert entry.run(words) == ExitCode.OK
    printed = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in printed["plugins"]] == ["RotatedNms_1"]
    [path] = printed["written"]
    meta = read_bundle(path).meta
    assert (meta.plugin_namespace, meta.plugin_name, meta.deployment_target) == (NAMESPACE, "RotatedNms_1", target)
    assert meta.outputs[0].shape == ["6"]


def test_sources_need_a_model_and_a_target(tmp_path):
    assert entry.run(["embedded", "catalogue", "--sources", str(tmp_path)]) == ExitCode.USAGE


def test_compile_takes_what_nobody_gave(model, tmp_path):
    assert list(shipped_bundles(model, [], CPU)) == ["RotatedNms_1"]
    other = save(tmp_path / "o.onnx", [custom("Fold", ["x"], ["y"], "f")], {"x": (FLOAT, (1,))}, {"y": FLOAT})
    assert shipped_bundles(other, [], CPU) == {}


def test_a_plugin_of_ones_own_comes_first(model, tmp_path):
    from ytk_client.plugins import load_plugins

    own = load_plugins([files.plugin(tmp_path, plugin_name="RotatedNms_1", plugin_namespace=NAMESPACE)])
    assert shipped_bundles(model, own, CPU) == {}


def test_a_model_of_a_later_release(tmp_path):
    node = custom("SparseTransformer", ["x"], ["y"], "t", NAMESPACE)
    model = save(tmp_path / "later.onnx", [node], {"x": (FLOAT, (1,))}, {"y": FLOAT})
    with pytest.raises(UserError) as caught:
        shipped_bundles(model, [], CPU)
    assert caught.value.code == "unknown_catalogue_plugin"
