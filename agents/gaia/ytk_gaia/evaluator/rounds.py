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
from ytk_gaia.evaluator.floor import Floors, InARow, suspicion, times_in_a_row, unseen_ns
from ytk_gaia.evaluator.options import JudgeOptions
from ytk_gaia.evaluator.ranges import check_ranges
from ytk_gaia.evaluator.reference import Reference
from ytk_gaia.evaluator.schedule import schedule
from ytk_gaia.evaluator.session import Call, CandidateFaultError, Session
from ytk_gaia.evaluator.track import Track
from ytk_gaia.evaluator.used import foreign
from ytk_gaia.evaluator.verdicts import Verdict
from ytk_gaia.task_format import Task, TaskSpec

MIN_ROUNDS = 2
"""Fewer processes prove no determinism."""
_FIRST_LOOK = 0.5
"""Part of the time that the first round may take."""
HOPELESS = 3.0
"""How many times slower than the best one needs no second process: no mood of a machine lasts for all calls of a process."""
SICKENING = frozenset({Verdict.RUNTIME_ERROR, Verdict.TIMEOUT, Verdict.OUT_OF_BOUNDS})
"""After these the worker is tried before it takes another candidate: who crashes may have broken more than himself."""


def open_session(
    track: Track, task: Task, group: Sequence[int], placement: Placement, threads: int, options: JudgeOptions
) -> Session:
    """Start a process for a compiled candidate, with buffers of the shapes of some samples."""
    return _open_at(track, task.spec.at(group[0]), placement, threads, options)


def _open_at(track: Track, spec: TaskSpec, placement: Placement, threads: int, options: JudgeOptions) -> Session:
    assert track.bundle is not None
    assert track.built is not None
    assert track.built.library is not None
    alignment = track.bundle.meta.constraints.alignment_bytes
    library, variant = track.built.library, track.variant
    return Session(library, spec, threads, placement, options.mode, options.limits, alignment, None, variant)


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
            if timed_calls:
                _call_in_a_row(session, track, task, timed_calls)
            session.control(task.samples[group[0]].inputs)
            track.idle_ns += session.idle_ns
            _check_libraries(session, always)
            if not track.edges_done and group == task.spec.groups()[0]:
                check_edges(session, track, task)
                check_ranges(track, task, lambda spec: _open_at(track, spec, placement, threads, options))
                track.edges_done = True
        except CandidateFaultError:
            track.log = session.log
            raise
    return timed_calls


def _call_in_a_row(session: Session, track: Track, task: Task, timed: Sequence[tuple[int, Call]]) -> None:
    """Call a kernel many times without looking, if its single calls are too short to hold a clock against."""
    times = times_in_a_row(statistics.median(call.inner_ns for _, call in timed))
    if times:
        sample = timed[0][0]
        call = session.call(task.samples[sample].inputs, times=times)
        judge_call(track, task, sample, call)
        real = call.outer_ns - call.waited_ns[1]
        track.in_a_row.append(InARow(times, call.inner_ns, real, real - call.waited_ns[0]))


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
    track.rounds += 1


def run_rounds(
    tracks: Sequence[Track],
    task: Task,
    threads: int,
    options: JudgeOptions,
    reference: Reference,
    deadline: float,
    floors: Floors,
) -> None:
    """Run rounds over all candidates in turn, then over the faster half, and so on until the finalists are left.

    The first round may take a part of the time only, and the next begins with the fastest and leaves out who is hopeless: whenever the
    budget ends, the best of those that had a process have all that a verdict needs.

    Args:
        tracks: Candidates in the order in which they are measured.
        task: What they are given.
        threads: For each.
        options: Baseline, limits, progress.
        reference: Of the worker's health.
        deadline: On the monotonic clock.
        floors: Whose time is below them is nobody's yardstick.
    """
    always = reference.foreign_libraries()
    number, alive = 0, [t for t in tracks if t.running]
    least = max(MIN_ROUNDS, task.spec.rounds)
    started = time.monotonic()
    while alive:
        until = started + _FIRST_LOOK * (deadline - started) if number == 0 else deadline
        for track in alive:
            if time.monotonic() > until:
                break
            run_round(track, task, threads, options, reference, always)
        number += 1
        running = [t for t in tracks if t.running and t.times_ns]
        options.progress(min(0.9, 0.3 * number), best_so_far(running))
        late = [t for t in alive if t.running and t.rounds < number]
        alive = [t for t in alive if t.running and t.rounds == number]
        for track in late:
            if track.rounds < least:
                track.end(Verdict.NO_EVIDENCE, f"{track.rounds} of {least} processes within the budget")
        if number < least:
            alive = alive if options.in_full else _worth_another(alive, options.baseline, floors)
            continue
        if late:
            return
        kept = halving.survivors({t.id: t.median_ns for t in alive}, options.baseline)
        if len(kept) >= len(alive):
            return
        alive = [t for t in alive if t.id in kept]
        if len(alive) <= halving.FINALISTS:
            return


def _worth_another(tracks: Sequence[Track], baseline: str, floors: Floors) -> list[Track]:
    """Give those that may still win, the baseline and then the fastest first; the others are told why they are out.

    Who lies about his time must not put honest ones out: only who is not under suspicion is what others are compared with.
    """
    honest = [t for t in tracks if not suspicion(t.times_ns, t.unseen_ns, t.idle_ns, floors, t.in_a_row)]
    best = min(honest, key=lambda t: min(t.times_ns), default=None)
    kept = []
    for track in tracks:
        behind = min(track.times_ns) / max(1, min(best.times_ns)) if best is not None else 1.0
        if best is not None and behind > HOPELESS and track.id != baseline:
            reason = f"not measured further: {behind:.1f} times as slow as {best.id} in its first process"
            track.end(Verdict.NO_EVIDENCE, reason)
        else:
            kept.append(track)
    return sorted(kept, key=lambda t: (t.id != baseline, t.median_ns))


def best_so_far(tracks: Sequence[Track]) -> str:
    """Name the fastest candidate that is still right, for people."""
    if not tracks:
        return "no candidate has passed so far"
    best = min(tracks, key=lambda t: statistics.median(t.times_ns))
    return f"best so far {best.id}, {best.median_ns / 1e6:.4f} ms"
