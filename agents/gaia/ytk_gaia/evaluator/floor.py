"""Is a time believable? Floors from what this machine was measured to do, and the decision on times below them.

A time below a floor is a suspicion, not a verdict: on a machine that others use too, the references may have been measured in a
slow moment and the candidate in a fast one. A suspect is measured again, next to the references, several times, and only what
stays impossible in every one of these passes is IMPOSSIBLE_TIME.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ytk_gaia.evaluator.machine_rates import Rate, best_rate, remember, size_class
from ytk_gaia.evaluator.reference import Reference, fastest, floor_bytes
from ytk_gaia.evaluator.session import Call

PASSES = 3
"""How often a suspect is measured again."""
_ROOFLINE_SHARE = 0.3
"""The floor is this part of the fastest time in which a plain loop moved the same memory: other instructions may do better."""
_NULL_SHARE = 0.1
"""A report below this share of an empty call's time is no clock's. Small: machines change speed between two processes, and an
honest kernel of a few elements costs little more than the call."""
_MAX_BYTES_PER_NS = 512.0
"""Per thread; no processor stores or loads faster, so this is a broken clock and no rate."""
_SLACK_NS = 100_000
"""Processor time per call that is nobody's fault: pages, timers, a reader of the command pipe."""


@dataclass(frozen=True)
class Floors:
    """References of one moment, or the most lenient of several.

    Attributes:
        null_ns: Fastest empty call.
        around_ns: What the judge sees around an empty call at the least.
        idle_ns: Processor time of an empty kernel's process between two calls, at the least.
        roofline_ns: Fastest time in which the region's memory was moved.
    """

    null_ns: int = 0
    around_ns: int = 0
    idle_ns: int = 0
    roofline_ns: float = 0.0

    @property
    def floor_ns(self) -> float:
        """Time below which no kernel can have done the work."""
        return max(self.roofline_ns * _ROOFLINE_SHARE, self.null_ns * _NULL_SHARE)

    def lenient(self, other: Floors) -> Floors:
        """Give what both allow."""
        return Floors(
            min(self.null_ns, other.null_ns),
            max(self.around_ns, other.around_ns),
            max(self.idle_ns, other.idle_ns),
            min(self.roofline_ns, other.roofline_ns),
        )


def unseen_ns(call: Call, threads: int) -> int:
    """Give the time of a call that its own report does not account for.

    Processor time where the kernel gives it: a process that merely had to wait for a busy machine used none.
    """
    if call.cpu_ns is None:
        return call.outer_ns - call.inner_ns
    return call.cpu_ns - call.inner_ns * threads


def measure(reference: Reference, rates: Path | None, machine: str) -> Floors:
    """Measure the references now, and put the machine's best rate on record where this moment shows a better one.

    Args:
        reference: Compiled kernels of ours.
        rates: The machine's record; None: this moment alone.
        machine: Whose record.

    Raises:
        CandidateFaultError: Not even these run here.
    """
    threads = reference.threads
    idle = reference.calls(reference.null, threads)
    null = fastest(idle)
    size = floor_bytes(reference.task)
    roofline = 0.0
    if reference.move is not None:
        teams = (1, threads) if threads > 1 else (1,)
        moved = min(fastest(reference.calls(reference.move, team)) for team in teams)
        # What an empty call costs is no movement of memory.
        now = size / max(1, moved - null)
        roofline = size / _rate_on_record(now, rates, machine, threads, size)
    return Floors(
        null_ns=null,
        around_ns=min(unseen_ns(c, threads) for c in idle),
        idle_ns=min(c.idle_ns for c in idle),
        roofline_ns=roofline,
    )


def _rate_on_record(now: float, rates: Path | None, machine: str, threads: int, size: int) -> float:
    known = best_rate(rates, machine, threads, size)
    if known < now <= _MAX_BYTES_PER_NS * threads:
        remember(rates, Rate(machine=machine, threads=threads, size_class=size_class(size), bytes_per_ns=now))
    return max(known, now)


def suspicion(
    times: Sequence[int], unseen: Sequence[int], idle: Sequence[int], floors: Floors, *, typical: bool = False
) -> str:
    """Say what is impossible about a candidate's times, or give an empty string.

    Args:
        times: Reported times, ns.
        unseen: Work per call that the reports do not account for, ns.
        idle: Work between the calls, ns.
        floors: References.
        typical: Compare the median instead of the fastest with the floor: one lucky reading does not decide.
    """
    fast = statistics.median(times) if typical else min(times)
    if fast < floors.floor_ns:
        return f"{fast:.0f} ns is below the floor of {floors.floor_ns:.0f} ns for this much memory"
    work = min(unseen) - floors.around_ns
    if work > floors.around_ns + _SLACK_NS:
        return f"the judge's clock saw at least {work / 1e6:.3f} ms of work per call that the process did not report"
    rest = min(idle, default=0) - floors.idle_ns
    if rest > floors.idle_ns + _SLACK_NS:
        return f"it worked at least {rest / 1e6:.3f} ms between two calls, when nobody had asked for anything"
    return ""
