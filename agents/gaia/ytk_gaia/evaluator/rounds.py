"""Rounds: every candidate in a fresh process over all samples, each output judged; the slower half goes out round by round."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from ytk_core.digests import digest_bytes
from ytk_core.dtypes import itemsize
from ytk_gaia.evaluator import halving
from ytk_gaia.evaluator.arena import Placement
from ytk_gaia.evaluator.compare import judge_sample
from ytk_gaia.evaluator.edges import check_edges
from ytk_gaia.evaluator.floor import unseen_ns
from ytk_gaia.evaluator.options import JudgeOptions
from ytk_gaia.evaluator.reference import Reference
from ytk_gaia.evaluator.schedule import schedule
from ytk_gaia.evaluator.session import Call, CandidateFaultError, Session
from ytk_gaia.evaluator.track import Track
from ytk_gaia.evaluator.used import foreign
from ytk_gaia.evaluator.verdicts import Verdict
from ytk_gaia.task_format import Task

MIN_ROUNDS = 2
"""Fewer processes prove no determinism."""
SICKENING = frozenset({Verdict.RUNTIME_ERROR, Verdict.TIMEOUT, Verdict.OUT_OF_BOUNDS})
"""After these the worker is tried before it takes another candidate: who crashes may have broken more than himself."""


def open_session(
    track: Track, task: Task, group: Sequence[int], placement: Placement, threads: int, options: JudgeOptions
) -> Session:
    """Start a process for a compiled candidate."""
    assert track.bundle is not None
    assert track.built is not None
    assert track.built.library is not None
    alignment = track.bundle.meta.constraints.alignment_bytes
    spec = task.spec.at(group[0])
    return Session(track.built.library, spec, threads, placement, options.mode, options.limits, alignment)


def judge_call(track: Track, task: Task, sample: int, call: Call) -> None:
    """Judge the outputs of one call.

    Raises:
        CandidateFaultError: They are wrong, or others than before.
    """
    comparison = judge_sample(task, sample, call.outputs)
    bits = digest_bytes(b"".join(raw.tobytes() for raw in call.outputs))
    before = track.bits.setdefault(sample, bits)
    name = task.spec.samples[sample].name
    if before != bits:
        # It was right before, or the candidate would not be here any more.
        raise CandidateFaultError(Verdict.NONDETERMINISTIC, f"sample {name}: two calls on the same input differ")
    if not comparison.right:
        raise CandidateFaultError(Verdict.WRONG_VALUE, comparison.where + _unwritten(task, sample, call))
    track.worst_error = max(track.worst_error, comparison.error)


def _unwritten(task: Task, sample: int, call: Call) -> str:
    """Say how much of wrong outputs still is what the judge filled them with: work that was left out, or comes too late."""
    counts = []
    for tensor, raw in zip(task.spec.at(sample).outputs, call.outputs, strict=True):
        elements = raw.reshape(-1, itemsize(tensor.dtype))
        if untouched := int((elements == call.poison).all(axis=1).sum()):
            counts.append(f"{untouched} elements of {tensor.name}")
    return f"; {' and '.join(counts)} had not been written when the launcher returned" if counts else ""


def _check_libraries(session: Session, always: frozenset[str]) -> None:
    strangers = foreign(session.mapped_files(), always) if always else []
    if strangers:
        raise CandidateFaultError(Verdict.NOT_USED, f"it had another library at hand: {', '.join(strangers)}")


def _run_group(
    track: Track, task: Task, group: Sequence[int], threads: int, options: JudgeOptions, always: frozenset[str]
) -> list[tuple[int, Call]]:
    """Run the samples of one shape in a fresh process, judge every call, give the timed ones with their samples."""
    placement = Placement.END if track.rounds % 2 == 0 else Placement.START
    timed_calls = []
    with open_session(track, task, group, placement, threads, options) as session:
        try:
            for number, (sample, timed) in enumerate(schedule(task, group)):
                call = session.call(task.samples[sample].inputs)
                judge_call(track, task, sample, call)
                if timed:
                    timed_calls.append((sample, call))
                if number == 0:
                    # After the first call: a kernel that leaves a worker behind has started it by now.
                    session.control(task.samples[group[-1]].inputs)
            session.control(task.samples[group[0]].inputs)
            _check_libraries(session, always)
            if not track.edges_done and group == task.spec.groups()[0]:
                check_edges(session, track, task)
                track.edges_done = True
        except CandidateFaultError:
            track.log = session.log
            raise
    return timed_calls


def run_round(
    track: Track, task: Task, threads: int, options: JudgeOptions, reference: Reference | None, always: frozenset[str]
) -> None:
    """Run one candidate once over all shapes; it may get its verdict.

    Raises:
        BoardError: It broke the worker.
    """
    # Shapes that are not timed prove nothing more in a third process.
    groups = task.spec.groups() if track.rounds < MIN_ROUNDS else task.spec.groups()[:1]
    found: list[tuple[int, Call]] = []
    for group in groups:
        try:
            found += _run_group(track, task, group, threads, options, always)
        except CandidateFaultError as fault:
            track.end(fault.verdict, fault.reason)
            if reference is not None and fault.verdict in SICKENING:
                reference.check_health(f"{track.id} ended with {fault.verdict}")
            return
    track.times_ns += [call.inner_ns for _, call in found]
    track.steps += [(track.rounds, sample) for sample, _ in found]
    track.unseen_ns += [unseen_ns(call, threads) for _, call in found]
    track.idle_ns += [call.idle_ns for _, call in found]
    track.rounds += 1


def run_rounds(
    tracks: Sequence[Track],
    task: Task,
    threads: int,
    options: JudgeOptions,
    reference: Reference,
    deadline: float,
) -> None:
    """Run rounds over all candidates in turn, then over the faster half, and so on until the finalists are left.

    Every candidate gets the processes that a verdict needs; only the precision of its time depends on how fast it is.
    """
    always = reference.foreign_libraries()
    number, alive = 0, [t for t in tracks if t.running]
    least = max(MIN_ROUNDS, task.spec.rounds)
    while alive:
        for track in alive:
            if time.monotonic() > deadline:
                return
            run_round(track, task, threads, options, reference, always)
        number += 1
        running = [t for t in tracks if t.running and t.times_ns]
        options.progress(min(0.9, 0.3 * number), best_so_far(running))
        if number < least:
            alive = [t for t in alive if t.running]
            continue
        alive = [t for t in alive if t.running]
        kept = halving.survivors({t.id: t.median_ns for t in alive}, options.baseline)
        if len(kept) >= len(alive):
            return
        alive = [t for t in alive if t.id in kept]
        if len(alive) <= halving.FINALISTS:
            return


def best_so_far(tracks: Sequence[Track]) -> str:
    """Name the fastest candidate that is still right, for people."""
    if not tracks:
        return "no candidate has passed so far"
    best = min(tracks, key=lambda t: statistics.median(t.times_ns))
    return f"best so far {best.id}, {best.median_ns / 1e6:.4f} ms"
