"""Scatter, deformable convolution and attention, RoIAlign: kernels against references, references against others' code."""

from __future__ import annotations

import onnx
import pytest
import torch
from torch.nn import functional as F

from ytk_client.frontend.catalogue import dense, sparse
from ytk_core.catalogue import by_operator

from fakes.catalogue_calls import run_plugin

pytestmark = pytest.mark.torch
BAD_SHAPE, BAD_ATTRIBUTE = 3, 4


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


GRID = {"grid_size": [7, 5], "batch_size": 2}


class TestPillarScatter:
    def pillars(self, count: int = 20) -> list[torch.Tensor]:
        cells = torch.randperm(70, generator=torch.Generator().manual_seed(1))[:count]
        places = torch.stack([cells // 35, torch.zeros_like(cells), cells % 35 // 5, cells % 5], 1).int()
        return [noise(count, 6), places]

    def test_against_assignments(self, agree):
        features, places = self.pillars()
        places[3] = -1
        places[4] = places[9]  # row 9 comes later
        places[5, 1] = 1  # not on the layer
        want = torch.zeros(2, 6, 7, 5)
        for feature, (b, z, y, x) in zip(features, places.tolist(), strict=True):
            if b >= 0 and z == 0:
                want[b, :, y, x] = feature
        [got] = agree("pillar_scatter", [features, places], GRID, 2)
        assert torch.equal(got, want)

    def test_empty_and_full(self, agree):
        features, places = self.pillars(70)
        agree("pillar_scatter", [features, places], GRID)
        [got] = agree("pillar_scatter", [features, torch.full_like(places, -1)], GRID)
        assert (got == 0).all()


def deform(stride=(1, 1), padding=(1, 1), dilation=(1, 1), groups=1, offset_groups=1, use_mask=1) -> dict[str, object]:
    return {
        "stride": list(stride),
        "padding": list(padding),
        "dilation": list(dilation),
        "groups": groups,
        "offset_groups": offset_groups,
        "use_mask": use_mask,
    }


def deform_tensors(attributes, kernel=(3, 3), channels=4, out=6, size=(8, 7), spread=1.5) -> list[torch.Tensor]:
    spans = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, p, d, k, s in zip(
            size, attributes["padding"], attributes["dilation"], kernel, attributes["stride"], strict=True
        )
    ]
    volume = kernel[0] * kernel[1] * attributes["offset_groups"]
    mask = noise(2, volume, *spans, seed=4).sigmoid() if attributes["use_mask"] else torch.ones(1, 1, 1, 1)
    return [
        noise(2, channels, *size),
        noise(2, 2 * volume, *spans, seed=1) * spread,
        noise(out, channels // attributes["groups"], *kernel, seed=2),
        noise(out, seed=3),
        mask,
    ]


DEFORMATIONS = [
    (deform(), {}),
    (deform((2, 1), (0, 2), (1, 2), groups=2, offset_groups=2), {"kernel": (2, 3)}),
    (deform(groups=4, offset_groups=4, use_mask=0), {"out": 4}),
    (deform(), {"spread": 40.0}),  # most samples are outside
    (deform(padding=(0, 0)), {"kernel": (1, 1), "size": (1, 1)}),
]


class TestDeformConv2d:
    @pytest.mark.parametrize(("attributes", "sizes"), DEFORMATIONS)
    def test_kernel(self, agree, attributes, sizes):
        agree("deform_conv2d", deform_tensors(attributes, **sizes), attributes, 2)

    def test_an_offset_that_is_no_number_is_outside(self, load):
        tensors = deform_tensors(deform())
        tensors[1][0, 0], tensors[1][0, 3], tensors[1][1, 4] = float("nan"), float("inf"), -3e38
        status, [got] = run_plugin(load, by_operator("deform_conv2d"), tensors, deform(), [(2, 6, 8, 7)])
        assert status == 0
        tensors[1] = tensors[1].nan_to_num(1e6, 1e6).clamp(-1e6, 1e6)
        torch.testing.assert_close(got, dense.deform_conv2d(*tensors, **deform()), rtol=1e-3, atol=1e-5)

    def test_without_offsets_it_is_a_convolution(self):
        attributes = deform((2, 1), (1, 0), (1, 2), groups=2)
        image, offset, weight, bias, mask = deform_tensors(attributes)
        got = dense.deform_conv2d(image, offset * 0, weight, bias, mask * 0 + 1, **attributes)
        want = F.conv2d(image, weight, bias, stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize(("attributes", "sizes"), DEFORMATIONS[:4])
    def test_reference_against_onnx(self, attributes, sizes):
        from onnx.reference import ReferenceEvaluator

        tensors = deform_tensors(attributes, **sizes)
        names = ["X", "W", "offset", "B", *(["mask"] if attributes["use_mask"] else [])]
        node = onnx.helper.make_node(
            "DeformConv",
            names,
            ["Y"],
            kernel_shape=list(tensors[2].shape[2:]),
            strides=attributes["stride"],
            pads=[*attributes["padding"], *attributes["padding"]],
            dilations=attributes["dilation"],
            group=attributes["groups"],
            offset_group=attributes["offset_groups"],
        )
        values = dict(zip(("X", "offset", "W", "B", "mask"), (t.numpy() for t in tensors), strict=True))
        infos = [onnx.helper.make_tensor_value_info(name, 1, values[name].shape) for name in names]
        outs = [onnx.helper.make_tensor_value_info("Y", 1, None)]
        graph = onnx.helper.make_graph([node], "g", infos, outs)
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 19)])
        [want] = ReferenceEvaluator(model).run(None, {name: values[name] for name in names})
        got = dense.deform_conv2d(*tensors, **attributes)
        torch.testing.assert_close(got, torch.from_numpy(want).to(got.dtype), rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize(
        ("change", "status"),
        [({"stride": [0, 1]}, BAD_ATTRIBUTE), ({"groups": 3}, BAD_SHAPE), ({"padding": [0, 0]}, BAD_SHAPE)],
    )
    def test_what_does_not_fit_is_refused(self, load, change, status):
        tensors = deform_tensors(deform())
        entry = by_operator("deform_conv2d")
        assert run_plugin(load, entry, tensors, {**deform(), **change}, [(2, 6, 8, 7)])[0] == status


def attention(levels=((6, 4), (3, 2), (1, 1)), queries=9, heads=2, channels=3, points=2) -> list[torch.Tensor]:
    shapes = torch.tensor(levels, dtype=torch.int32)
    length = int((shapes[:, 0] * shapes[:, 1]).sum())
    weights = noise(2, queries, heads, len(levels), points, seed=2).flatten(3).softmax(-1)
    return [
        noise(2, length, heads, channels),
        shapes,
        # A little outside of the picture too.
        torch.rand(2, queries, heads, len(levels), points, 2, generator=torch.Generator().manual_seed(1)) * 1.4 - 0.2,
        weights.reshape(2, queries, heads, len(levels), points),
    ]


class TestMultiScaleDeformAttn:
    @pytest.mark.parametrize("sizes", [{}, {"levels": ((5, 5),), "points": 1}, {"queries": 1, "heads": 1}])
    def test_kernel(self, agree, sizes):
        agree("multi_scale_deform_attn", attention(**sizes), {}, 2)

    def test_reference_against_grid_sample(self):
        value, shapes, locations, weights = attention()
        batch, _, heads, channels = value.shape
        queries = locations.shape[1]
        parts, values = [], value.split([int(h * w) for h, w in shapes], 1)
        for level, (height, width) in enumerate(shapes.tolist()):
            plane = values[level].flatten(2).transpose(1, 2).reshape(batch * heads, channels, height, width)
            grid = (2 * locations - 1)[:, :, :, level].transpose(1, 2).flatten(0, 1)
            parts.append(F.grid_sample(plane, grid, mode="bilinear", padding_mode="zeros", align_corners=False))
        share = weights.transpose(1, 2).reshape(batch * heads, 1, queries, -1)
        want = (torch.stack(parts, -2).flatten(-2) * share).sum(-1).view(batch, heads * channels, queries)
        got = dense.multi_scale_deform_attn(value, shapes, locations, weights)
        torch.testing.assert_close(got, want.transpose(1, 2), rtol=1e-4, atol=1e-5)

    def test_levels_that_are_not_the_value_are_refused(self, load):
        tensors = attention()
        tensors[1][0, 0] = 7
        entry = by_operator("multi_scale_deform_attn")
        assert run_plugin(load, entry, tensors, {}, [(2, 9, 6)])[0] == BAD_SHAPE


def roi(size=(3, 2), ratio=2, aligned=1, scale=0.5) -> dict[str, object]:
    return {"output_size": list(size), "sampling_ratio": ratio, "aligned": aligned, "spatial_scale": scale}


ROIS = torch.tensor(
    [
        [0, 1.0, 2.0, 11.0, 9.5],
        [1, 0.0, 0.0, 16.0, 14.0],
        [1, -6.0, -3.0, 4.0, 40.0],  # over the edges
        [0, 5.0, 5.0, 5.2, 5.1],  # smaller than a pixel
        [0, 30.0, 30.0, 40.0, 44.0],  # outside
    ]
)


class TestRoiAlign:
    @pytest.mark.parametrize(
        "attributes", [roi(), roi(ratio=0, aligned=0), roi(ratio=0, scale=1.0), roi((1, 3), 1, 0, 0.25)]
    )
    def test_kernel(self, agree, attributes):
        agree("roi_align", [noise(2, 3, 7, 8), ROIS], attributes, 2)

    def test_a_roi_of_no_image_gives_nothing(self, agree):
        rois = ROIS.clone()
        rois[:, 0] = torch.tensor([-1.0, 2.0, 0.0, 99.0, 1.0])
        [got] = agree("roi_align", [noise(2, 3, 7, 8), rois], roi())
        assert (got[[0, 1, 3]] == 0).all()

    def test_a_roi_that_is_no_number_ends(self, load):
        rois = ROIS.clone()
        rois[0, 1], rois[1, 3], rois[2, 4] = float("nan"), float("inf"), 1e30
        entry = by_operator("roi_align")
        for ratio in (0, 2):
            status, _ = run_plugin(load, entry, [noise(2, 3, 7, 8), rois], roi(ratio=ratio), [(5, 3, 3, 2)])
            assert status == 0

    @pytest.mark.parametrize("attributes", [roi(), roi((1, 4), 3, 0), roi((2, 2), 0, 1, 1.0)])
    def test_reference_against_onnx_runtime(self, attributes):
        runtime = pytest.importorskip("onnxruntime")
        node = onnx.helper.make_node(
            "RoiAlign",
            ["X", "rois", "batch"],
            ["Y"],
            coordinate_transformation_mode="half_pixel" if attributes["aligned"] else "output_half_pixel",
            output_height=attributes["output_size"][0],
            output_width=attributes["output_size"][1],
            sampling_ratio=attributes["sampling_ratio"],
            spatial_scale=attributes["spatial_scale"],
        )
        features = noise(2, 3, 7, 8)
        infos = [
            onnx.helper.make_tensor_value_info("X", 1, list(features.shape)),
            onnx.helper.make_tensor_value_info("rois", 1, [5, 4]),
            onnx.helper.make_tensor_value_info("batch", 7, [5]),
        ]
        outs = [onnx.helper.make_tensor_value_info("Y", 1, None)]
        graph = onnx.helper.make_graph([node], "g", infos, outs)
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 16)], ir_version=8)
        session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        feeds = {"X": features.numpy(), "rois": ROIS[:, 1:].numpy(), "batch": ROIS[:, 0].long().numpy()}
        [want] = session.run(None, feeds)
        got = dense.roi_align(features, ROIS, **attributes)
        torch.testing.assert_close(got, torch.from_numpy(want), rtol=1e-4, atol=1e-5)


def test_pillars_are_a_layer_of_a_sparse_grid():
    places = torch.tensor([[0, 0, 1, 2]], dtype=torch.int32)
    got = sparse.pillar_scatter(torch.ones(1, 2), places, [3, 4], 1)
    assert got.sum() == 2
    assert got[0, 0, 1, 2] == 1
