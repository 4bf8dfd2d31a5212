"""The judge of CUDA kernels on a machine without a GPU: right or wrong, never fast or slow.

A candidate is compiled for its GPU, which gives the static facts, and as C++ for the emulation, where it runs in the same sandboxed
process, on the same guarded memory, as a CPU kernel. Every variant runs with its threads in three orders, whose bits must agree,
once with every access checked against the bounds of its buffer, and once with every access checked against the other threads'.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from ytk_core.archspec import ArchSpec
from ytk_core.cuda.nvrtc import Nvrtc
from ytk_core.errors import CandidateError, UserError
from ytk_core.formats.kernel_bundle import KernelBundle
from ytk_gaia.emulation.build import ORDERS, Check, Emulator, thread_code
from ytk_gaia.evaluator.arena import Placement
from ytk_gaia.evaluator.build import Built, compiler_version
from ytk_gaia.evaluator.contract import contract_problem
from ytk_gaia.evaluator.device_facts import DeviceFacts, compile_for, nvrtc_for
from ytk_gaia.evaluator.opening import begin
from ytk_gaia.evaluator.options import JudgeOptions
from ytk_gaia.evaluator.rounds import judge_call
from ytk_gaia.evaluator.session import CandidateFaultError, Limits, Session
from ytk_gaia.evaluator.track import Track
from ytk_gaia.evaluator.verdicts import CandidateResult, Evaluation, Verdict
from ytk_gaia.task_format import Task

NOTE = (
    "not measured: judged on the CPU emulation, ordered by static facts (registers, spills, shared memory, occupancy)"
)
LIMITS = Limits(start_s=60.0, call_s=300.0)
_FEW = 2
"""Samples of each shape in every pass but the first: instrumented code and further orders show nothing new in the tenth."""
_SAID = re.compile(r"^ytk-emulation: (.*)$", re.MULTILINE)
_UNDEFINED = re.compile(r"^\S+: runtime error: (.*)$", re.MULTILINE)


@dataclass
class _Candidate:
    """One candidate under way. ``built``: per check."""

    track: Track
    facts: DeviceFacts | None = None
    built: dict[Check, Built] = field(default_factory=dict)
    processes: int = 0

    def result(self) -> CandidateResult:
        """Give what the evaluation says of it."""
        track = self.track
        return CandidateResult(
            id=track.id,
            verdict=track.verdict or Verdict.NO_EVIDENCE,
            reason=track.reason,
            worst_error=track.worst_error if self.processes else None,
            processes=self.processes,
            compile_s=sum(built.seconds for built in self.built.values()),
            log=track.log,
            device=self.facts,
        )


@dataclass(frozen=True)
class _Pass:
    """One process: what it is built with, in which order threads run, which samples it sees."""

    check: Check
    order: int
    placement: Placement
    samples: Sequence[int]

    @property
    def name(self) -> str:
        """Word for reasons."""
        return {
            Check.NOTHING: f"threads {ORDERS[self.order]}",
            Check.BOUNDS: "bounds checked",
            Check.RACES: "races checked",
        }[self.check]


def _passes(task: Task) -> Iterator[_Pass]:
    """Give the passes over a task: first those that name a cause, then those that see its effect."""
    for group in task.spec.groups():
        timed = [k for k in group if task.spec.samples[k].timed]
        few = [*[k for k in group if k not in timed][:1], *timed[:1]][:_FEW] or list(group[:_FEW])
        yield _Pass(Check.BOUNDS, 0, Placement.START, few)
        yield _Pass(Check.RACES, 0, Placement.START, few)
        yield _Pass(Check.NOTHING, 0, Placement.END, group)
        yield _Pass(Check.NOTHING, 1, Placement.START, few)
        yield _Pass(Check.NOTHING, 2, Placement.END, few)


def _named(fault: CandidateFaultError, log: str) -> CandidateFaultError:
    """Give a fault the name of what the emulation said before it."""
    said = _SAID.search(log)
    if said is None:
        undefined = _UNDEFINED.search(log)
        if undefined is None:
            return fault
        verdict = Verdict.OUT_OF_BOUNDS if "out of bounds" in undefined[1] else Verdict.RUNTIME_ERROR
        return CandidateFaultError(verdict, f"undefined behaviour: {undefined[1]}")
    text = said[1]
    verdict = Verdict.RUNTIME_ERROR
    if text.startswith("race:"):
        verdict = Verdict.NONDETERMINISTIC
    elif text.startswith("out of bounds:"):
        verdict = Verdict.OUT_OF_BOUNDS
    return CandidateFaultError(verdict, text)


def _run_pass(candidate: _Candidate, variant: int, task: Task, one: _Pass, options: JudgeOptions) -> None:
    """Run the samples of one shape in a fresh process; judge every call.

    Raises:
        CandidateFaultError: The candidate is wrong, or misbehaves.
    """
    track = candidate.track
    library = candidate.built[one.check].library
    assert library is not None
    assert track.bundle is not None
    spec = task.spec.at(one.samples[0])
    threads, alignment = thread_code(one.order, variant), track.bundle.meta.constraints.alignment_bytes
    # Emulated threads are many for one CPU.
    limits = replace(options.limits, call_s=max(options.limits.call_s, LIMITS.call_s))
    with Session(library, spec, threads, one.placement, options.mode, limits, alignment) as session:
        candidate.processes += 1
        try:
            for sample in one.samples:
                call = session.call(task.samples[sample].inputs)
                # A wrong value is an effect: the passes that look for causes come first and leave it to the others.
                if one.check is Check.NOTHING:
                    judge_call(track, task, sample, call)
        except CandidateFaultError as fault:
            track.log = session.log
            raise _named(fault, track.log) from fault


def _variant_name(bundle: KernelBundle, variant: int) -> str:
    variants = bundle.meta.variants
    return variants[variant].id if len(variants) > 1 else ""


def _judge(candidate: _Candidate, tasks: Mapping[int, Task], options: JudgeOptions, deadline: float) -> None:
    """Run every variant through its passes; the first fault is the verdict."""
    track = candidate.track
    assert track.bundle is not None
    for variant, task in sorted(tasks.items()):
        # Samples of another variant are other samples, with bits of their own.
        track.bits = {}
        for one in _passes(task):
            if time.monotonic() > deadline:
                track.end(Verdict.NO_EVIDENCE, f"the budget ended before the pass {one.name!r} of variant {variant}")
                return
            try:
                _run_pass(candidate, variant, task, one, options)
            except CandidateFaultError as fault:
                reason, name = fault.reason, _variant_name(track.bundle, variant)
                if fault.verdict is Verdict.NONDETERMINISTIC and not reason.startswith("race:"):
                    reason = f"race: {reason} when threads run in another order ({one.name})"
                track.end(fault.verdict, f"variant {name}: {reason}" if name else reason)
                return
    track.end(Verdict.PASSED, "")


def variants_fit(bundle: KernelBundle, tasks: Mapping[int, Task]) -> tuple[Verdict, str] | None:
    """Compare the contract with the task of every variant."""
    if len(bundle.meta.variants) != len(tasks):
        return Verdict.WRONG_DTYPE, f"declares {len(bundle.meta.variants)} variants; {len(tasks)} have a task"
    for variant, task in tasks.items():
        own = msgspec.structs.replace(bundle.meta, variants=[bundle.meta.variants[variant]])
        problem = contract_problem(KernelBundle(header="", source="", meta=own), task)
        if problem:
            return problem
    return None


def _prepare(
    candidate: _Candidate,
    text: str,
    tasks: Mapping[int, Task],
    arch: ArchSpec,
    nvrtc: Nvrtc,
    emulator: Emulator,
    directory: Path,
) -> None:
    track = candidate.track
    bundle = track.take(text, lambda bundle: variants_fit(bundle, tasks))
    if bundle is None:
        return
    for part in ("device", "emulated"):
        (directory / part).mkdir(parents=True)
    try:
        _, candidate.facts = compile_for(bundle, arch, nvrtc, directory / "device", emulator.mode)
    except CandidateError as err:
        verdict = Verdict.TIMEOUT if err.code == "compile_timeout" else Verdict.COMPILE_ERROR
        track.end(verdict, err.message)
        return
    except UserError as err:
        if err.code != "flag_not_allowed":
            raise  # the arch spec or the machine, not the candidate
        track.end(Verdict.COMPILE_ERROR, err.message)
        return
    candidate.built = emulator.build(bundle, directory / "emulated", tuple(Check))
    for check, built in candidate.built.items():
        if built.library is None:
            track.log = built.log
            first = next((line for line in built.log.splitlines() if "error" in line), built.log[:200])
            track.end(
                Verdict.TIMEOUT if built.timed_out else Verdict.COMPILE_ERROR, f"for the emulation ({check}): {first}"
            )
            return


def evaluate(
    tasks: Mapping[int, Task],
    candidates: Mapping[str, str],
    arch: ArchSpec,
    workdir: Path,
    options: JudgeOptions | None = None,
) -> Evaluation:
    """Judge CUDA candidates without a GPU.

    Args:
        tasks: Variant to its inputs, expectations and limits; variant 0 is the one that is reported.
        candidates: Id to text of a kernel bundle.
        arch: The GPU that they are compiled for.
        workdir: Gets one directory per candidate.
        options: Budget and sandbox; no time is measured.

    Returns:
        A verdict and static facts for every candidate. Nothing a candidate does raises.

    Raises:
        BoardError: No sandbox where one is required.
        NotAvailableError: No host compiler, or no NVRTC for this GPU's driver.
        UserError: The arch spec is no GPU.
    """
    found = [_Candidate(Track(name)) for name in candidates]
    opening = begin(tasks, [candidate.track for candidate in found], workdir, options)
    options, nvrtc = opening.options, nvrtc_for(arch)
    if any(candidate.track.running for candidate in found):
        emulator = Emulator.prepare(opening.workdir / "emulation", options.mode)

        def prepare(candidate: _Candidate) -> _Candidate:
            name = candidate.track.id
            if opening.in_time(candidate.track):
                _prepare(candidate, candidates[name], tasks, arch, nvrtc, emulator, opening.workdir / "build" / name)
            return candidate

        # Nothing is timed, so one is built while another runs.
        with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
            for number, candidate in enumerate(pool.map(prepare, found)):
                if candidate.track.running:
                    _judge(candidate, tasks, options, opening.deadline)
                options.progress((number + 1) / len(found), f"{candidate.track.id}: {candidate.track.verdict}")
    return Evaluation(
        arch_spec=str(arch),
        region_digest=opening.first.spec.region_digest,
        candidates=tuple(candidate.result() for candidate in found),
        conditions=opening.conditions(
            iterations=0,
            warmup=0,
            threads=len(os.sched_getaffinity(0)),
            engine="CPU emulation",
            device_uid=options.device_uid,
        ),
        threads=1,
        compiler=f"{nvrtc.banner}; {compiler_version()}",
        sandbox=opening.sandbox.kind,
        floor_ms=0.0,
        floor_bytes=0,
        call_overhead_ms=0.0,
        self_test=opening.self_test,
        emulated=True,
        notes=(NOTE, *opening.first.spec.notes),
    )
