"""What the judge knows of one candidate so far, and the result that it becomes."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from ytk_core.errors import FormatError
from ytk_core.formats.kernel_bundle import KernelBundle, parse_bundle
from ytk_gaia.evaluator.build import Built
from ytk_gaia.evaluator.floor import InARow
from ytk_gaia.evaluator.verdicts import CandidateResult, PairedRatio, Verdict

Step = tuple[int, int]
"""One moment of a measurement: a round and a sample. Times of different candidates at the same step belong together."""


@dataclass
class Track:
    """One candidate. ``times_ns`` are in the order of ``steps``."""

    id: str
    bundle: KernelBundle | None = None
    built: Built | None = None
    verdict: Verdict | None = None
    reason: str = ""
    log: str = ""
    rounds: int = 0
    times_ns: list[int] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    unseen_ns: list[int] = field(default_factory=list)
    """Per timed call: what the judge saw beyond what the process reported."""
    idle_ns: list[int] = field(default_factory=list)
    """Per pause between two calls: processor time that the process used, while nobody had asked for anything."""
    bits: dict[int, str] = field(default_factory=dict)
    worst_error: float = 0.0
    cold_ns: list[int] = field(default_factory=list)
    ratio: PairedRatio | None = None
    baseline: PairedRatio | None = None
    looked_ns: dict[int, int] = field(default_factory=dict)
    """Sample to time in the first look (:mod:`.screening`)."""
    looked_unseen_ns: list[int] = field(default_factory=list)
    edges_done: bool = False
    variant: int = 0
    """Which variant of its contract has the task's types."""
    in_a_row: list[InARow] = field(default_factory=list)
    """What many calls without a look in between took."""

    @property
    def running(self) -> bool:
        """Whether it has no verdict yet."""
        return self.verdict is None

    @property
    def median_ns(self) -> float:
        """Median of the times; it has some."""
        return statistics.median(self.times_ns)

    def take(self, text: str, problem: Callable[[KernelBundle], tuple[Verdict, str] | None]) -> KernelBundle | None:
        """Read the candidate's text and hold its contract against what was asked.

        Args:
            text: Of a kernel bundle.
            problem: Gives what does not fit.

        Returns:
            The bundle, or None where the candidate has its verdict now.
        """
        try:
            self.bundle = parse_bundle(text, self.id)
        except FormatError as err:
            self.end(Verdict.COMPILE_ERROR, err.message)
            return None
        found = problem(self.bundle)
        if found:
            self.end(*found)
            return None
        return self.bundle

    def end(self, verdict: Verdict, reason: str) -> None:
        """Give it its verdict."""
        self.verdict, self.reason = verdict, reason

    def result(self) -> CandidateResult:
        """Give what the evaluation says of it."""
        passed = self.verdict is Verdict.PASSED
        times = tuple(ns / 1e6 for ns in self.times_ns)
        return CandidateResult(
            id=self.id,
            verdict=self.verdict or Verdict.NO_EVIDENCE,
            reason=self.reason,
            min_ms=min(times) if passed else None,
            median_ms=statistics.median(times) if passed else None,
            times_ms=times,
            worst_error=self.worst_error if self.rounds else None,
            processes=self.rounds,
            compile_s=self.built.seconds if self.built else 0.0,
            log=self.log,
            cold_ms=statistics.median(self.cold_ns) / 1e6 if passed and self.cold_ns else None,
            ratio=self.ratio if passed else None,
            # Of a first look too: it decides who is worth another batch.
            baseline=self.baseline if passed or self.verdict is Verdict.NO_EVIDENCE else None,
        )
