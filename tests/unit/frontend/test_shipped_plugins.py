"""prepare routes what a model needs to the plugins of the catalogue, without any flag."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import onnx
import pytest
import torch

from ytk_client.frontend import PrepareRequest, dry_run
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

    def test_a_maximum_that_is_none(self, run_prepare):
        layers = "conv = spconv.SparseConv3d(3, 4, 3, bias=False)\nconv.max_voxels = 0\n"
        with pytest.raises(UserError) as caught:
            run_prepare(
                SPCONV + layers + "class Model(Net):\n    def __init__(self):\n        super().__init__(conv)\n"
            )
        assert caught.value.code == "bad_max_voxels"
        assert "layers.0" in caught.value.message

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

    def test_spconv_itself_runs_in_one_thread(self, run_prepare, monkeypatch):
        """Its threads add to one row at once, so that what torch gives would now and then be wrong."""
        from spconv.pytorch import ops

        seen, original = [], ops.indice_conv

        def counted(*args, **kwargs):
            seen.append(torch.get_num_threads())
            return original(*args, **kwargs)

        monkeypatch.setattr("spconv.pytorch.functional.ops.indice_conv", counted)
        threads = torch.get_num_threads()
        torch.set_num_threads(2)
        try:
            model = "class Model(Net):\n    def __init__(self):\n        super().__init__(spconv.SubMConv3d(3, 4, 3, bias=False))\n"
            run_prepare(SPCONV + model)
            assert torch.get_num_threads() == 2
        finally:
            torch.set_num_threads(threads)
        assert set(seen) == {1}

    def test_spconv_is_itself_again_afterwards(self, run_prepare):
        from spconv.pytorch import conv, core

        before = conv.SparseConvolutionBase._conv_forward, core.SparseConvTensor.dense
        model = "class Model(Net):\n    def __init__(self):\n        super().__init__(spconv.SubMConv3d(3, 4, 3, bias=False))\n"
        run_prepare(SPCONV + model)
        assert (conv.SparseConvolutionBase._conv_forward, core.SparseConvTensor.dense) == before


TORCHVISION = """
if not hasattr(torch.ops.torchvision, "deform_conv2d"):
    # The schema of torchvision, with another's arithmetic: its compiled part need not be here.
    from ytk_client.frontend.catalogue import dense

    LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
    LIBRARY.define(
        "deform_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, SymInt stride_w, "
        "SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, SymInt offset_groups, bool use_mask) -> Tensor"
    )
    LIBRARY.define(
        "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
        "int sampling_ratio, bool aligned) -> Tensor"
    )

    def deform(x, w, offset, mask, bias, sh, sw, ph, pw, dh, dw, groups, offset_groups, use_mask):
        mask = mask if use_mask else torch.ones(1, 1, 1, 1)
        return dense.deform_conv2d(x, offset, w, bias, mask, (sh, sw), (ph, pw), (dh, dw), groups, offset_groups, use_mask)

    def align(x, rois, scale, height, width, ratio, aligned):
        return dense.roi_align(x, rois, (height, width), ratio, aligned, scale)

    LIBRARY.impl("deform_conv2d", deform, "CPU")
    LIBRARY.impl("roi_align", align, "CPU")
    torch.library.register_fake("torchvision::deform_conv2d", lambda x, w, o, *_: x.new_empty(x.shape[0], w.shape[0], *o.shape[2:]))
    torch.library.register_fake("torchvision::roi_align", lambda x, r, s, h, w, *_: x.new_empty(r.shape[0], x.shape[1], h, w))
