"""Verdicts on candidates, and the file ``evaluation.json`` that carries them."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Any

import msgspec

from ytk_core.conditions import Conditions
from ytk_core.errors import FormatError
from ytk_gaia.evaluator.cuda_device import GpuConditions
from ytk_gaia.evaluator.device_facts import DeviceFacts

SCHEMA_VERSION = 3


class Verdict(enum.StrEnum):
    """What became of a candidate. A bad kernel is a result, never an exception."""

    PASSED = "PASSED"
    COMPILE_ERROR = "COMPILE_ERROR"
    RUNTIME_ERROR = "RUNTIME_ERROR"
    TIMEOUT = "TIMEOUT"
    WRONG_SHAPE = "WRONG_SHAPE"
    WRONG_DTYPE = "WRONG_DTYPE"
    WRONG_VALUE = "WRONG_VALUE"
    NONDETERMINISTIC = "NONDETERMINISTIC"
    OUT_OF_BOUNDS = "OUT_OF_BOUNDS"
    MUTATED_INPUT = "MUTATED_INPUT"
    IMPOSSIBLE_TIME = "IMPOSSIBLE_TIME"
    NOT_USED = "NOT_USED"
    NO_EVIDENCE = "NO_EVIDENCE"


class PairedRatio(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Time relative to another candidate's, from calls side by side. ``low``, ``high``: confidence interval of the median."""

    to: str
    median: float
    low: float
    high: float
    pairs: int
    confidence: float

    @property
    def decided(self) -> bool:
        """Whether the interval leaves no doubt which of the two is faster."""
        return self.low > 1 or self.high < 1


class CandidateResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One candidate's verdict.

    ``times_ms``: one per timed call in warm cache, in order. ``cold_ms``: median with the caches flushed before each call; only of
    finalists, and only reported: the candidate's process does the flushing. ``ratio``: of finalists, to the best one.
    ``baseline``: to the baseline kernel, from calls side by side; of every passed one where there is a baseline.
    ``worst_error``: largest error over its limit, at most 1 where PASSED.
    """

    id: str
    verdict: Verdict
    reason: str = ""
    min_ms: float | None = None
    median_ms: float | None = None
    times_ms: tuple[float, ...] = ()
    worst_error: float | None = None
    processes: int = 0
    compile_s: float = 0.0
    log: str = ""
    cold_ms: float | None = None
    ratio: PairedRatio | None = None
    baseline: PairedRatio | None = None
    device: DeviceFacts | None = None
    """Of a CUDA kernel: what its compiler and its cubin say."""


class Roofline(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What memory allows at one shape. Rates in GB/s (1e9 bytes a second), each byte counted once.

    ``shapes``: of the inputs. ``bytes``: what every right kernel has to move there (at the captured shape the inputs that must be
    read, at others the outputs alone). ``measured_gb_s``: of a plain kernel, at the time of this measurement; 0: not measured.
    ``peak_gb_s``: best that this machine ever showed at this size; of a GPU what its memory's clock allows. ``roofline_ms``: ``bytes``
    at the peak rate. ``floor_ms``: no time below this is believed.
    """

    shapes: str
    bytes: int
    measured_gb_s: float
    peak_gb_s: float
    roofline_ms: float
    floor_ms: float


class Evaluation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the judge says. ``self_test``: what trivial kernels got; every one has to fail for the task to prove anything."""

    arch_spec: str
    region_digest: str
    candidates: tuple[CandidateResult, ...]
    conditions: Conditions
    threads: int
    compiler: str
    sandbox: str
    floor_ms: float
    floor_bytes: int
    """Outputs, and the inputs of which every right kernel has to read at least this much."""
    call_overhead_ms: float
    self_test: dict[str, str]
    roofline_ms: float = 0.0
    """Fastest time in which a plain kernel moved ``floor_bytes`` on this machine; the floor is a fixed part of it."""
    rooflines: tuple[Roofline, ...] = ()
    """Per shape, the timed one first; empty where so little is moved that it takes no time that one could tell."""
    machine: str = ""
    """Whose rates the floor comes from: device and processor model."""
    baseline: str = ""
    """Id of the candidate that the others are compared with."""
    gpu: GpuConditions | None = None
    """State of the GPU that the kernels ran on; None: a CPU."""
    emulated: bool = False
    """Whether CUDA kernels ran on the CPU emulation: verdicts count, times there are none."""
    notes: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION


def write_evaluation(path: Path, evaluation: Evaluation) -> None:
    """Write ``evaluation.json``."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(evaluation), indent=1))


def read_evaluation(path: Path) -> Evaluation:
    """Read ``evaluation.json``.

    Raises:
        FormatError: It is not one.
    """
    try:
        found: Any = msgspec.json.decode(path.read_bytes(), type=Evaluation)
    except (OSError, msgspec.DecodeError) as err:
        msg = f"{path}: not an evaluation: {err}"
        raise FormatError(msg, code="bad_evaluation", hint="Evaluate the candidates again.") from err
    if found.schema_version != SCHEMA_VERSION:
        msg = f"{path}: schema_version {found.schema_version}, this software reads {SCHEMA_VERSION}"
        raise FormatError(msg, code="bad_evaluation", hint="Use one version of the toolkit throughout.")
    result: Evaluation = found
    return result
