"""Engine time by modules: who owns a layer, and that nothing is lost or counted twice."""

import json

import pytest
from click.testing import CliRunner

from ytk_client import attribution
from ytk_client.attribution import by_layer, by_module, engine_times, module_of
from ytk_client.cli.profile import profile
from ytk_core.errors import FormatError, UserError
from ytk_core.formats.engine_bundle import read_manifest, write_engine_bundle
from ytk_core.formats.prepare_outputs import FxNode, write_fx_nodes

from fakes import client_files as files

NODES = (
    FxNode(name="conv", op="call_function", target="conv", module_path="net.0.conv", module_class="torch.nn.Conv2d", onnx_nodes=("n_conv",)),
    FxNode(name="bn", op="call_function", target="bn", module_path="net.0.norm", module_class="torch.nn.BatchNorm2d", onnx_nodes=("n_conv",)),
    FxNode(name="fold", op="call_function", target="fold", module_path="net.1", module_class="model.Fold", onnx_nodes=("n_fold",)),
    FxNode(name="add", op="call_function", target="add", module_path="", onnx_nodes=("n_add",)),
)  # fmt: skip
PROFILE = {
    "schema_version": 1,
    "layers": [
        {"name": "conv", "type": "Convolution", "ms": 1.5, "onnx_nodes": ["n_conv"]},
        {"name": "fold", "type": "yasp::Fold", "ms": 0.5, "onnx_nodes": ["n_fold"], "exec_type": "plugin"},
        {"name": "reorder", "type": "Reorder", "ms": 0.25, "onnx_nodes": ["n_conv", "n_fold"]},
        {"name": "add", "type": "Add", "ms": 0.125, "onnx_nodes": ["n_add"]},
        {"name": "convert", "type": "Convert", "ms": 0.0625},
    ],
    "end_to_end_ms": 2.5,
    "layer_sum_ms": 2.4375,
    "gap_ms": 0.0625,
}


def shares(depth=0):
    found = by_module(engine_times(PROFILE, "x.tgz"), NODES, depth=depth)
    assert sum(each.ms for each in found) == PROFILE["end_to_end_ms"]
    return {each.owner: (each.layers, each.ms, each.plugins) for each in found}


def test_every_layer_belongs_to_the_module_around_all_that_it_stands_for():
    assert shares() == {
        "net.0": (1, 1.5, ()),  # a convolution with its norm folded in
        "net.1": (1, 0.5, ("yasp::Fold",)),
        "net": (1, 0.25, ()),  # between two modules
        attribution.TOP: (1, 0.125, ()),
        attribution.ENGINE: (1, 0.0625, ()),
        attribution.GAP: (0, 0.0625, ()),
    }


def test_depth_adds_up():
    assert shares(depth=1)["net"] == (3, 2.25, ("yasp::Fold",))


def test_layers_come_slowest_first():
    assert [each.owner for each in by_layer(engine_times(PROFILE, "x.tgz"))] == [
        "conv",
        "fold",
        "reorder",
        "add",
        "convert",
    ]


@pytest.mark.parametrize(
    ("paths", "wanted"),
    [
        (["a.b.c", "a.b.d"], "a.b"),
        (["a.b", "a.b.c"], "a.b"),
        (["a.b.c", "a.b"], "a.b"),
        (["a.bc", "a.b"], "a"),
        (["a", "b"], ""),
        (["", "b"], ""),
        ([], None),
    ],
)
def test_the_innermost_module_around_all(paths, wanted):
    assert module_of(["n"], {"n": paths}) == wanted


def test_nodes_of_another_model_are_refused():
    others = [FxNode(name="x", op="call_function", target="x", module_path="a", onnx_nodes=("elsewhere",))]
    with pytest.raises(UserError, match="n_conv") as caught:
        by_module(engine_times(PROFILE, "x.tgz"), others)
    assert caught.value.code == "foreign_fx_nodes"


def test_a_damaged_profile_is_named():
    with pytest.raises(FormatError, match=r"x\.tgz"):
        engine_times({"layers": [{"name": 1}]}, "x.tgz")


@pytest.fixture
def bundle(tmp_path):
    path = files.engine(tmp_path / "made.tgz")
    parts = {"engine/model.blob": tmp_path / "e", "plugins/Fold.so": tmp_path / "p", "profile.json": tmp_path / "j"}
    (tmp_path / "e").write_bytes(b"engine of made.tgz")
    (tmp_path / "p").write_bytes(b"plugin")
    (tmp_path / "j").write_text(json.dumps(PROFILE))
    write_engine_bundle(path, read_manifest(path), parts)
    return path


def test_the_command_reads_the_nodes_beside_the_bundle(bundle, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    result = CliRunner().invoke(profile, [str(bundle)])
    assert result.exit_code == 2
    assert "--fx-nodes" in result.stderr
    write_fx_nodes(bundle.parent / "fx_nodes.json", NODES)
    result = CliRunner().invoke(profile, [str(bundle), "--top", "2"])
    assert result.exit_code == 0
    assert "net.0" in result.stdout
    assert "60.0" in result.stdout
    assert "4 more take 0.5 ms" in result.stderr
    found = json.loads(CliRunner().invoke(profile, [str(bundle), "-o", "json", "--by", "layer"]).stdout)
    assert [row["ms"] for row in found["rows"]] == [1.5, 0.5, 0.25, 0.125, 0.0625]