"""


class TestOperatorsOfTorchvision:
    def test_deformable_convolution_with_and_without_mask(self, run_prepare):
        report, out = run_prepare(
            TORCHVISION
            + """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.offset, self.mask = nn.Conv2d(4, 18, 3, padding=1), nn.Conv2d(4, 9, 3, padding=1)
        self.first, self.second = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 6, 3, padding=1)

    def forward(self, x):
        offset = self.offset(x)
        one = [1, 1, 1, 1, 1, 1, 1, 1]
        x = torch.ops.torchvision.deform_conv2d(x, self.first.weight, offset, self.mask(x).sigmoid(), self.first.bias, *one, True)
        return torch.ops.torchvision.deform_conv2d(
            x, self.second.weight, offset, torch.zeros(x.shape[0], 1), self.second.bias, *one, False
        )

def get_fwd_args():
    return (torch.randn(2, 4, 6, 5),)
"""
        )
        [row] = report.rows
        assert (row.placeholder, row.has_plugin, row.sites) == ("ytk_catalogue::DeformConv2d", True, 2)
        first, second = nodes_of(out)
        assert (first.attributes["use_mask"], second.attributes["use_mask"]) == ([1], [0])
        assert first.attributes["padding"] == [1, 1]
        assert [len(each.dims) for each in second.inputs] == [4, 4, 4, 1, 4]

    def test_roi_align_of_two_sizes(self, run_prepare):
        report, out = run_prepare(
            TORCHVISION
            + """
class Model(nn.Module):
    def forward(self, x, rois):
        fine = torch.ops.torchvision.roi_align(x, rois, 0.5, 4, 4, 2, True)
        also = torch.ops.torchvision.roi_align(x, rois, 0.25, 4, 4, 0, False)
        return fine + also, torch.ops.torchvision.roi_align(x, rois, 0.5, 2, 3, 2, True)

def get_fwd_args():
    return torch.randn(1, 3, 8, 8), torch.tensor([[0.0, 1, 1, 9, 9], [0, 2, 3, 14, 12]])
""",
            samples=1,
        )
        assert [(row.name, row.sites) for row in report.rows] == [("RoiAlignPlugin", 2), ("RoiAlignPlugin_1", 1)]
        assert [node.attributes["spatial_scale"][0] for node in nodes_of(out)] == [0.5, 0.25, 0.5]
        assert nodes_of(out)[2].outputs[0].dims == (2, 3, 2, 3)


ATTENTION = """
def ms_deform_attn_core_pytorch(value, value_spatial_shapes, sampling_locations, attention_weights):
    N_, S_, M_, D_ = value.shape
    _, Lq_, M_, L_, P_, _ = sampling_locations.shape
    value_list = value.split([int(H_ * W_) for H_, W_ in value_spatial_shapes], dim=1)
    sampling_grids = 2 * sampling_locations - 1
    sampling_value_list = []
    for lid_, (H_, W_) in enumerate(value_spatial_shapes):
        value_l_ = value_list[lid_].flatten(2).transpose(1, 2).reshape(N_ * M_, D_, int(H_), int(W_))
        grid = sampling_grids[:, :, :, lid_].transpose(1, 2).flatten(0, 1)
        sampling_value_list.append(F.grid_sample(value_l_, grid, mode="bilinear", padding_mode="zeros", align_corners=False))
    attention_weights = attention_weights.transpose(1, 2).reshape(N_ * M_, 1, Lq_, L_ * P_)
    output = (torch.stack(sampling_value_list, dim=-2).flatten(-2) * attention_weights).sum(-1).view(N_, M_ * D_, Lq_)
    return SCALE * output.transpose(1, 2).contiguous()

class Model(nn.Module):
    def forward(self, value, locations, weights):
        shapes = torch.as_tensor([(4, 3), (2, 2)], dtype=torch.long)
        return ms_deform_attn_core_pytorch(value, shapes, locations.sigmoid(), weights.flatten(3).softmax(-1).view_as(weights))

def get_fwd_args():
    return torch.randn(1, 16, 2, 4), torch.randn(1, 5, 2, 2, 3, 2), torch.randn(1, 5, 2, 2, 3)
