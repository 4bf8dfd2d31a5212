"""What a rendered table does when an engine calls it: right results, and the right refusal for every wrong call."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from ytk_core.abi import ctypes_abi as abi

from fakes import kernel_bundles as bundles
from fakes.plugin_calls import aligned, as_aligned, context, launch, workspace_bytes

OK, ARITY, DTYPE, SHAPE, ATTRIBUTE, VARIANT, WORKSPACE, DEVICE, UNSUPPORTED, ALIGNMENT = range(10)


def fold_reference(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """nn.Fold by its definition: every block is added where it came from."""
    batch, kernel, pad, out = x.shape[0], bundles.FOLD["kernel"], bundles.FOLD["padding"], bundles.FOLD["out"]
    y = np.zeros((batch, bundles.FOLD["channels"], out + 2 * pad, out + 2 * pad))
    blocks = x.reshape(batch, bundles.FOLD["channels"], kernel, kernel, out, out)
    for i in range(kernel):
        for j in range(kernel):
            y[:, :, i : i + out, j : j + out] += blocks[:, :, i, j]
    return y[:, :, pad : pad + out, pad : pad + out]


def fold_arrays(batch: int = 3) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    x = as_aligned(np.random.default_rng(0).standard_normal((batch, 36, 64)), np.float32)
    return x, aligned((batch, 4, 8, 8), np.float32)


@pytest.fixture(scope="module")
def fold(load) -> abi.Table:
    return load(bundles.fold())


@pytest.fixture(scope="module")
def split(load) -> abi.Table:
    return load(bundles.split())


@pytest.fixture(scope="module")
def gather(load) -> abi.Table:
    return load(bundles.gather())


class TestResults:
    @pytest.mark.parametrize("threads", [1, 2])
    def test_fold_is_what_its_definition_says(self, fold, threads):
        x, y = fold_arrays()
        assert launch(fold, context(threads=threads), [x], [y]) == OK
        np.testing.assert_allclose(y, fold_reference(x), rtol=1e-5, atol=1e-6)

    def test_two_outputs_attribute_and_workspace(self, split):
        x = as_aligned(np.arange(12).reshape(2, 6), np.float32)
        left, right = aligned((2, 3), np.float32), aligned((2, 3), np.float32)
        attrs = abi.make_attrs({"scale": [2.0]})
        ctx = context(attrs=attrs, workspace=aligned((24,), np.uint8))
        assert workspace_bytes(split, ctx, [x], [left, right]) == 24
        assert launch(split, ctx, [x], [left, right]) == OK
        np.testing.assert_array_equal(np.hstack([left, right]), 2 * x)

    @pytest.mark.parametrize(("variant", "dtype"), [(0, np.float32), (1, np.float16)])
    def test_int64_input_in_each_variant(self, gather, variant, dtype):
        table = as_aligned(np.random.default_rng(1).standard_normal((5, 16)), dtype)
        index = as_aligned([4, 0, 4], np.int64)
        rows = aligned((3, 16), dtype)
        assert launch(gather, context(variant), [table, index], [rows]) == OK
        np.testing.assert_array_equal(rows, table[[4, 0, 4]])

    def test_the_kernels_own_status_comes_through(self, gather):
        table, rows = as_aligned(np.zeros((5, 16)), np.float32), aligned((1, 16), np.float32)
        assert launch(gather, context(), [table, as_aligned([5], np.int64)], [rows]) == SHAPE

    def test_nothing_to_compute_is_no_error(self, gather):
        table = as_aligned(np.zeros((5, 16)), np.float32)
        assert launch(gather, context(), [table, aligned((0,), np.int64)], [aligned((0, 16), np.float32)]) == OK


class TestShape:
    def test_dims_follow_the_expressions(self, fold):
        assert abi.call_shape(fold, 0, [[7, 36, 64]]) == (OK, [[7, 4, 8, 8]])

    def test_unknown_dims_stay_unknown(self, fold, gather):
        assert abi.call_shape(fold, 0, [[-1, -1, -1]]) == (OK, [[-1, -1, 8, 8]])
        assert abi.call_shape(gather, 0, [[-1, 16], [3]]) == (OK, [[3, 16]])

    def test_dtype_follows_the_variant(self, gather):
        outputs = (abi.Tensor * 1)()
        inputs = (abi.Tensor * 2)()
        for slot, (dtype, dims) in zip(inputs, ((10, [5, 16]), (7, [3])), strict=True):
            slot.dtype, slot.rank = dtype, len(dims)
            slot.dims[: len(dims)] = dims
        assert gather.shape(ctypes.byref(context(1)), inputs, 2, outputs, 1) == OK
        assert (outputs[0].dtype, outputs[0].rank, list(outputs[0].dims[:2])) == (10, 2, [3, 16])
        assert gather.shape(ctypes.byref(context(0)), inputs, 2, outputs, 1) == DTYPE

    @pytest.mark.parametrize(
        ("dims", "status"),
        [
            ([[1, 35, 64]], SHAPE),  # not the extent that the kernel was made for
            ([[65, 36, 64]], SHAPE),  # beyond the tested range
            ([[1, 36]], SHAPE),  # rank
            ([[1, 36, 64], [1]], ARITY),
            ([], ARITY),
        ],
    )
    def test_refusals(self, fold, dims, status):
        ctx = context()
        inputs, outputs = (abi.Tensor * 4)(), (abi.Tensor * 1)()
        for slot, extents in zip(inputs, dims, strict=False):
            slot.dtype, slot.rank = 1, len(extents)
            slot.dims[: len(extents)] = extents
        assert fold.shape(ctypes.byref(ctx), inputs, len(dims), outputs, 1) == status

    def test_divisibility(self, split):
        attrs = abi.make_attrs({"scale": [1.0]})
        assert abi.call_shape(split, 0, [[2, 6]], attrs) == (OK, [[2, 3], [2, 3]])
        assert abi.call_shape(split, 0, [[2, 5]], attrs)[0] == SHAPE


class TestRefusals:
    def test_context(self, fold):
        x, y = fold_arrays()
        assert launch(fold, None, [x], [y]) == UNSUPPORTED
        old = context()
        old.abi_version = 2
        assert launch(fold, old, [x], [y]) == UNSUPPORTED
        short = context()
        short.size = abi.Context.threads.offset
        assert launch(fold, short, [x], [y]) == UNSUPPORTED
        assert launch(fold, context(threads=0), [x], [y]) == UNSUPPORTED

    def test_a_caller_that_knows_more_is_accepted(self, fold):
        x, y = fold_arrays()
        newer = context()
        newer.size += 64
        assert launch(fold, newer, [x], [y]) == OK

    @pytest.mark.parametrize("variant", [-1, 1])
    def test_variant(self, fold, variant):
        x, y = fold_arrays()
        assert launch(fold, context(variant), [x], [y]) == VARIANT

    def test_arity(self, fold):
        x, y = fold_arrays()
        assert launch(fold, context(), [x, x], [y]) == ARITY
        assert launch(fold, context(), [x], [y, y]) == ARITY

    def test_dtype(self, fold):
        x, y = fold_arrays()
        assert launch(fold, context(), [as_aligned(x, np.float64)], [y]) == DTYPE
        assert launch(fold, context(), [x], [aligned(y.shape, np.int32)]) == DTYPE

    def test_format(self, fold):
        x, y = fold_arrays()
        from fakes.plugin_calls import tensor

        ins, outs = (abi.Tensor * 1)(tensor(x)), (abi.Tensor * 1)(tensor(y))
        ins[0].format = 2
        assert fold.launch(ctypes.byref(context()), ins, 1, outs, 1) == VARIANT

    def test_output_shape(self, fold):
        x, _ = fold_arrays()
        assert launch(fold, context(), [x], [aligned((3, 4, 8, 7), np.float32)]) == SHAPE
        assert launch(fold, context(), [x], [aligned((3, 4, 64), np.float32)]) == SHAPE

    def test_alignment(self, fold, split):
        x, y = fold_arrays()
        odd = aligned(y.shape, np.float32, offset=4)
        assert launch(fold, context(), [x], [odd]) == ALIGNMENT  # this bundle asks for 8
        shifted = aligned((2, 6), np.float32, offset=32)
        ctx = context(attrs=abi.make_attrs({"scale": [1.0]}), workspace=aligned((24,), np.uint8))
        assert launch(split, ctx, [shifted], [aligned((2, 3), np.float32), aligned((2, 3), np.float32)]) == ALIGNMENT

    def test_workspace(self, split):
        x, halves = as_aligned(np.zeros((2, 6)), np.float32), [aligned((2, 3), np.float32) for _ in range(2)]
        attrs = abi.make_attrs({"scale": [1.0]})
        assert launch(split, context(attrs=attrs), [x], halves) == WORKSPACE
        small = context(attrs=attrs, workspace=aligned((23,), np.uint8))
        assert launch(split, small, [x], halves) == WORKSPACE
        assert workspace_bytes(split, context(attrs=attrs), [x], halves[:1]) == -ARITY

    @pytest.mark.parametrize(
        ("attrs", "status"),
        [
            ({}, ATTRIBUTE),  # a required one is missing
            ({"scale": [2]}, ATTRIBUTE),  # of another type
            ({"scale": [2.0], "axis": [0]}, ATTRIBUTE),  # not the value that is baked in
            ({"scale": [2.0], "axis": [1, 1]}, ATTRIBUTE),
            ({"scale": [2.0], "mode": "half"}, ATTRIBUTE),
            ({"other": [1], "mode": 'hal"f', "axis": [1], "scale": [2.0]}, OK),
        ],
    )
    def test_attributes(self, split, attrs, status):
        x, halves = as_aligned(np.zeros((2, 6)), np.float32), [aligned((2, 3), np.float32) for _ in range(2)]
        ctx = context(attrs=abi.make_attrs(attrs), workspace=aligned((24,), np.uint8))
        assert launch(split, ctx, [x], halves) == status
