"""Is an output right? Decided here and nowhere else, from the bytes that a candidate left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ytk_core.dtypes import DType, bfloat16_to_float32, storage_dtype
from ytk_gaia.task_format import FLOATS, Sample, Task, TaskTensor

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Comparison:
    """``error``: the largest error over its limit; more than 1 is wrong. ``where``: the first wrong element."""

    error: float
    where: str = ""

    @property
    def right(self) -> bool:
        """Whether every judged element is within its limit."""
        return not self.where


def decode(raw: Array, tensor: TaskTensor) -> Array:
    """Give the values of raw bytes: floating point as float64, bool as bytes (only 0 and 1 are right)."""
    if tensor.dtype is DType.BOOL:
        return raw.view(np.uint8).reshape(tensor.shape)
    values: Array = raw.view(storage_dtype(tensor.dtype)).reshape(tensor.shape)
    if tensor.dtype is DType.BFLOAT16:
        values = bfloat16_to_float32(values)
    return values.astype(np.float64) if tensor.dtype in FLOATS else values


def _first_wrong(wrong: Array, got: Array, want: Array) -> str:
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(wrong)), wrong.shape)) if wrong.ndim else ()
    return f"{int(wrong.sum())} of {wrong.size} elements; first at {list(index)}: got {got[index]!s}, expected {want[index]!s}"


def compare(
    got: Array,
    want: Array,
    tensor: TaskTensor,
    atol: float,
    rtol: float,
    skip: Array | None,
    open_range: tuple[int, int] | None = None,
) -> Comparison:
    """Compare one output.

    NaN is right only where NaN is expected, an infinity only where the same one is; integers and bools are exact.

    Args:
        got: Decoded values, of the tensor's shape.
        want: Expected values.
        tensor: Its type.
        atol: Absolute limit.
        rtol: Limit relative to the expected value.
        skip: Elements that are not judged, or None. They must still be finite where the expectation is; integers must stay
            within a range, so that an index of a tie is an index.
        open_range: That range, both ends included; None: that of the expected ones.
    """
    if tensor.dtype not in FLOATS:
        wanted = want.astype(got.dtype)
        wrong = got != wanted
        if skip is not None and wrong.any():
            least, most = open_range or (wanted.min(), wanted.max())
            wrong &= ~(skip & (got >= least) & (got <= most))
        return Comparison(float("inf"), _first_wrong(wrong, got, want)) if wrong.any() else Comparison(0.0)
    finite = np.isfinite(want)
    same = np.where(np.isnan(want), np.isnan(got), got == want)
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.abs(got - want)
        limit = atol + rtol * np.abs(np.where(finite, want, 0.0))
    # Written so that a NaN in `got` is wrong: it fails every comparison.
    fine = np.where(finite, distance <= limit, same)
    if skip is not None:
        fine |= skip & np.isfinite(got)
    wrong = ~fine
    if wrong.any():
        return Comparison(float("inf"), _first_wrong(wrong, got, want))
    judged = finite & (limit > 0)
    if skip is not None:
        judged &= ~skip
    ratio = distance[judged] / limit[judged]
    return Comparison(float(ratio.max(initial=0.0)))


def judge_sample(task: Task, sample_index: int, raw_outputs: Sequence[Array]) -> Comparison:
    """Compare all outputs of one call; the reason names the output."""
    limits, sample = task.spec.samples[sample_index], task.samples[sample_index]
    worst = 0.0
    for index, (tensor, raw) in enumerate(zip(task.spec.at(sample_index).outputs, raw_outputs, strict=True)):
        result = compare(
            decode(raw, tensor),
            sample.outputs[index],
            tensor,
            limits.atol[index],
            limits.rtol[index],
            sample.skip.get(index),
            limits.open_range[index] if limits.open_range else None,
        )
        if not result.right:
            return Comparison(result.error, f"output {index} ({tensor.name}) of sample {limits.name}: {result.where}")
        worst = max(worst, result.error)
    return Comparison(worst)


# ---- the task's self-test --------------------------------------------------------------------------------------------


def _encode(values: Array, tensor: TaskTensor) -> Array:
    """Give the bytes of values as a kernel would leave them; bfloat16 rounds towards zero, which is near enough here."""
    if tensor.dtype is DType.BFLOAT16:
        bits: Array = (np.asarray(values, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return np.ascontiguousarray(bits).reshape(-1).view(np.uint8)
    with np.errstate(over="ignore", invalid="ignore"):
        stored = np.asarray(values).astype(storage_dtype(tensor.dtype))
    return np.ascontiguousarray(stored).reshape(-1).view(np.uint8)


def _zeros(_sample: Sample, _index: int, want: Array, _tensor: TaskTensor) -> Array:
    return np.zeros_like(want)


def _mean(_sample: Sample, _index: int, want: Array, _tensor: TaskTensor) -> Array:
    finite = want[np.isfinite(want)] if want.dtype.kind == "f" else want
    value = finite.astype(np.float64).mean() if finite.size else 0.0
    return np.full(want.shape, value).astype(want.dtype)


def _identity(sample: Sample, _index: int, want: Array, _tensor: TaskTensor) -> Array:
    source = sample.inputs[0].reshape(-1)
    if not source.size:
        return np.zeros_like(want)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.resize(source.astype(np.float64), want.shape).astype(want.dtype)


TRIVIAL = {"zeros": _zeros, "mean": _mean, "identity": _identity}


def self_test(task: Task) -> dict[str, str]:
    """Let trivial answers take the task; give what each got: ``rejected``, or ``passes: ...`` where the task proves nothing.

    A region that is itself the identity (a reshape) is told by bit-equality of input and expectation on all samples: there
    the identity is the right answer and counts as ``right``.
    """
    if all(not np.prod(t.shape) for t in task.spec.outputs):
        return dict.fromkeys(TRIVIAL, "nothing to compute: every output is empty")
    return {name: _trivial(task, name) for name in TRIVIAL}


def _trivial(task: Task, name: str) -> str:
    exact = True
    for index, sample in enumerate(task.samples):
        raws = []
        for o, (tensor, want) in enumerate(zip(task.spec.outputs, sample.outputs, strict=True)):
            answer = TRIVIAL[name](sample, o, want, tensor)
            exact &= bool(np.array_equal(answer, want))
            raws.append(_encode(answer, tensor))
        if not judge_sample(task, index, raws).right:
            return "rejected"
    if name == "identity" and exact:
        return "right: the region is the identity"
    return f"passes: an answer of {name} is within every limit"