"""


class TestKnownCode:
    def test_the_attention_of_deformable_detr(self, run_prepare):
        report, out = run_prepare("SCALE = 1\n" + ATTENTION)
        assert [row.placeholder for row in report.rows] == ["ytk_catalogue::MultiScaleDeformAttn"]
        [node] = nodes_of(out)
        assert [str(each.dtype) for each in node.inputs] == ["float32", "int32", "float32", "float32"]

    def test_a_function_of_that_name_that_computes_something_else_is_found(self, run_prepare):
        with pytest.raises(UserError) as caught:
            run_prepare("SCALE = 2\n" + ATTENTION)
        assert caught.value.code == "export_differs"

    def test_the_scatter_of_point_pillars(self, run_prepare):
        report, out = run_prepare(
            """
class PointPillarsScatter(nn.Module):
    def __init__(self, in_channels, output_shape):
        super().__init__()
        self.ny, self.nx, self.in_channels = *output_shape, in_channels

    def forward(self, voxel_features, coors, batch_size=None):
        canvases = []
        for batch in range(batch_size):
            canvas = torch.zeros(self.in_channels, self.nx * self.ny, dtype=voxel_features.dtype)
            mine = coors[coors[:, 0] == batch]
            canvas[:, (mine[:, 2] * self.nx + mine[:, 3]).long()] = voxel_features[coors[:, 0] == batch].t()
            canvases.append(canvas)
        return torch.stack(canvases, 0).view(batch_size, self.in_channels, self.ny, self.nx)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scatter, self.head = PointPillarsScatter(3, (6, 5)), nn.Conv2d(3, 2, 3)

    def forward(self, features, coordinates):
        return self.head(self.scatter(features.relu(), coordinates, 2))

