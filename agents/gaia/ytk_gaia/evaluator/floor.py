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
from ytk_gaia.evaluator.reference import LEAST_MOVED, Reference, fastest, floor_bytes, moved_bytes
from ytk_gaia.evaluator.session import Call
from ytk_gaia.evaluator.verdicts import Roofline
from ytk_gaia.task_format import Task

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


_IDLE_NS = 6_000_000
"""Of all pauses of a process: half of what a thread that never rests uses in a single control (:mod:`.candidate_runner`)."""
_ROW_NS, _ROW_MOST, _ROW_WORTH_NS = 10_000_000, 400, 2_000_000
_ROW_SHARE, _ROW_SLACK_NS = 0.25, 1_000_000
_SLOWER, _SLOWER_NS = 1.6, 5_000
"""Calls in a row find caches and threads warm, so they are no slower than single ones; a machine's moods are less than this."""


@dataclass(frozen=True)
class InARow:
    """Several calls on one input without a look in between.

    One call's lie of some microseconds is lost in what goes on around it; that of many calls is not.

    Attributes:
        times: How many.
        told_ns: What the process says that all of them took.
        real_ns: What the judge's clock says, without the time that the judge had to wait for a processor.
        ran_ns: The same without the time that the process had to wait, which its own report contains.
    """

    times: int
    told_ns: int
    real_ns: int
    ran_ns: int


def times_in_a_row(single_ns: float) -> int:
    """Give how many calls in a row show whether a clock is right; 0: single calls are long enough to show it."""
    if single_ns > _ROW_WORTH_NS:
        return 0
    return max(8, min(_ROW_MOST, round(_ROW_NS / max(1.0, single_ns))))


@dataclass(frozen=True)
class Floors:
    """References of one moment, or the most lenient of several.

    Attributes:
        null_ns: Fastest empty call.
        around_ns: What the judge sees around an empty call at the least.
        idle_ns: Processor time of an empty kernel's process between two calls, at the least.
        roofline_ns: Fastest time in which the region's memory was moved.
        rate_now: Rate at which a plain kernel moved it now, in bytes per nanosecond.
        rate_best: Best rate on record.
    """

    null_ns: int = 0
    around_ns: int = 0
    idle_ns: int = 0
    roofline_ns: float = 0.0
    rate_now: float = 0.0
    rate_best: float = 0.0

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
            max(self.rate_now, other.rate_now),
            max(self.rate_best, other.rate_best),
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
    roofline = now = best = 0.0
    if reference.move is not None:
        teams = (1, threads) if threads > 1 else (1,)
        moved = min(fastest(reference.calls(reference.move, team)) for team in teams)
        # What an empty call costs is no movement of memory.
        now = size / max(1, moved - null)
        best = _rate_on_record(now, rates, machine, threads, size)
        roofline = size / best
    return Floors(
        null_ns=null,
        around_ns=min(unseen_ns(c, threads) for c in idle),
        idle_ns=min((c.idle_ns for c in idle if c.idle_ns > 0), default=0),
        roofline_ns=roofline,
        rate_now=now,
        rate_best=best,
    )


def rooflines(task: Task, peak: float, now: float, share: float = _ROOFLINE_SHARE) -> tuple[Roofline, ...]:
    """Give what memory allows at each shape of a task, the timed one first.

    Args:
        task: Its shapes.
        peak: Best rate, bytes per nanosecond (GB/s); 0: unknown.
        now: Rate of this moment; 0: not measured.
        share: Of the roofline, below which no time is believed.
    """
    found = []
    for group in task.spec.groups() if peak > 0 else ():
        spec = task.spec.at(group[0])
        size = moved_bytes(spec, spec.must_read_bytes if spec.samples[group[0]].shapes is None else 0)
        if size >= LEAST_MOVED:
            found.append(
                Roofline(
                    shapes=", ".join("x".join(map(str, t.shape)) or "scalar" for t in spec.inputs),
                    bytes=size,
                    measured_gb_s=now,
                    peak_gb_s=peak,
                    roofline_ms=size / peak / 1e6,
                    floor_ms=share * size / peak / 1e6,
                )
            )
    return tuple(found)


def _rate_on_record(now: float, rates: Path | None, machine: str, threads: int, size: int) -> float:
    known = best_rate(rates, machine, threads, size)
    if known < now <= _MAX_BYTES_PER_NS * threads:
        remember(rates, Rate(machine=machine, threads=threads, size_class=size_class(size), bytes_per_ns=now))
    return max(known, now)


def _false_clock(times: Sequence[int], rows: Sequence[InARow], floors: Floors) -> str:
    """Say what calls in a row show of single ones; the row that is easiest on the candidate counts."""
    hidden = min((row.real_ns - row.told_ns - _ROW_SHARE * row.told_ns for row in rows), default=0.0)
    if hidden > floors.around_ns + _ROW_SLACK_NS:
        row = rows[0]
        return f"{row.times} calls in a row took {row.real_ns / 1e6:.3f} ms, of which the process reported {row.told_ns / 1e6:.3f} ms"
    each = min(((row.ran_ns - floors.around_ns) / row.times for row in rows), default=0.0)
    single = statistics.median(times)
    if each > _SLOWER * single + _SLOWER_NS:
        return f"a call takes {each / 1e6:.4f} ms in a row of many, and was reported with {single / 1e6:.4f} ms alone"
    return ""


def worked_between(idle: Sequence[int], idle_ns: int = 0) -> str:
    """Say how much a process worked in its pauses, if that is more than it takes to answer; else give an empty string.

    The sum counts and no single pause: the operating system accounts a thread that never rests by its tick, so it shows as nothing in
    one pause and as milliseconds in the next.

    Args:
        idle: Processor time per pause, ns.
        idle_ns: What an empty kernel's process used in one at the least.
    """
    if sum(idle) - len(idle) * (2 * idle_ns + _SLACK_NS) <= _IDLE_NS:
        return ""
    return f"it worked {sum(idle) / 1e6:.1f} ms in {len(idle)} pauses between two calls"


def suspicion(
    times: Sequence[int],
    unseen: Sequence[int],
    idle: Sequence[int],
    floors: Floors,
    rows: Sequence[InARow] = (),
    *,
    typical: bool = False,
) -> str:
    """Say what is impossible about a candidate's times, or give an empty string.

    Args:
        times: Reported times, ns.
        unseen: Work per call that the reports do not account for, ns.
        idle: Work between the calls, ns.
        floors: References.
        rows: Calls in a row.
        typical: Compare the median instead of the fastest with the floor: one lucky reading does not decide.
    """
    fast = statistics.median(times) if typical else min(times)
    if fast < floors.floor_ns:
        return f"{fast:.0f} ns is below the floor of {floors.floor_ns:.0f} ns for this much memory"
    work = min(unseen) - floors.around_ns
    if work > floors.around_ns + _SLACK_NS:
        return f"the judge's clock saw at least {work / 1e6:.3f} ms of work per call that the process did not report"
    worked = worked_between(idle, floors.idle_ns)
    if worked:
        return f"{worked}, when nobody had asked for anything"
    return _false_clock(times, rows, floors)
