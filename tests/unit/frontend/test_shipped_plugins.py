"""prepare routes what a model needs to the plugins of the catalogue, without any flag."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import onnx
import pytest

from ytk_core.catalogue import NAMESPACE
from ytk_core.errors import UserError
from ytk_core.formats.prepare_outputs import read_plugins
from ytk_core.node_contracts import NodeContract, node_contracts_from_onnx

pytestmark = pytest.mark.torch
needs_spconv = pytest.mark.skipif(
    importlib.util.find_spec("spconv") is None, reason="spconv is not installed: pip install 'yasp-toolkit[spconv]'"
)
SPCONV = """
import spconv.pytorch as spconv

class Net(nn.Module):
    def __init__(self, *layers, grid=(4, 6, 6), channels=3):
        super().__init__()
        self.layers = spconv.SparseSequential(*layers)
        self.grid = list(grid)

    def forward(self, features, indices):
        return self.layers(spconv.SparseConvTensor(features, indices, self.grid, 1)).dense()

def get_fwd_args(grid=(4, 6, 6), count=20, channels=3):
    generator = torch.Generator().manual_seed(0)
    place = torch.tensor([(0, *cell) for cell in __import__("itertools").product(*map(range, grid))], dtype=torch.int32)
    chosen = place[torch.randperm(len(place), generator=generator)[:count]]
    return torch.randn(count, channels, generator=generator), chosen
"""


def nodes_of(out: Path) -> list[NodeContract]:
    onnx.checker.check_model(str(out / "model.onnx"))
    return [node for node in node_contracts_from_onnx(out / "model.onnx") if node.namespace == NAMESPACE]


@needs_spconv
@pytest.mark.filterwarnings("ignore")  # what spconv and its compilers of Python say about themselves
class TestSpconv:
    def test_a_table_of_shipped_plugins(self, run_prepare):
        report, out = run_prepare(
            SPCONV
            + """
def down(inner, outer, maximum):
    conv = spconv.SparseConv3d(inner, outer, 3, stride=2, padding=1, bias=False)
    conv.max_voxels = maximum
    return conv

class Model(Net):
    def __init__(self):
        super().__init__(
            spconv.SubMConv3d(3, 4, 3, bias=False, indice_key="a"), nn.BatchNorm1d(4), nn.ReLU(),
            spconv.SubMConv3d(4, 4, 3, bias=True, indice_key="a"),
            down(4, 5, 18), spconv.SparseReLU(), down(5, 6, 4), spconv.SparseConv3d(6, 6, 1, bias=False),
        )
"""
        )
        names = ["SparseSubMConv3d", "SparseConv3d", "SparseConv3d_1", "SparseToDense"]
        assert [row.name for row in report.rows] == names
        assert all(row.has_plugin and row.gaia_input is None for row in report.rows)
        assert [row.sites for row in report.rows] == [2, 1, 1, 1]
        assert report.rows == tuple(read_plugins(out / "plugins.json"))
        assert report.blocking == ()
        assert report.candidates == ()
        assert not (out / "plugin_candidates").exists()
        first, second, third, fourth, fifth = nodes_of(out)
        assert first.identity == second.identity == (NAMESPACE, "SparseSubMConv3d", "1")
        assert third.attributes["max_voxels"] == [18]
        assert third.attributes["stride"] == [2, 2, 2]
        assert [each.dims for each in third.outputs] == [(18, 5), (18, 4), (1,)]
        assert fourth.outputs[0].dims == (4, 6)
        assert fifth.outputs[0].dims == (1, 6, 1, 2, 2)

    def test_an_inverse_convolution_in_two_dimensions(self, run_prepare):
        report, out = run_prepare(
            SPCONV
            + """
class Model(Net):
    def __init__(self):
        super().__init__(
            spconv.SparseConv2d(3, 4, 3, stride=2, padding=1, bias=False, indice_key="down"),
            spconv.SubMConv2d(4, 4, 3, bias=False),
            spconv.SparseInverseConv2d(4, 2, 3, indice_key="down", bias=False),
            grid=(8, 9),
        )

_args = get_fwd_args
def get_fwd_args():
    return _args((8, 9), 25)
"""
        )
        assert {row.name for row in report.rows} == {
            "SparseConv3d",
            "SparseSubMConv3d",
            "SparseInverseConv3d",
            "SparseToDense",
        }
        assert nodes_of(out)[0].attributes["kernel_size"] == [1, 3, 3]

    def test_without_a_declared_maximum_as_many_rows_as_enter(self, run_prepare):
        model = SPCONV + "class Model(Net):\n    def __init__(self):\n        super().__init__(DOWN)\n"
        fits = "spconv.SparseConv3d(3, 4, 3, stride=(3, 3, 3), padding=1, bias=False)"
        _, out = run_prepare(model.replace("DOWN", fits))
        # 20 rows enter, but the output grid has only 2 x 2 x 2 places.
        assert nodes_of(out)[0].outputs[0].dims == (8, 4)
        grows = "spconv.SparseConv3d(3, 4, 3, padding=1, bias=False)"
        with pytest.raises(UserError) as caught:
            run_prepare(model.replace("DOWN", grows))
        assert caught.value.code == "voxel_overflow"
        assert "declared maximum of 20" in caught.value.message

    @pytest.mark.parametrize(
        ("layer", "says"),
        [
            ("spconv.SparseMaxPool3d(2)", "pooling"),
            ("spconv.SparseConvTranspose3d(3, 4, 2, stride=2, bias=False)", "transposed"),
        ],
    )
    def test_a_layer_without_a_plugin_is_named(self, run_prepare, layer, says):
        with pytest.raises(UserError, match=says) as caught:
            run_prepare(SPCONV + f"class Model(Net):\n    def __init__(self):\n        super().__init__({layer})\n")
        assert caught.value.code == "spconv_unsupported"
        assert "SubMConv" in caught.value.hint

    def test_spconv_is_itself_again_afterwards(self, run_prepare):
        from spconv.pytorch import conv, core

        before = conv.SparseConvolutionBase._conv_forward, core.SparseConvTensor.dense
        model = "class Model(Net):\n    def __init__(self):\n        super().__init__(spconv.SubMConv3d(3, 4, 3, bias=False))\n"
        run_prepare(SPCONV + model)
        assert (conv.SparseConvolutionBase._conv_forward, core.SparseConvTensor.dense) == before