def get_fwd_args():
    cells = torch.randperm(60, generator=torch.Generator().manual_seed(0))[:20]
    coordinates = torch.stack([cells // 30, torch.zeros_like(cells), cells % 30 // 5, cells % 5], 1)
    return torch.randn(20, 3), coordinates
"""
        )
        [row] = report.rows
        assert (row.name, row.has_plugin) == ("PillarScatter", True)
        assert nodes_of(out)[0].attributes["grid_size"] == [6, 5]
        assert nodes_of(out)[0].outputs[0].dims == (2, 3, 6, 5)

    def test_the_scatter_of_open_pcdet_and_the_attention_of_transformers(self, run_prepare):
        report, out = run_prepare(
            """
class PointPillarScatter(nn.Module):
    def __init__(self, features, nx, ny):
        super().__init__()
        self.num_bev_features, self.nx, self.ny = features, nx, ny

    def forward(self, batch_dict, **kwargs):
        canvas = torch.zeros(self.num_bev_features, self.nx * self.ny)
        coords = batch_dict["voxel_coords"]
        indices = coords[:, 1] + coords[:, 2] * self.nx + coords[:, 3]
        canvas[:, indices.long()] = batch_dict["pillar_features"].t()
        batch_dict["spatial_features"] = canvas.view(1, self.num_bev_features, self.ny, self.nx)
        return batch_dict

class MultiScaleDeformableAttention(nn.Module):
    def forward(self, value, value_spatial_shapes, value_spatial_shapes_list, level_start_index, sampling_locations, attention_weights, im2col_step):
        batch, _, heads, channels = value.shape
        queries, points = sampling_locations.shape[1], sampling_locations.shape[4]
        height, width = value_spatial_shapes_list[0]
        plane = value.flatten(2).transpose(1, 2).reshape(batch * heads, channels, height, width)
        grid = (2 * sampling_locations - 1)[:, :, :, 0].transpose(1, 2).flatten(0, 1)
        sampled = F.grid_sample(plane, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
        weights = attention_weights.transpose(1, 2).reshape(batch * heads, 1, queries, points)
        return (sampled * weights).sum(-1).view(batch, heads * channels, queries).transpose(1, 2)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scatter, self.attend = PointPillarScatter(4, 5, 6), MultiScaleDeformableAttention()

    def forward(self, features, coordinates, locations, weights):
        view = self.scatter({"pillar_features": features, "voxel_coords": coordinates, "batch_size": 1})["spatial_features"]
        value = view.flatten(2).transpose(1, 2).reshape(1, 30, 2, 2)
        shapes = torch.tensor([[6, 5]])
        return self.attend(value, shapes, [(6, 5)], torch.tensor([0]), locations, weights, 64)

def get_fwd_args():
    cells = torch.randperm(30, generator=torch.Generator().manual_seed(0))[:20]
    coordinates = torch.stack([torch.zeros_like(cells), torch.zeros_like(cells), cells // 5, cells % 5], 1)
    return torch.randn(20, 4), coordinates, torch.rand(1, 7, 2, 1, 3, 2), torch.rand(1, 7, 2, 1, 3)
"""
        )
        assert [row.name for row in report.rows] == ["PillarScatter", "MultiScaleDeformAttn"]
        assert nodes_of(out)[0].attributes["grid_size"] == [6, 5]

    def test_boxes_by_the_function_that_we_offer(self, run_prepare):
        report, out = run_prepare(
            """
from ytk_client.catalogue import rotated_nms

class Model(nn.Module):
    def forward(self, boxes, scores):
        kept, count = rotated_nms(boxes, scores.sigmoid(), 6, 0.3)
        return boxes[kept.clamp(min=0).long()], count

def get_fwd_args():
    return torch.rand(12, 5) * 4, torch.randn(12)
"""
        )
        assert [row.placeholder for row in report.rows] == ["ytk_catalogue::RotatedNms"]
        assert [each.dims for each in nodes_of(out)[0].outputs] == [(6,), (1,)]
        assert nodes_of(out)[0].attributes["iou_threshold"] == [pytest.approx(0.3)]


class TestBesideOthers:
    def test_shipped_rows_and_rows_to_act_on(self, run_prepare):
        report, out = run_prepare(
            """
from ytk_client.catalogue import pillar_scatter

class Model(nn.Module):
    def forward(self, features, coordinates):
        view = pillar_scatter(features, coordinates, (4, 4))
        return F.fold(view.flatten(2).repeat(1, 2, 1)[:, :, :9], (4, 4), kernel_size=2)

def get_fwd_args():
    coordinates = torch.tensor([(0, 0, y, x) for y in range(4) for x in range(4)], dtype=torch.int32)
    return torch.randn(16, 2), coordinates
"""
        )
        assert [(row.placeholder, row.has_plugin) for row in report.rows] == [
            ("ytk_catalogue::PillarScatter", True),
            ("yasp::Col2im", False),
        ]
        assert [row.name for row in report.blocking] == ["Col2im"]
        assert [each.proposed_op for each in report.candidates] == ["yasp::Col2im"]
        assert (out / "plugin_candidates" / "Col2im.pt2").is_file()

    def test_a_dry_run_counts_what_is_shipped_as_covered(self, write_model, tmp_path):
        model = write_model(
            """
from ytk_client.catalogue import pillar_scatter

class Model(nn.Module):
    def forward(self, features, coordinates):
        return pillar_scatter(features.relu(), coordinates, (4, 4)) + 1

def get_fwd_args():
    return torch.randn(5, 2), torch.tensor([(0, 0, y, y) for y in (0, 1, 2, 3, -1)], dtype=torch.int32)
"""
        )
        names = {f"{kind}_out": tmp_path / f"model.{kind}" for kind in ("onnx", "npz", "reference")}
        found = dry_run(PrepareRequest(model=model, samples=1, **names))
        assert found.coverage_percent == 100.0
        assert found.refused == ()
        [carved] = found.carved
        assert (carved.placeholder, carved.has_plugin, carved.nodes) == ("ytk_catalogue::PillarScatter", True, 1)
