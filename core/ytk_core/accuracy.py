"""Comparing an output with the reference: dtype-aware tolerances, exact for integers and booleans, NaN and infinity by place."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np

from ytk_core.dtypes import DType, bfloat16_to_float32, storage_dtype
from ytk_core.errors import UserError
from ytk_core.formats.verify_report import OutputAccuracy


class AccuracyLimit(msgspec.Struct, frozen=True, kw_only=True):
    """An output passes if every element satisfies ``|got - want| <= atol * scale + rtol * |want|``.

    ``scale`` is the largest finite ``|want|`` of the output (at least 1e-3, so that rounding noise against an output of zeros
    passes) where ``scaled``, else 1. ``min_cosine`` guards against an output that is small everywhere and passes trivially.
    """

    rtol: float
    atol: float
    source: str
    scaled: bool = True
    min_cosine: float | None = None

    def text(self) -> str:
        """Give the limit as one short text for tables."""
        scale = "*max|ref|" if self.scaled else ""
        cosine = f", cosine >= {self.min_cosine:g}" if self.min_cosine is not None else ""
        return f"rtol {self.rtol:g}, atol {self.atol:g}{scale}{cosine}"


# Per arithmetic: a few hundred rounding steps of the unit in the last place (fp32 2^-24, fp16 2^-11, bf16 2^-8), which is what
# reordered sums of a network's depth give. The scaled atol keeps cancelled outputs near 0 from failing on rounding alone.
_DEFAULTS: dict[str, AccuracyLimit] = {
    "fp64": AccuracyLimit(rtol=1e-9, atol=1e-11, min_cosine=0.999999, source="default for fp64"),
    "fp32": AccuracyLimit(rtol=1e-3, atol=1e-5, min_cosine=0.9999, source="default for fp32"),
    "tf32": AccuracyLimit(rtol=1e-2, atol=2e-3, min_cosine=0.999, source="default for tf32"),
    "fp16": AccuracyLimit(rtol=2e-2, atol=5e-3, min_cosine=0.999, source="default for fp16"),
    "bf16": AccuracyLimit(rtol=5e-2, atol=3e-2, min_cosine=0.99, source="default for bf16"),
    "int8": AccuracyLimit(rtol=1e-1, atol=1e-1, min_cosine=0.98, source="default for int8"),
}
_PRECISION_OF: dict[DType, str] = {
    DType.FLOAT64: "fp64",
    DType.FLOAT32: "fp32",
    DType.FLOAT16: "fp16",
    DType.BFLOAT16: "bf16",
}
_ROUGHNESS = ("fp64", "fp32", "tf32", "fp16", "bf16", "int8")
_EXACT = AccuracyLimit(rtol=0.0, atol=0.0, scaled=False, source="exact: integers and booleans")


def default_limit(dtype: DType, precision: str = "fp32") -> AccuracyLimit:
    """Give the default limit of an output: that of the rougher of its dtype and the engine's precision.

    Raises:
        UserError: The precision is unknown.
    """
    if precision not in _DEFAULTS:
        msg = f"unknown precision {precision!r}"
        raise UserError(msg, code="bad_precision", hint=f"Precisions: {', '.join(_ROUGHNESS)}.")
    if dtype not in _PRECISION_OF:
        return _EXACT
    return _DEFAULTS[max(_PRECISION_OF[dtype], precision, key=_ROUGHNESS.index)]


def limit_from(dtype: DType, precision: str, rtol: float | None, atol: float | None) -> AccuracyLimit:
    """Give the default limit with the user's figures in place of the defaults; a user's atol is absolute.

    Raises:
        UserError: The precision is unknown, or a figure is negative or not finite.
    """
    default = default_limit(dtype, precision)
    if rtol is None and atol is None:
        return default
    for name, value in (("rtol", rtol), ("atol", atol)):
        if value is not None and not 0 <= value < math.inf:
            msg = f"{name} is {value}"
            raise UserError(msg, code="bad_tolerance", hint="Give a finite number >= 0.")
    return AccuracyLimit(
        rtol=default.rtol if rtol is None else rtol,
        atol=default.atol if atol is None else atol,
        scaled=default.scaled and atol is None,
        # Who gives both figures has said what counts.
        min_cosine=default.min_cosine if rtol is None or atol is None else None,
        source="--rtol/--atol",
    )


def _widen(array: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    if dtype is DType.BFLOAT16 and array.dtype == np.uint16:
        array = bfloat16_to_float32(array)
    return np.asarray(array)


def _failed(name: str, sample: int, limit: AccuracyLimit, note: str) -> OutputAccuracy:
    return OutputAccuracy(
        name=name,
        sample=sample,
        max_abs=None,
        max_rel=None,
        cosine=None,
        sqnr_db=None,
        ok=False,
        tolerance=limit.text(),
        tolerance_source=limit.source,
        note=note,
    )


def compare(
    name: str,
    got: np.ndarray[Any, Any],
    want: np.ndarray[Any, Any],
    *,
    dtype: DType,
    precision: str = "fp32",
    sample: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
    limit: AccuracyLimit | None = None,
) -> OutputAccuracy:
    """Compare one output with its reference.

    Args:
        name: The output's name.
        got: The engine's array; any float dtype where ``dtype`` is a float (bfloat16: uint16 bits or widened).
        want: The reference's array, in the storage dtype of ``dtype``.
        dtype: The reference's dtype.
        precision: The engine's arithmetic: fp64, fp32, tf32, fp16, bf16, int8.
        sample: Index of the sample.
        rtol: The user's relative tolerance instead of the default.
        atol: The user's absolute tolerance instead of the default.
        limit: A whole limit (from a plugin_meta, for example); goes before ``rtol`` and ``atol``.

    Returns:
        The figures and the verdict; a wrong shape or dtype is a failed verdict with a note, not an exception.

    Raises:
        UserError: The precision or a tolerance is not usable.
    """
    limit = limit or limit_from(dtype, precision, rtol, atol)
    if got.shape != want.shape:
        return _failed(name, sample, limit, f"shape {got.shape} instead of {want.shape}")
    is_float = dtype in _PRECISION_OF
    got_is_float = (
        got.dtype.kind == "f" or got.dtype.name == "bfloat16" or (dtype is DType.BFLOAT16 and got.dtype == np.uint16)
    )
    if is_float != got_is_float or (dtype is DType.BOOL) != (got.dtype == np.bool_):
        return _failed(name, sample, limit, f"dtype {got.dtype} instead of {dtype}")
    if want.dtype != storage_dtype(dtype) and want.dtype.kind != "f":
        return _failed(name, sample, limit, f"the reference has dtype {want.dtype}, which does not store {dtype}")
    if want.size == 0:
        return _result(name, sample, limit, (0.0, 0.0, 1.0, None), ok=True, note="empty output")
    if not is_float:
        return _compare_exact(name, sample, limit, got, want)
    return _compare_float(name, sample, limit, _widen(got, dtype), _widen(want, dtype))


def _result(
    name: str,
    sample: int,
    limit: AccuracyLimit,
    figures: tuple[float | None, float | None, float | None, float | None],
    *,
    ok: bool,
    note: str = "",
) -> OutputAccuracy:
    max_abs, max_rel, cosine, sqnr_db = figures
    return OutputAccuracy(
        name=name,
        sample=sample,
        max_abs=max_abs,
        max_rel=max_rel,
        cosine=cosine,
        sqnr_db=sqnr_db,
        ok=ok,
        tolerance=limit.text(),
        tolerance_source=limit.source,
        note=note,
    )


def _compare_exact(
    name: str, sample: int, limit: AccuracyLimit, got: np.ndarray[Any, Any], want: np.ndarray[Any, Any]
) -> OutputAccuracy:
    differ = got != want
    count = int(np.count_nonzero(differ))
    # Python integers: int64 differences overflow int64.
    gap = max(
        (abs(int(a) - int(b)) for a, b in zip(got[differ].tolist(), want[differ].tolist(), strict=True)), default=0
    )
    note = "" if count == 0 else f"{count} of {want.size} elements differ, first at {_first(differ)}"
    within = bool(limit.rtol == 0 and limit.atol == 0 and count == 0) or gap <= limit.atol
    figures = _figures(got.astype(np.float64), want.astype(np.float64))
    return _result(name, sample, limit, (float(gap), *figures[1:]), ok=within, note=note)


def _first(mask: np.ndarray[Any, Any]) -> str:
    place = np.unravel_index(int(np.argmax(mask)), mask.shape)
    return str([int(index) for index in place])


def _figures(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any]) -> tuple[float, float, float | None, float | None]:
    """Max abs, max rel, cosine, SQNR of finite float64 arrays."""
    error = np.abs(got - want)
    max_abs = float(error.max(initial=0.0))
    size = np.abs(want)
    # Relative to the reference, but no smaller than what is negligible in this output, else 1e-30 against 0 is infinite.
    floor = max(float(size.max(initial=0.0)) * 1e-6, np.finfo(np.float64).tiny)
    max_rel = float((error / np.maximum(size, floor)).max(initial=0.0))
    peak = max(float(size.max(initial=0.0)), float(np.abs(got).max(initial=0.0)))
    if peak == 0:
        return max_abs, max_rel, None, None
    # Scaled, so that squares of large or tiny values stay finite.
    a, b = got.ravel() / peak, want.ravel() / peak
    norms = math.sqrt(float(a @ a)) * math.sqrt(float(b @ b))
    cosine = float(np.clip(float(a @ b) / norms, -1.0, 1.0)) if norms > 0 else None
    noise, signal = float((a - b) @ (a - b)), float(b @ b)
    sqnr = 10 * math.log10(signal / noise) if noise > 0 and signal > 0 else None
    return max_abs, max_rel, cosine, sqnr


def _compare_float(
    name: str, sample: int, limit: AccuracyLimit, got: np.ndarray[Any, Any], want: np.ndarray[Any, Any]
) -> OutputAccuracy:
    got, want = got.astype(np.float64), want.astype(np.float64)
    # Non-finite elements must agree in kind and place: NaN with NaN, +inf with +inf.
    special = ~(np.isfinite(got) & np.isfinite(want))
    agree = (np.isnan(got) & np.isnan(want)) | (got == want)
    wrong = special & ~agree
    finite_got, finite_want = np.where(special, 0.0, got), np.where(special, 0.0, want)
    figures = _figures(finite_got, finite_want)
    if wrong.any():
        place = _first(wrong)
        index = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
        note = f"{int(wrong.sum())} non-finite elements do not match, first at {place}: {got[index]} instead of {want[index]}"
        return _result(name, sample, limit, (None, None, None, None), ok=False, note=note)
    error, size = np.abs(finite_got - finite_want), np.abs(finite_want)
    scale = max(float(size.max(initial=0.0)), 1e-3) if limit.scaled else 1.0
    outside = error > limit.atol * scale + limit.rtol * size
    notes = []
    if special.any():
        notes.append(f"{int(special.sum())} matching non-finite elements left out")
    if outside.any():
        notes.append(f"{int(outside.sum())} of {want.size} elements outside, first at {_first(outside)}")
    low_cosine = limit.min_cosine is not None and figures[2] is not None and figures[2] < limit.min_cosine
    if low_cosine:
        notes.append(f"cosine {figures[2]:.6f} is below {limit.min_cosine:g}")
    return _result(name, sample, limit, figures, ok=not outside.any() and not low_cosine, note="; ".join(notes))
