"""The judge of CUDA kernels on a GPU: as on a CPU, but times are the GPU's own (events), and caches are flushed by its own size.

Every candidate runs in fresh processes that hold no expected value. Each call gets fresh inputs in device memory with red zones,
poisoned outputs, one run that is timed and counts, and one with cold caches whose bits must be the same. Rounds of all candidates
take turns, and times of the same round and sample are compared with one another.
"""

from __future__ import annotations

import os
import re
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ytk_core.archspec import ArchSpec
from ytk_gaia.evaluator import cuda_build
from ytk_gaia.evaluator.arena import Placement
from ytk_gaia.evaluator.build import compiler_version
from ytk_gaia.evaluator.cuda_device import GpuConditions, GpuDevice, drift, gpu_state
from ytk_gaia.evaluator.device_facts import DeviceFacts, nvrtc_for
from ytk_gaia.evaluator.emulated import variants_fit
from ytk_gaia.evaluator.finals import COLD_SAMPLES, best_of, paired_ratio, turns
from ytk_gaia.evaluator.floor import rooflines
from ytk_gaia.evaluator.halving import FINALISTS
from ytk_gaia.evaluator.opening import begin
from ytk_gaia.evaluator.options import JudgeOptions
from ytk_gaia.evaluator.reference import floor_bytes
from ytk_gaia.evaluator.rounds import judge_call
from ytk_gaia.evaluator.schedule import WARM_UP_CALLS, schedule
from ytk_gaia.evaluator.session import Call, CandidateFaultError, Session
from ytk_gaia.evaluator.track import Track
from ytk_gaia.evaluator.verdicts import CandidateResult, Evaluation, Verdict
from ytk_gaia.task_format import Task

ROUNDS = 4
"""Fresh processes per candidate; two prove determinism, the others time those that can still win."""
MIN_ROUNDS = 2
_KEEP_WITHIN = 1.3
_BANDWIDTH_MARGIN = 4.0
"""A second-level cache is this much faster than memory at most; below that a time is impossible."""
_SAID = re.compile(r"^ytk-gpu: (.*) \((-?\d+)\)$", re.MULTILINE)


@dataclass
class _Candidate:
    """One candidate under way."""

    track: Track
    facts: DeviceFacts | None = None

    def result(self) -> CandidateResult:
        """Give what the evaluation says of it."""
        from msgspec.structs import replace

        return replace(self.track.result(), device=self.facts)


def named(fault: CandidateFaultError, log: str) -> CandidateFaultError:
    """Give a fault the name of what the process said before it."""
    said = _SAID.findall(log)
    if not said:
        return fault
    text, value = said[-1]
    words = {
        "out of bounds:": Verdict.OUT_OF_BOUNDS,
        "mutated:": Verdict.MUTATED_INPUT,
        "nondeterministic:": Verdict.NONDETERMINISTIC,
    }
    verdict = next((v for word, v in words.items() if text.startswith(word)), Verdict.RUNTIME_ERROR)
    return CandidateFaultError(verdict, f"{text} {value}")


def floor_ns(size_bytes: int, bandwidth: float) -> float:
    """Give the time below which no kernel can have moved so much."""
    return size_bytes / (bandwidth * _BANDWIDTH_MARGIN) * 1e9 if bandwidth > 0 else 0.0


def _prepare(
    candidate: _Candidate, text: str, tasks: Mapping[int, Task], arch: ArchSpec, device: GpuDevice, directory: Path,
    options: JudgeOptions,
) -> None:  # fmt: skip
    track = candidate.track
    bundle = track.take(text, lambda bundle: variants_fit(bundle, tasks))
    if bundle is None:
        return
    directory.mkdir(parents=True)
    track.built, candidate.facts, verdict = cuda_build.build(
        bundle, arch, nvrtc_for(arch), device.index, directory, options.mode
    )
    if verdict is not None:
        track.log = track.built.log
        first = next((line for line in track.log.splitlines() if "error" in line), track.log[:200])
        track.end(verdict, first)


