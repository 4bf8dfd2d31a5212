"""The judge: builds candidates, runs each in fresh processes, and decides by the data they leave.

Every process sees every sample once: structured ones first, as warm-up, then the random ones, which are timed. So no timed
input was seen before, and every output, timed or not, is judged. Processes of different candidates take turns, so that a
machine that changes its pace does so for all (:mod:`.rounds`); in the end the best run side by side, call by call
(:mod:`.side_by_side`). Whether a time is believable is :mod:`.floor`'s question, whether a contract fits :mod:`.contract`'s and
:mod:`.edges`'s, and whether it was the kernel at all that gave the outputs :mod:`.used`'s.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ytk_core.archspec import ArchSpec
from ytk_core.conditions import Conditions
from ytk_core.formats.kernel_bundle import KernelBundle
from ytk_gaia.evaluator import floor, rounds, side_by_side
from ytk_gaia.evaluator.build import compiler_version
from ytk_gaia.evaluator.floor import Floors
from ytk_gaia.evaluator.machine_rates import machine_id
from ytk_gaia.evaluator.opening import Opening, begin
from ytk_gaia.evaluator.options import JudgeOptions
from ytk_gaia.evaluator.prepare import prepare_all
from ytk_gaia.evaluator.reference import Reference, build_reference, floor_bytes, sick
from ytk_gaia.evaluator.schedule import WARM_UP_CALLS
from ytk_gaia.evaluator.screening import screen
from ytk_gaia.evaluator.session import CandidateFaultError
from ytk_gaia.evaluator.track import Track
from ytk_gaia.evaluator.verdicts import Evaluation, Verdict
from ytk_gaia.task_format import Task

_BUILD_SHARE, _LOOK_SHARE, _ROUNDS_SHARE = 0.6, 0.8, 0.7
"""Parts of the time, each of what is left: what compilers may take, the first look, and what comes before the last comparison."""


def evaluate(
    task: Task, candidates: Mapping[str, str], arch: ArchSpec, workdir: Path, options: JudgeOptions | None = None
) -> Evaluation:
    """Judge candidates.

    Args:
        task: Inputs, expectations, limits.
        candidates: Id to text of a kernel bundle.
        arch: What they are compiled for; this machine must be able to run it.
        workdir: Gets one directory per candidate.
        options: Budget, threads, sandbox, baseline.

    Returns:
        A verdict for every candidate. Nothing a candidate does raises.

    Raises:
        BoardError: No sandbox where one is required, or the worker is sick.
        NotAvailableError: No compiler.
        UserError: The arch spec is no CPU.
    """
    tracks = [Track(name) for name in candidates]
    opening = begin({0: task}, tracks, workdir, options)
    options, workdir, deadline = opening.options, opening.workdir, opening.deadline
    threads = options.threads or len(os.sched_getaffinity(0))
    if any(track.running for track in tracks):
        built = time.monotonic() + _BUILD_SHARE * options.budget_s
        prepare_all(tracks, candidates, task, arch, workdir, options.mode, built, options.compiled)
    floors = Floors()
    like = next((t.bundle for t in tracks if t.running), None)
    if like is not None:
        floors = _measure(tracks, like, task, arch, workdir, threads, options, deadline)
    for track in tracks:
        _conclude(track)
    return _evaluation(task, tracks, arch, threads, opening, floors)


def _measure(
    tracks: Sequence[Track],
    like: KernelBundle,
    task: Task,
    arch: ArchSpec,
    workdir: Path,
    threads: int,
    options: JudgeOptions,
    deadline: float,
) -> Floors:
    """Run everything that runs, and give the floors that held in the end."""
    reference = build_reference(like, task, arch, workdir / "build", threads, options.mode, options.limits)
    floors = _references(reference, options)
    options.progress(0.2, f"{sum(t.running for t in tracks)} of {len(tracks)} candidates compiled")
    now = time.monotonic()
    worth = screen(tracks, task, threads, options, reference, now + _LOOK_SHARE * (deadline - now), floors)
    now = time.monotonic()
    rounds.run_rounds(worth, task, threads, options, reference, now + _ROUNDS_SHARE * (deadline - now), floors)
    earlier = {t.id: dict(zip(t.steps, t.times_ns, strict=True)) for t in tracks}
    if all(t.rounds >= rounds.MIN_ROUNDS for t in tracks if t.running):
        side_by_side.compare(tracks, task, options, reference, deadline)
    for track in tracks:
        if track.running and track.rounds >= rounds.MIN_ROUNDS:
            floors = _believe(track, floors, reference, task, options)
    side_by_side.against_baseline(tracks, earlier, options.baseline)
    options.progress(0.95, rounds.best_so_far([t for t in tracks if t.running and t.times_ns]))
    return floors


def _references(reference: Reference, options: JudgeOptions) -> Floors:
    try:
        return floor.measure(reference, options.rates, machine_id(options.device_uid))
    except CandidateFaultError as fault:
        raise sick(fault.reason) from fault


def _believe(track: Track, floors: Floors, reference: Reference, task: Task, options: JudgeOptions) -> Floors:
    """Decide whether a candidate's times are possible; give the floors, which a second look may have made more lenient."""
    reason = floor.suspicion(track.times_ns, track.unseen_ns, track.idle_ns, floors, track.in_a_row)
    if not reason:
        return floors
    times, steps = list(track.times_ns), list(track.steps)
    for _ in range(floor.PASSES):
        floors = floors.lenient(_references(reference, options))
        track.times_ns, track.steps, track.unseen_ns, track.idle_ns, track.in_a_row = [], [], [], [], []
        rounds.run_round(track, task, reference.threads, options, reference, frozenset())
        if not track.running:
            return floors
        reason = floor.suspicion(track.times_ns, track.unseen_ns, track.idle_ns, floors, track.in_a_row, typical=True)
        if not reason:
            track.times_ns, track.steps = times, steps
            return floors
    track.times_ns, track.steps = times, steps
    track.end(Verdict.IMPOSSIBLE_TIME, f"{reason}, in {floor.PASSES} of {floor.PASSES} further measurements")
    return floors


