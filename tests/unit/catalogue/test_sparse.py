"""Sparse convolution: kernels against the reference, the reference against dense convolution and against spconv."""

from __future__ import annotations

import importlib.util
import itertools

import pytest
import torch
from torch.nn import functional as F

import ytk_client.frontend.catalogue.operators  # noqa: F401 - registers the operators
from ytk_client.frontend.catalogue import sparse
from ytk_core.catalogue import by_operator
from ytk_core.errors import UserError

from fakes.catalogue_calls import run_plugin

pytestmark = pytest.mark.torch
SHAPE, BATCH = [5, 9, 8], 2
OVERFLOW = 10
needs_spconv = pytest.mark.skipif(
    importlib.util.find_spec("spconv") is None, reason="spconv is not installed: pip install 'yasp-toolkit[spconv]'"
)


def voxels(count: int, channels: int = 3, *, padding: int = 0, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Features and indices of that many different places in random order, padding rows among them."""
    generator = torch.Generator().manual_seed(seed)
    cells = torch.randperm(BATCH * SHAPE[0] * SHAPE[1] * SHAPE[2], generator=generator)[:count]
    parts = []
    for extent in (SHAPE[2], SHAPE[1], SHAPE[0]):
        parts.insert(0, cells % extent)
        cells = cells // extent
    indices = torch.cat([torch.stack([cells, *parts], 1), torch.full((padding, 4), -1)]).int()
    order = torch.randperm(count + padding, generator=generator)
    return torch.randn(count + padding, channels, generator=generator), indices[order]


def weights(kernel: list[int], channels: int = 3, out: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    volume = kernel[0] * kernel[1] * kernel[2]
    return torch.randn(volume, channels, out, generator=generator), torch.randn(out, generator=generator)


def window(kernel=(3, 3, 3), stride=(2, 2, 2), padding=(1, 1, 1), dilation=(1, 1, 1), **more) -> dict[str, object]:
    return {
        "spatial_shape": SHAPE,
        "batch_size": BATCH,
        "kernel_size": list(kernel),
        "stride": list(stride),
        "padding": list(padding),
        "dilation": list(dilation),
        **more,
    }


def submanifold(kernel=(3, 3, 3), dilation=(1, 1, 1)) -> dict[str, object]:
    return {"spatial_shape": SHAPE, "batch_size": BATCH, "kernel_size": list(kernel), "dilation": list(dilation)}


WINDOWS = [
    window(),
    window((3, 1, 2), (1, 2, 1), (0, 0, 1)),
    window((3, 3, 3), (1, 1, 1), (2, 1, 0), (2, 1, 2)),
    window((1, 1, 1), (1, 1, 1), (0, 0, 0)),
    window((2, 2, 2), (2, 2, 2), (0, 0, 0)),
]


def active_count(indices: torch.Tensor, attributes: dict) -> int:
    """The number of active outputs, counted on a dense grid."""
    ones = sparse.to_dense(torch.ones(len(indices), 1), indices, SHAPE, BATCH)
    kernel = torch.ones(1, 1, *attributes["kernel_size"])
    return int((dense_conv(ones, kernel, attributes) > 0).sum())


def dense_conv(x: torch.Tensor, kernel: torch.Tensor, attributes: dict) -> torch.Tensor:
    return F.conv3d(
        x, kernel, stride=attributes["stride"], padding=attributes["padding"], dilation=attributes["dilation"]
    )


class TestKernels:
    @pytest.mark.parametrize("kernel", [(3, 3, 3), (1, 3, 5), (1, 1, 1)])
    @pytest.mark.parametrize("threads", [1, 3])
    def test_submanifold(self, agree, kernel, threads):
        features, indices = voxels(60, padding=5)
        agree("sparse_subm_conv3d", [features, indices, *weights(list(kernel))], submanifold(kernel), threads)

    @pytest.mark.parametrize("threads", [1, 2])
    def test_many_channels(self, agree, threads):
        # Whole vectors of output channels and a rest, more rows than one thread takes at a time.
        features, indices = voxels(500, channels=20, padding=7)
        tensors = [features, indices, *weights([3, 3, 3], channels=20, out=37)]
        agree("sparse_subm_conv3d", tensors, submanifold(), threads)
        got = agree("sparse_conv3d", tensors, window(max_voxels=720), threads)
        back = [got[0], got[1], indices, *weights([3, 3, 3], channels=37, out=16)]
        agree("sparse_inverse_conv3d", back, window(), threads)

    def test_submanifold_with_dilation(self, agree):
        agree("sparse_subm_conv3d", [*voxels(200), *weights([3, 3, 3])], submanifold(dilation=(1, 2, 3)))

    @pytest.mark.parametrize("attributes", WINDOWS)
    def test_strided_and_back(self, agree, attributes):
        features, indices = voxels(70, padding=3)
        kernel = attributes["kernel_size"]
        count = active_count(indices, attributes)
        # Exactly at the maximum, and with room: padding rows follow the active ones.
        for maximum in (count, 720) if attributes is WINDOWS[0] else (720,):
            got = agree("sparse_conv3d", [features, indices, *weights(kernel)], {**attributes, "max_voxels": maximum})
            assert int(got[2]) == count
            assert (got[1][count:] == -1).all()
            assert (got[0][count:] == 0).all()
        agree("sparse_inverse_conv3d", [got[0], got[1], indices, *weights(kernel, channels=4, out=2)], attributes)

    def test_to_dense(self, agree):
        agree("sparse_to_dense", list(voxels(40, padding=4)), {"spatial_shape": SHAPE, "batch_size": BATCH})

    def test_no_voxel_at_all(self, agree):
        features, indices = voxels(0, padding=6)
        result = agree("sparse_subm_conv3d", [features, indices, *weights([3, 3, 3])], submanifold())
        assert (result[0] == 0).all()
        result = agree("sparse_conv3d", [features, indices, *weights([3, 3, 3])], window(max_voxels=720))
        assert int(result[2]) == 0
        assert (result[1] == -1).all()
        result = agree("sparse_to_dense", [features, indices], {"spatial_shape": SHAPE, "batch_size": BATCH})
        assert (result[0] == 0).all()

    def test_every_place_active(self, agree):
        features, indices = voxels(BATCH * SHAPE[0] * SHAPE[1] * SHAPE[2])
        agree("sparse_subm_conv3d", [features, indices, *weights([3, 3, 3])], submanifold())

    def test_of_rows_at_one_place_the_last_counts(self, agree):
        features, indices = voxels(30)
        doubled = [torch.cat([features, -features]), torch.cat([indices, indices])]
        grid = {"spatial_shape": SHAPE, "batch_size": BATCH}
        [twice] = agree("sparse_to_dense", doubled, grid)
        [last] = agree("sparse_to_dense", [-features, indices], grid)
        assert torch.equal(twice, last)
        agree("sparse_subm_conv3d", [*doubled, *weights([3, 3, 3])], submanifold())

    def test_places_outside_take_no_part(self, agree):
        features, indices = voxels(30)
        for axis, extent in enumerate((BATCH, *SHAPE)):
            indices[axis, axis] = extent
        indices[5, 2] = -3
        agree("sparse_to_dense", [features, indices], {"spatial_shape": SHAPE, "batch_size": BATCH})
        agree("sparse_subm_conv3d", [features, indices, *weights([3, 3, 3])], submanifold())


class TestOverflow:
    def test_the_kernel_says_so(self, load):
        features, indices = voxels(70)
        count = active_count(indices, window())
        entry = by_operator("sparse_conv3d")
        shapes = [(count - 1, 4), (count - 1, 4), (1,)]
        tensors = [features, indices, *weights([3, 3, 3])]
        status, outputs = run_plugin(load, entry, tensors, window(max_voxels=count - 1), shapes)
        assert status == OVERFLOW
        assert int(outputs[2]) == count

    def test_prepare_says_what_to_declare(self):
        features, indices = voxels(70)
        attributes = window(max_voxels=20)
        with pytest.raises(UserError, match=f"{active_count(indices, attributes)} active voxels") as caught:
            sparse.conv3d(features, indices, *weights([3, 3, 3]), **attributes)
        assert caught.value.code == "voxel_overflow"
        assert "max_voxels" in caught.value.hint


class TestRefused:
    @pytest.mark.parametrize(
        "change",
        [{"kernel_size": [3, 3]}, {"dilation": [0, 1, 1]}, {"spatial_shape": [1 << 15, 1 << 15, 4]}, {"batch_size": 0}],
    )
    def test_attributes(self, load, change):
        entry = by_operator("sparse_subm_conv3d")
        tensors = [*voxels(4), *weights([3, 3, 3])]
        assert run_plugin(load, entry, tensors, {**submanifold(), **change}, [(4, 4)])[0] == 4

    def test_tensors_that_do_not_fit(self, load):
        entry = by_operator("sparse_subm_conv3d")
        features, indices = voxels(4)
        weight, bias = weights([3, 3, 3])
        for tensors in ([features[:, :2], indices, weight, bias], [features, indices, weight[:8], bias]):
            assert run_plugin(load, entry, [t.contiguous() for t in tensors], submanifold(), [(4, 4)])[0] == 3


class TestReference:
    """The reference is right: a dense convolution at the active places."""

    def test_submanifold(self):
        features, indices = voxels(90)
        weight, bias = weights([3, 3, 3])
        got = sparse.subm_conv3d(features, indices, weight, bias, **submanifold())
        x = sparse.to_dense(features, indices, SHAPE, BATCH)
        kernel = weight.reshape(3, 3, 3, 3, 4).permute(4, 3, 0, 1, 2)
        want = F.conv3d(x, kernel, bias, padding=1)
        b, z, y, x = indices.long().T
        torch.testing.assert_close(got, want[b, :, z, y, x], rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("attributes", WINDOWS)
    def test_strided(self, attributes):
        features, indices = voxels(60, padding=2)
        sizes = attributes["kernel_size"]
        weight, _ = weights(sizes)
        count = active_count(indices, attributes)
        got, places, active = sparse.conv3d(
            features, indices, weight, torch.zeros(4), **attributes, max_voxels=count + 2
        )
        kernel = weight.reshape(*sizes, 3, 4).permute(4, 3, 0, 1, 2)
        want = dense_conv(sparse.to_dense(features, indices, SHAPE, BATCH), kernel, attributes)
        assert int(active) == count
        torch.testing.assert_close(
            sparse.to_dense(got, places, list(want.shape[2:]), BATCH), want, rtol=1e-4, atol=1e-5
        )

    def test_to_dense(self):
        features, indices = voxels(20, padding=3)
        want = torch.zeros(BATCH, 3, *SHAPE)
        for feature, place in itertools.compress(zip(features, indices.tolist(), strict=True), indices[:, 0] >= 0):
            want[place[0], :, place[1], place[2], place[3]] = feature
        assert torch.equal(sparse.to_dense(features, indices, SHAPE, BATCH), want)


@needs_spconv
@pytest.mark.filterwarnings("ignore")
class TestAgainstSpconv:
    @pytest.fixture(autouse=True)
    def one_thread(self):
        """spconv's own threads add to one row at once: now and then some of its elements are wrong."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        yield
        torch.set_num_threads(threads)

    # Not the pointwise one: spconv multiplies it as a matrix, with no pairs of places and so without an inverse.
    @pytest.mark.parametrize("attributes", [each for each in WINDOWS if each["kernel_size"] != [1, 1, 1]])
    def test_strided_and_inverse(self, attributes):
        import spconv.pytorch as spconv

        features, indices = voxels(60)
        sizes = attributes["kernel_size"]
        torch.manual_seed(0)
        options = {key: attributes[key] for key in ("stride", "padding", "dilation")}
        conv = spconv.SparseConv3d(3, 4, sizes, **options, bias=False, indice_key="a")
        inverse = spconv.SparseInverseConv3d(4, 2, sizes, indice_key="a", bias=False)
        with torch.no_grad():
            x = spconv.SparseConvTensor(features, indices, SHAPE, BATCH)
            down = conv(x)
            weight = conv.weight.permute(1, 2, 3, 4, 0).reshape(-1, 3, 4)
            got, places, active = sparse.conv3d(
                features, indices, weight, torch.zeros(4), **attributes, max_voxels=len(down.features) + 1
            )
            want = down.dense()
            torch.testing.assert_close(sparse.to_dense(got, places, list(want.shape[2:]), BATCH), want)
            assert int(active) == len(down.features)
            back = inverse(down).features
            weight = inverse.weight.permute(1, 2, 3, 4, 0).reshape(-1, 4, 2)
            got = sparse.inverse_conv3d(got, places, indices, weight, torch.zeros(2), **attributes)
            torch.testing.assert_close(got, back, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("options", [{}, {"dilation": 2}, {"bias": True}])
    def test_submanifold(self, options):
        import spconv.pytorch as spconv

        features, indices = voxels(150)
        torch.manual_seed(0)
        conv = spconv.SubMConv3d(3, 4, 3, **{"bias": False, **options})
        with torch.no_grad():
            if conv.bias is not None:
                conv.bias.normal_()
            want = conv(spconv.SparseConvTensor(features, indices, SHAPE, BATCH)).features
            weight = conv.weight.permute(1, 2, 3, 4, 0).reshape(-1, 3, 4)
            bias = torch.zeros(4) if conv.bias is None else conv.bias
            dilation = (options.get("dilation", 1),) * 3
            got = sparse.subm_conv3d(features, indices, weight, bias, **submanifold(dilation=dilation))
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
