"""The last comparison as it is run: every finalist a process at the same time, every timed sample to all of them in turn."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from ytk_gaia.evaluator import finals
from ytk_gaia.evaluator.arena import Placement
from ytk_gaia.evaluator.floor import unseen_ns, worked_between
from ytk_gaia.evaluator.halving import FINALISTS
from ytk_gaia.evaluator.options import JudgeOptions
from ytk_gaia.evaluator.reference import Reference
from ytk_gaia.evaluator.rounds import SICKENING, judge_call, open_session
from ytk_gaia.evaluator.schedule import schedule
from ytk_gaia.evaluator.session import CandidateFaultError, Session
from ytk_gaia.evaluator.track import Track
from ytk_gaia.evaluator.verdicts import Verdict
from ytk_gaia.task_format import Task

_MOST_REPEATS = 3
"""More pairs tell candidates apart that fewer do not, but what is a tie after so many is one."""
_KEEP_WITHIN = 1.5
"""Candidates slower than this multiple of the best cannot win any more."""


def finalists(tracks: Sequence[Track], baseline: str) -> list[Track]:
    """Give those that can still win, the best first, and the baseline."""
    alive = sorted((t for t in tracks if t.running and t.times_ns), key=lambda t: t.median_ns)
    close = [t for t in alive if t.median_ns <= _KEEP_WITHIN * alive[0].median_ns][:FINALISTS]
    return close + [t for t in alive if t.id == baseline and t not in close]


class _FinalistOutError(Exception):
    """A finalist got a verdict; the pass is begun again without it."""


@contextlib.contextmanager
def _blamed(track: Track, reference: Reference, session: Session | None = None) -> Iterator[None]:
    try:
        yield
    except CandidateFaultError as fault:
        if session is not None:
            track.log = session.log
        track.end(fault.verdict, fault.reason)
        if fault.verdict in SICKENING:
            reference.check_health(f"{track.id} ended with {fault.verdict}")
        raise _FinalistOutError from fault


def _one_pass(
    tracks: list[Track],
    task: Task,
    placement: Placement,
    options: JudgeOptions,
    reference: Reference,
    stack: ExitStack,
) -> finals.Pairs:
    threads, group = reference.threads, task.spec.groups()[0]
    sessions: list[Session] = []
    for track in tracks:
        with _blamed(track, reference):
            session = open_session(track, task, group, placement, threads, options)
            sessions.append(stack.enter_context(session))
    pairs = finals.Pairs([[] for _ in tracks], [[] for _ in tracks])
    plan = schedule(task, group)
    cold = [(sample, True) for sample, timed in plan if timed][: finals.COLD_SAMPLES]
    steps = [(sample, timed, False) for sample, timed in plan] + [(sample, timed, True) for sample, timed in cold]
    for step, (sample, timed, flushed) in enumerate(steps):
        for k in finals.turns(len(tracks), step):
            with _blamed(tracks[k], reference, sessions[k]):
                call = sessions[k].call(task.samples[sample].inputs, flush=flushed)
                judge_call(tracks[k], task, sample, call)
            if timed:
                (pairs.cold if flushed else pairs.warm)[k].append(call.inner_ns)
                if not flushed:
                    tracks[k].unseen_ns.append(unseen_ns(call, threads))
    for track, session in zip(tracks, sessions, strict=True):
        worked = worked_between(session.idle_ns)
        if worked:
            with _blamed(track, reference, session):
                raise CandidateFaultError(Verdict.IMPOSSIBLE_TIME, f"{worked}, while others were measured")
    return pairs


def _told_apart(pairs: finals.Pairs) -> bool:
    """Say whether there is no doubt any more which finalist is the fastest."""
    best = finals.best_of(pairs.warm)
    others = [times for k, times in enumerate(pairs.warm) if k != best]
    return all(finals.paired_ratio(times, pairs.warm[best], "").decided for times in others)


def compare(tracks: Sequence[Track], task: Task, options: JudgeOptions, reference: Reference, deadline: float) -> None:
    """Compare those that can still win, pair by pair, once with each placement of the buffers, and again while there is doubt and time.

    A finalist that misbehaves here is out (its verdict says why); the pairs of that pass are not used.

    Raises:
        BoardError: A finalist broke the worker.
    """
    while (contenders := finalists(tracks, options.baseline)) and time.monotonic() <= deadline:
        total = finals.Pairs([[] for _ in contenders], [[] for _ in contenders])
        try:
            for _ in range(_MOST_REPEATS if len(contenders) > 1 else 1):
                began = time.monotonic()
                for placement in (Placement.END, Placement.START):
                    with contextlib.ExitStack() as stack:
                        found = _one_pass(contenders, task, placement, options, reference, stack)
                    for k in range(len(contenders)):
                        total.warm[k] += found.warm[k]
                        total.cold[k] += found.cold[k]
                if _told_apart(total) or 2 * time.monotonic() - began > deadline:
                    break
        except _FinalistOutError:
            continue
        best = finals.best_of(total.warm)
        # Rounds before any other: no step of theirs is a step of the finals.
        steps = [(-1, step) for step in range(len(total.warm[0]))]
        for k, track in enumerate(contenders):
            track.times_ns, track.steps = total.warm[k], steps
            track.cold_ns = total.cold[k]
            track.ratio = finals.paired_ratio(total.warm[k], total.warm[best], contenders[best].id)
        return


def against_baseline(tracks: Sequence[Track], rounds_of: dict[str, dict[tuple[int, int], int]], baseline: str) -> None:
    """Give every candidate its time relative to the baseline's, from what was measured at the same steps.

    Args:
        tracks: Those with times; finalists have those of the finals.
        rounds_of: Id to step to time, of the rounds before the finals.
        baseline: Id.
    """
    reference = next((t for t in tracks if t.id == baseline and t.running and t.times_ns), None)
    if reference is None:
        return
    last = dict(zip(reference.steps, reference.times_ns, strict=True))
    for track in tracks:
        if not (track.running and track.times_ns):
            continue
        own, other = dict(zip(track.steps, track.times_ns, strict=True)), last
        if not own.keys() & other.keys():
            own, other = rounds_of[track.id], rounds_of[baseline]
        common = sorted(own.keys() & other.keys())
        if common:
            track.baseline = finals.paired_ratio([own[s] for s in common], [other[s] for s in common], baseline)