def _conclude(track: Track) -> None:
    if not track.running:
        return
    if track.rounds < rounds.MIN_ROUNDS:
        track.end(Verdict.NO_EVIDENCE, f"{track.rounds} of {rounds.MIN_ROUNDS} processes within the budget")
    else:
        track.end(Verdict.PASSED, "")


def _evaluation(
    task: Task,
    tracks: Sequence[Track],
    arch: ArchSpec,
    threads: int,
    opening: Opening,
    floors: Floors,
) -> Evaluation:
    options = opening.options
    return Evaluation(
        arch_spec=str(arch),
        region_digest=task.spec.region_digest,
        candidates=tuple(track.result() for track in tracks),
        conditions=_conditions(task, tracks, threads, opening),
        threads=threads,
        compiler=compiler_version(),
        sandbox=opening.sandbox.kind,
        floor_ms=floors.floor_ns / 1e6,
        floor_bytes=floor_bytes(task),
        roofline_ms=floors.roofline_ns / 1e6,
        rooflines=floor.rooflines(task, floors.rate_best, floors.rate_now),
        machine=machine_id(options.device_uid),
        call_overhead_ms=floors.null_ns / 1e6,
        self_test=opening.self_test,
        baseline=options.baseline,
        notes=tuple(task.spec.notes),
    )


def _conditions(task: Task, tracks: Sequence[Track], threads: int, opening: Opening) -> Conditions:
    calls = [track.rounds * sum(s.timed for s in task.spec.samples) for track in tracks]
    return opening.conditions(
        iterations=max(calls, default=0),
        warmup=max(WARM_UP_CALLS, sum(not s.timed for s in task.spec.samples)),
        threads=threads,
        engine="direct call",
        device_uid=opening.options.device_uid,
    )