def _open(
    track: Track, task: Task, group: Sequence[int], variant: int, placement: Placement, options: JudgeOptions
) -> Session:
    assert track.bundle is not None
    assert track.built is not None
    assert track.built.library is not None
    library = track.built.library
    return Session(
        library,
        task.spec.at(group[0]),
        cuda_build.variant_code(variant),
        placement,
        options.mode,
        options.limits,
        track.bundle.meta.constraints.alignment_bytes,
        cuda_build.run_policy(library),
    )


def _calls(
    track: Track, task: Task, group: Sequence[int], variant: int, options: JudgeOptions, *, cold: bool = False
) -> list[tuple[int, Call]]:
    """Run the samples of one shape in a fresh process; judge every call, give the timed ones.

    Raises:
        CandidateFaultError: The candidate is wrong, or misbehaves.
    """
    placement = Placement.END if track.rounds % 2 == 0 else Placement.START
    found = []
    with _open(track, task, group, variant, placement, options) as session:
        try:
            for sample, timed in schedule(task, group):
                call = session.call(task.samples[sample].inputs, flush=cold)
                judge_call(track, task, sample, call)
                if timed:
                    found.append((sample, call))
            session.control(task.samples[group[0]].inputs)
        except CandidateFaultError as fault:
            track.log = session.log
            raise named(fault, track.log) from fault
    return found


def _round(track: Track, tasks: Mapping[int, Task], options: JudgeOptions) -> None:
    """Run one candidate in fresh processes: every variant in the first rounds, then only the one that is timed."""
    for variant, task in sorted(tasks.items()):
        if variant and track.rounds >= MIN_ROUNDS:
            continue
        groups = task.spec.groups() if track.rounds < MIN_ROUNDS else task.spec.groups()[:1]
        bits, track.bits = track.bits, (track.bits if variant == min(tasks) else {})
        try:
            for group in groups:
                for sample, call in _calls(track, task, group, variant, options):
                    if variant == min(tasks):
                        track.times_ns.append(call.inner_ns)
                        track.steps.append((track.rounds, sample))
                        track.unseen_ns.append(call.outer_ns - call.inner_ns)
        except CandidateFaultError as fault:
            name = track.bundle.meta.variants[variant].id if track.bundle and len(tasks) > 1 else ""
            track.end(fault.verdict, f"variant {name}: {fault.reason}" if name else fault.reason)
            return
        finally:
            track.bits = bits if variant != min(tasks) else track.bits
    track.rounds += 1


def _side_by_side(tracks: Sequence[Track]) -> None:
    """Compare the best by the times of the steps that they have in common."""
    alive = sorted((t for t in tracks if t.running and t.times_ns), key=lambda t: t.median_ns)[:FINALISTS]
    if not alive:
        return
    common = sorted(set.intersection(*(set(t.steps) for t in alive)))
    times = [[dict(zip(t.steps, t.times_ns, strict=True))[step] for step in common] for t in alive]
    if not common:
        return
    best = best_of(times)
    for track, own in zip(alive, times, strict=True):
        track.ratio = paired_ratio(own, times[best], alive[best].id)


def _cold(tracks: Sequence[Track], task: Task, options: JudgeOptions) -> None:
    """Report the finalists' times with flushed caches."""
    group = task.spec.groups()[0]
    for track in [t for t in tracks if t.running and t.ratio is not None]:
        try:
            calls = _calls(track, task, group, 0, options, cold=True)
        except CandidateFaultError as fault:
            track.end(fault.verdict, fault.reason)
            continue
        track.cold_ns = [call.inner_ns for _, call in calls[:COLD_SAMPLES]]


