"""A first look: a few calls of each candidate in a process of its own, so that only those that may win are measured in full.

What a verdict needs (every sample in several processes, calls outside the contract, calls in a row) takes a second and more per
candidate; a candidate that is far behind shows it in three calls. The look decides who is measured, never who passes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from ytk_gaia.evaluator import finals
from ytk_gaia.evaluator.arena import Placement
from ytk_gaia.evaluator.floor import Floors, suspicion, unseen_ns
from ytk_gaia.evaluator.options import JudgeOptions
from ytk_gaia.evaluator.reference import Reference
from ytk_gaia.evaluator.rounds import HOPELESS, SICKENING, judge_call, open_session
from ytk_gaia.evaluator.schedule import schedule
from ytk_gaia.evaluator.session import CandidateFaultError
from ytk_gaia.evaluator.track import Track
from ytk_gaia.evaluator.verdicts import Verdict
from ytk_gaia.task_format import Task

KEPT = 5
"""As many go on to be measured in full, besides the baseline: one more than are compared side by side in the end."""
CALLS = 3
"""Timed calls of a look; each on an input that the process has not seen, as any timed call."""


def screen(
    tracks: Sequence[Track],
    task: Task,
    threads: int,
    options: JudgeOptions,
    reference: Reference,
    until: float,
    floors: Floors,
) -> list[Track]:
    """Look at every candidate in turn; give those that are worth measuring in full: the baseline, then the fastest first.

    The others get NO_EVIDENCE with how far behind they were; their ratio to the baseline is kept. Where there are few, all are worth it.

    Args:
        tracks: Compiled candidates, in the order in which they are looked at.
        task: What they are given.
        threads: For each.
        options: Baseline, limits.
        reference: Of the worker's health.
        until: On the monotonic clock; who was not looked at by then is NO_EVIDENCE.
        floors: Whose time is below them is nobody's yardstick.
    """
    alive = [t for t in tracks if t.running]
    if options.in_full or len([t for t in alive if t.id != options.baseline]) <= KEPT:
        return alive
    for track in alive:
        if time.monotonic() > until:
            track.end(Verdict.NO_EVIDENCE, "not looked at within the budget")
        else:
            _look(track, task, threads, options, reference)
    alive = [t for t in alive if t.running]
    _against_baseline(alive, options.baseline)
    return worth_measuring(alive, options.baseline, floors)


def _look(track: Track, task: Task, threads: int, options: JudgeOptions, reference: Reference) -> None:
    group = task.spec.groups()[0]
    plan = schedule(task, group)
    calls = [step for step in plan if not step[1]][:1] + [step for step in plan if step[1]][:CALLS]
    try:
        with open_session(track, task, group, Placement.END, threads, options) as session:
            try:
                for sample, timed in calls:
                    call = session.call(task.samples[sample].inputs)
                    judge_call(track, task, sample, call)
                    if timed:
                        track.looked_ns[sample] = call.inner_ns
                        track.looked_unseen_ns.append(unseen_ns(call, threads))
            except CandidateFaultError:
                track.log = session.log
                raise
    except CandidateFaultError as fault:
        track.end(fault.verdict, fault.reason)
        if fault.verdict in SICKENING:
            reference.check_health(f"{track.id} ended with {fault.verdict}")


def _against_baseline(tracks: Sequence[Track], baseline: str) -> None:
    base = next((t for t in tracks if t.id == baseline), None)
    for track in tracks if base is not None else ():
        assert base is not None
        common = sorted(track.looked_ns.keys() & base.looked_ns.keys())
        track.baseline = finals.paired_ratio(
            [track.looked_ns[s] for s in common], [base.looked_ns[s] for s in common], baseline
        )


def worth_measuring(tracks: Sequence[Track], baseline: str, floors: Floors) -> list[Track]:
    """Give those that may still win, the baseline and then the fastest first; the others are told why they are out.

    Who lies about his time must not put honest ones out: only who is not under suspicion takes a place or is compared with.

    Args:
        tracks: Those that were looked at.
        baseline: Goes on whatever its time.
        floors: Of this machine.
    """
    ranked = sorted(tracks, key=lambda t: min(t.looked_ns.values()))
    honest = [t for t in ranked if not suspicion([*t.looked_ns.values()], t.looked_unseen_ns, [], floors)]
    places = {t.id for t in [t for t in honest if t.id != baseline][:KEPT]}
    kept = []
    for track in ranked:
        behind = min(track.looked_ns.values()) / max(1, min(honest[0].looked_ns.values())) if honest else 1.0
        # Who is under suspicion is measured as well: the verdict is not a look's to give.
        if track.id == baseline or track not in honest or (track.id in places and behind <= HOPELESS):
            kept.append(track)
        else:
            reason = f"{behind:.1f} times as slow as {honest[0].id} in {len(track.looked_ns)} calls"
            track.end(Verdict.NO_EVIDENCE, f"not measured in full: {reason}")
    return sorted(kept, key=lambda t: t.id != baseline)
