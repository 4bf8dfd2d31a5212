"""Comparing outputs: tolerances by dtype and precision, exact integers, non-finite values by place."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ytk_core.accuracy import AccuracyLimit, compare, default_limit
from ytk_core.dtypes import DType, float32_to_bfloat16
from ytk_core.errors import UserError

RNG = np.random.default_rng(2)
WANT = RNG.standard_normal((8, 125)).astype(np.float32)
FLOATS = hnp.arrays(
    np.float32,
    hnp.array_shapes(max_dims=3, max_side=6),
    elements=st.floats(width=32, allow_nan=True, allow_infinity=True),
)


@given(FLOATS)
def test_an_array_agrees_with_itself(array):
    row = compare("y", array.copy(), array, dtype=DType.FLOAT32)
    assert row.ok, row
    assert row.sqnr_db is None  # infinite


@pytest.mark.parametrize(
    ("precision", "noise", "ok"),
    [
        ("fp32", 3e-6, True),
        ("fp32", 1e-4, False),
        ("fp16", 1e-3, True),
        ("fp16", 0.05, False),
        ("bf16", 0.01, True),
        ("int8", 0.05, True),
    ],
)
def test_the_precision_decides_the_tolerance(precision, noise, ok):
    got = WANT + noise * RNG.standard_normal(WANT.shape).astype(np.float32)
    row = compare("y", got, WANT, dtype=DType.FLOAT32, precision=precision)
    assert row.ok is ok, row
    assert row.tolerance_source == f"default for {precision}"


def test_the_rougher_of_dtype_and_precision_counts():
    assert default_limit(DType.FLOAT16, "fp32") == default_limit(DType.FLOAT32, "fp16")
    assert default_limit(DType.BFLOAT16, "fp16") == default_limit(DType.FLOAT32, "bf16")
    assert default_limit(DType.FLOAT64, "fp64").rtol < default_limit(DType.FLOAT32, "fp32").rtol
    assert default_limit(DType.INT64, "int8").atol == 0
    with pytest.raises(UserError, match="fp13"):
        default_limit(DType.FLOAT32, "fp13")


def test_figures():
    want = np.array([1.0, -2.0, 4.0])
    row = compare("y", np.array([1.0, -2.0, 4.5]), want, dtype=DType.FLOAT64)
    assert (row.max_abs, row.max_rel) == (0.5, 0.125)
    assert row.cosine == pytest.approx((1 + 4 + 18) / math.sqrt(21 * (1 + 4 + 20.25)))
    assert row.sqnr_db == pytest.approx(10 * math.log10(21 / 0.25))
    assert "1 of 3 elements outside, first at [2]" in row.note


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_figures_stay_finite_at_any_scale(scale):
    got, want = (WANT * np.float32(1.00001)).astype(np.float64) * scale, WANT.astype(np.float64) * scale
    row = compare("y", got, want, dtype=DType.FLOAT64, precision="fp32")
    assert row.ok
    assert row.cosine == pytest.approx(1)
    assert row.sqnr_db == pytest.approx(100, abs=1)


def test_a_wrong_output_that_is_small_everywhere_fails():
    want = WANT * np.float32(1e-4)
    row = compare("y", np.roll(want, 1), want, dtype=DType.FLOAT32, precision="int8")
    assert not row.ok


def test_the_cosine_sees_what_one_large_element_hides():
    """Every element is within the tolerance that the spike scales, and yet the rest has the wrong sign."""
    want = np.full(1000, 0.04, np.float32)
    want[0] = 1
    got = -want
    got[0] = 1
    row = compare("y", got, want, dtype=DType.FLOAT32, precision="int8")
    assert (row.ok, "outside" in row.note) == (False, False)
    assert "cosine -0." in row.note
    assert compare("y", got, want, dtype=DType.FLOAT32, precision="int8", rtol=0.1, atol=0.1).ok


def test_rounding_noise_against_zeros_passes_and_a_signal_does_not():
    zeros = np.zeros(5, np.float32)
    assert compare("y", zeros + np.float32(1e-9), zeros, dtype=DType.FLOAT32).ok
    row = compare("y", zeros + np.float32(1e-3), zeros, dtype=DType.FLOAT32)
    assert not row.ok
    assert row.cosine is None


@pytest.mark.parametrize(("got", "want", "ok"), [
    ([np.nan, 1], [np.nan, 1], True),
    ([np.inf, -np.inf], [np.inf, -np.inf], True),
    ([np.nan, 1], [0, 1], False),
    ([0, 1], [np.nan, 1], False),
    ([np.inf, 1], [-np.inf, 1], False),
    ([np.inf, 1], [np.nan, 1], False),
    ([3e38, 1], [np.inf, 1], False),
])  # fmt: skip
def test_non_finite_values_agree_in_kind_and_place(got, want, ok):
    row = compare("y", np.float32(got), np.float32(want), dtype=DType.FLOAT32)
    assert row.ok is ok
    assert "non-finite" in row.note
    assert (row.max_abs is None) is (not ok)
    if not ok:
        assert "first at [0]" in row.note


def test_integers_and_booleans_are_exact():
    want = np.array([[1, 2**62], [-(2**62), 7]])
    assert compare("y", want.copy(), want, dtype=DType.INT64).ok
    row = compare("y", want + np.array([[0, 1], [0, 0]]), want, dtype=DType.INT64)
    assert (row.ok, row.max_abs, row.note) == (False, 1.0, "1 of 4 elements differ, first at [0, 1]")
    # The difference itself does not overflow.
    assert compare("y", -want, want, dtype=DType.INT64).max_abs == 2.0**63
    # An engine that narrowed int64 gives int32: the values count.
    assert compare("y", np.int32([1, 2]), np.int64([1, 2]), dtype=DType.INT64).ok
    flags = np.array([True, False])
    assert compare("y", flags, flags, dtype=DType.BOOL).ok
    assert not compare("y", ~flags, flags, dtype=DType.BOOL).ok
    assert compare("y", np.int64([5]), np.int64([6]), dtype=DType.INT64, atol=1).ok
    assert not compare("y", np.int64([5]), np.int64([7]), dtype=DType.INT64, atol=1).ok


def test_bfloat16_as_bits_or_widened():
    bits = float32_to_bfloat16(WANT)
    for got in (bits, WANT, bits.view(ml_dtypes.bfloat16)):
        row = compare("y", got, bits, dtype=DType.BFLOAT16, precision="fp32")
        assert row.ok, row
    assert not compare("y", bits, float32_to_bfloat16(WANT + 1), dtype=DType.BFLOAT16).ok


@pytest.mark.parametrize(("got", "dtype", "note"), [
    (WANT[:4], DType.FLOAT32, "shape (4, 125) instead of (8, 125)"),
    (WANT[0], DType.FLOAT32, "shape (125,)"),
    (WANT.astype(np.int32), DType.FLOAT32, "dtype int32 instead of float32"),
    (WANT, DType.INT32, "dtype float32 instead of int32"),
])  # fmt: skip
def test_a_wrong_shape_or_dtype_is_a_verdict(got, dtype, note):
    row = compare("y", got, WANT if dtype is DType.FLOAT32 else WANT.astype(np.int32), dtype=dtype, sample=3)
    assert (row.ok, row.sample, row.max_abs) == (False, 3, None)
    assert note in row.note


def test_bool_is_no_integer():
    assert not compare("y", np.int32([1]), np.array([True]), dtype=DType.BOOL).ok
    assert not compare("y", np.array([True]), np.int32([1]), dtype=DType.INT32).ok


def test_empty_and_scalar_outputs():
    assert compare("y", np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32), dtype=DType.FLOAT32).ok
    assert compare("y", np.float32(2).reshape(()), np.float32(2).reshape(()), dtype=DType.FLOAT32).ok
    row = compare("y", np.float32(3).reshape(()), np.float32(2).reshape(()), dtype=DType.FLOAT32)
    assert "first at []" in row.note


def test_the_users_figures_and_a_plugins_limit():
    got = WANT + np.float32(0.01)
    assert not compare("y", got, WANT, dtype=DType.FLOAT32).ok
    row = compare("y", got, WANT, dtype=DType.FLOAT32, atol=0.02)
    assert (row.ok, row.tolerance_source) == (True, "--rtol/--atol")
    assert "max|ref|" not in row.tolerance
    limit = AccuracyLimit(rtol=0, atol=0.02, scaled=False, source="plugin yasp::Fold")
    assert compare("y", got, WANT, dtype=DType.FLOAT32, limit=limit).tolerance_source == "plugin yasp::Fold"
    for bad in (-1.0, math.nan, math.inf):
        with pytest.raises(UserError, match="rtol"):
            compare("y", got, WANT, dtype=DType.FLOAT32, rtol=bad)