def _conclude(track: Track, floor: float) -> None:
    if not track.running:
        return
    if track.rounds < MIN_ROUNDS:
        track.end(Verdict.NO_EVIDENCE, f"{track.rounds} of {MIN_ROUNDS} processes within the budget")
    elif min(track.times_ns) < floor:
        reason = f"{min(track.times_ns)} ns is below the floor of {floor:.0f} ns for this much memory"
        track.end(Verdict.IMPOSSIBLE_TIME, reason)
    elif min(track.unseen_ns) < 0:
        track.end(Verdict.IMPOSSIBLE_TIME, "the process reported more time than had passed")
    else:
        track.end(Verdict.PASSED, "")


def _run_rounds(tracks: Sequence[Track], tasks: Mapping[int, Task], options: JudgeOptions, deadline: float) -> None:
    for number in range(ROUNDS):
        alive = [t for t in tracks if t.running]
        if number >= MIN_ROUNDS and alive:
            best = min(t.median_ns for t in alive)
            alive = [t for t in alive if t.median_ns <= _KEEP_WITHIN * best]
        for k in turns(len(alive), number):
            if time.monotonic() > deadline:
                return
            _round(alive[k], tasks, options)


def evaluate(
    tasks: Mapping[int, Task],
    candidates: Mapping[str, str],
    arch: ArchSpec,
    device: GpuDevice,
    workdir: Path,
    options: JudgeOptions | None = None,
) -> Evaluation:
    """Judge and time CUDA candidates on a GPU of this machine.

    Args:
        tasks: Variant to its inputs, expectations and limits; variant 0 is the one that is timed.
        candidates: Id to text of a kernel bundle.
        arch: What they are compiled for; the device must serve it.
        device: Where they run.
        workdir: Gets one directory per candidate.
        options: Budget and sandbox.

    Returns:
        A verdict for every candidate. Nothing a candidate does raises.

    Raises:
        BoardError: No sandbox where one is required.
        NotAvailableError: No host compiler, or no NVRTC for this GPU's driver.
    """
    found = [_Candidate(Track(name)) for name in candidates]
    tracks = [candidate.track for candidate in found]
    opening = begin(tasks, tracks, workdir, options)
    options, first = opening.options, opening.first
    state = gpu_state(device)
    for candidate in found:
        track = candidate.track
        if opening.in_time(track):
            directory = opening.workdir / "build" / track.id
            _prepare(candidate, candidates[track.id], tasks, arch, device, directory, options)
    _run_rounds(tracks, tasks, options, opening.deadline)
    size = floor_bytes(first)
    floor = floor_ns(size, device.bandwidth)
    _side_by_side(tracks)
    _cold(tracks, first, options)
    for track in tracks:
        _conclude(track, floor)
    after = gpu_state(device)
    counts = [track.rounds * sum(s.timed for s in first.spec.samples) for track in tracks]
    version = ".".join(map(str, device.driver_cuda))
    return Evaluation(
        arch_spec=str(arch),
        region_digest=first.spec.region_digest,
        candidates=tuple(candidate.result() for candidate in found),
        conditions=opening.conditions(
            iterations=max(counts, default=0),
            warmup=WARM_UP_CALLS,
            threads=len(os.sched_getaffinity(0)),
            engine=f"CUDA driver API, {device.name}",
            device_uid=device.device_uid,
        ),
        threads=1,
        compiler=f"{nvrtc_for(arch).banner}; {compiler_version()}",
        sandbox=opening.sandbox.kind,
        floor_ms=floor / 1e6,
        floor_bytes=size,
        roofline_ms=size / device.bandwidth * 1e3 if device.bandwidth else 0.0,
        rooflines=rooflines(first, device.bandwidth / 1e9, 0.0, 1 / _BANDWIDTH_MARGIN),
        machine=device.name,
        call_overhead_ms=statistics.median([n for t in tracks for n in t.unseen_ns] or [0]) / 1e6,
        self_test=opening.self_test,
        gpu=GpuConditions(
            name=device.name,
            uuid=device.uuid,
            driver_cuda=version,
            before=state,
            after=after,
            reason=drift(state, after),
        ),
        notes=tuple(first.spec.notes),
    )
