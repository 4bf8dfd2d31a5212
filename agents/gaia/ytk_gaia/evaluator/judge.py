"""The judge: builds candidates, runs each in fresh processes, and decides by the data they leave.

Every process sees every sample once: structured ones first, as warm-up, then the random ones, which are timed. So no timed
input was seen before, and every output, timed or not, is judged. Processes of different candidates take turns, so that a
machine that changes its pace does so for all; in the end the best run side by side, call by call (:mod:`.finals`).
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ytk_core.archspec import ArchSpec
from ytk_core.conditions import make_conditions, snapshot
from ytk_core.digests import digest_bytes
from ytk_core.errors import FormatError, UserError
from ytk_core.formats import shape_expr
from ytk_core.formats.kernel_bundle import KernelBundle, parse_bundle
from ytk_core.formats.plugin_meta import PluginMeta
from ytk_core.sandbox import SandboxMode, require
from ytk_gaia.evaluator import finals
from ytk_gaia.evaluator.arena import Placement
from ytk_gaia.evaluator.build import Built, build, compiler_version
from ytk_gaia.evaluator.compare import judge_sample, self_test
from ytk_gaia.evaluator.session import Call, CandidateFaultError, Limits, Session
from ytk_gaia.evaluator.verdicts import CandidateResult, Evaluation, PairedRatio, Verdict
from ytk_gaia.task_format import Task, TaskSpec, TaskTensor, expected_dtype

MIN_ROUNDS = 2
"""Fewer processes prove no determinism."""
_WARM_UP_CALLS = 3
_KEEP_WITHIN = 1.5
"""Candidates slower than this multiple of the best are right or wrong after MIN_ROUNDS; more rounds would not change the winner."""
_CLOCK_SLACK_NS = 100_000
_STORE_MARGIN = 4.0
"""The floor assumes stores this much faster than the fastest this machine showed."""

_NULL_SHARE = 0.1
"""A report below this share of an empty call's time is no clock's. Small: machines change speed between the empty call's
process and the candidate's, and an honest kernel of a few elements costs little more than the call."""


@dataclass(frozen=True)
class JudgeOptions:
    """How to evaluate.

    Attributes:
        budget_s: When to stop measuring.
        threads: CPU threads per kernel; 0: all that this process may use.
        mode: Whether a sandbox is required.
        limits: How long to wait for a candidate.
        worker_id: For the conditions.
        device_uid: For the conditions.
    """

    budget_s: float = 60.0
    threads: int = 0
    mode: SandboxMode = "required"
    limits: Limits = field(default_factory=Limits)
    worker_id: str = ""
    device_uid: str = ""


@dataclass
class _Track:
    """What is known of one candidate so far."""

    id: str
    bundle: KernelBundle | None = None
    built: Built | None = None
    verdict: Verdict | None = None
    reason: str = ""
    log: str = ""
    rounds: int = 0
    times_ns: list[int] = field(default_factory=list)
    unseen_ns: list[int] = field(default_factory=list)
    """Per timed call: what the judge saw beyond what the process reported."""
    bits: dict[int, str] = field(default_factory=dict)
    worst_error: float = 0.0
    cold_ns: list[int] = field(default_factory=list)
    ratio: PairedRatio | None = None

    @property
    def running(self) -> bool:
        return self.verdict is None

    def end(self, verdict: Verdict, reason: str) -> None:
        self.verdict, self.reason = verdict, reason

    def result(self) -> CandidateResult:
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
        )


# ---- before anything runs --------------------------------------------------------------------------------------------


def _contract_problem(bundle: KernelBundle, task: Task) -> tuple[Verdict, str] | None:
    """Compare a candidate's contract with the task; give the first difference."""
    meta, spec = bundle.meta, task.spec
    if (len(meta.inputs), len(meta.outputs)) != (len(spec.inputs), len(spec.outputs)):
        return Verdict.WRONG_SHAPE, (
            f"declares {len(meta.inputs)} inputs and {len(meta.outputs)} outputs; "
            f"the region has {len(spec.inputs)} and {len(spec.outputs)}"
        )
    for index, (declared, wanted) in enumerate(zip(meta.inputs, spec.inputs, strict=True)):
        dims = tuple(declared.dims)
        if len(dims) != len(wanted.shape) or any(d not in {None, n} for d, n in zip(dims, wanted.shape, strict=True)):
            return Verdict.WRONG_SHAPE, f"input {index} is declared {list(dims)}, the region's is {list(wanted.shape)}"
        for axis in wanted.dynamic_axes:
            if dims[axis] is not None:
                return (
                    Verdict.WRONG_SHAPE,
                    f"input {index} axis {axis} is declared {dims[axis]}, the region's is dynamic",
                )
    for group in spec.groups():
        problem = _shape_problem(meta, spec.at(group[0]))
        if problem:
            return Verdict.WRONG_SHAPE, problem
    types = tuple(t.dtype for t in (*spec.inputs, *spec.outputs))
    variants = [tuple(t.dtype for t in (*v.inputs, *v.outputs)) for v in meta.variants]
    if types not in variants:
        return Verdict.WRONG_DTYPE, f"no variant takes and gives ({', '.join(types)})"
    return None


def _shape_problem(meta: PluginMeta, spec: TaskSpec) -> str:
    """Evaluate the declared output shapes over the inputs' dims; give the first that is not the region's."""
    input_dims = [list(t.shape) for t in spec.inputs]
    for index, (output, wanted) in enumerate(zip(meta.outputs, spec.outputs, strict=True)):
        try:
            shape = tuple(shape_expr.evaluate(expr, input_dims) for expr in output.shape)
        except UserError as err:
            return f"output {index}: {err.message}"
        if shape != wanted.shape:
            return f"output {index} has the shape {list(shape)}, the region's is {list(wanted.shape)}"
    return ""


def _prepare(track: _Track, text: str, task: Task, arch: ArchSpec, directory: Path, mode: SandboxMode) -> None:
    try:
        bundle = parse_bundle(text, track.id)
    except FormatError as err:
        track.end(Verdict.COMPILE_ERROR, err.message)
        return
    problem = _contract_problem(bundle, task)
    if problem:
        track.end(*problem)
        return
    directory.mkdir(parents=True, exist_ok=True)
    try:
        track.built = build(bundle, arch, directory, mode)
    except UserError as err:
        if err.code != "flag_not_allowed":
            raise  # the arch spec or the machine, not the candidate
        track.end(Verdict.COMPILE_ERROR, err.message)
        return
    if track.built.timed_out:
        track.end(Verdict.TIMEOUT, "the compiler ran past its limit")
    elif track.built.library is None:
        track.log = track.built.log
        first = next((line for line in track.built.log.splitlines() if "error" in line), track.built.log[:200])
        track.end(Verdict.COMPILE_ERROR, first)


def _prepare_all(
    tracks: Sequence[_Track],
    candidates: Mapping[str, str],
    task: Task,
    arch: ArchSpec,
    workdir: Path,
    mode: SandboxMode,
    deadline: float,
) -> None:
    """Check and compile; side by side, since nothing is measured yet."""

    def prepare(track: _Track) -> None:
        if time.monotonic() > deadline:
            track.end(Verdict.NO_EVIDENCE, "not built within the budget")
        else:
            _prepare(track, candidates[track.id], task, arch, workdir / "build" / track.id, mode)

    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        for _ in pool.map(prepare, tracks):
            pass  # map raises here what a thread raised


# ---- one process -----------------------------------------------------------------------------------------------------


def _schedule(task: Task, group: Sequence[int]) -> list[tuple[int, bool]]:
    """Give the calls of one process as (sample, timed): warm-up, timed ones, and the first timed one again.

    Args:
        task: For which samples are timed.
        group: Samples of one shape; without timed ones each is called once and the first again.
    """
    warm = [i for i in group if not task.spec.samples[i].timed]
    timed = [i for i in group if task.spec.samples[i].timed]
    calls = [(i, False) for i in warm]
    while warm and len(calls) < _WARM_UP_CALLS:
        calls.append((warm[len(calls) % len(warm)], False))
    return [*calls, *((i, True) for i in timed), ((timed or warm)[0], False)]


def _judge_call(track: _Track, task: Task, sample: int, call: Call) -> None:
    comparison = judge_sample(task, sample, call.outputs)
    bits = digest_bytes(b"".join(raw.tobytes() for raw in call.outputs))
    before = track.bits.setdefault(sample, bits)
    name = task.spec.samples[sample].name
    if before != bits:
        # It was right before, or the candidate would not be here any more.
        raise CandidateFaultError(Verdict.NONDETERMINISTIC, f"sample {name}: two calls on the same input differ")
    if not comparison.right:
        raise CandidateFaultError(Verdict.WRONG_VALUE, comparison.where)
    track.worst_error = max(track.worst_error, comparison.error)


def _run_round(track: _Track, task: Task, threads: int, options: JudgeOptions) -> None:
    # Shapes that are not timed prove nothing more in a third process.
    groups = task.spec.groups() if track.rounds < MIN_ROUNDS else task.spec.groups()[:1]
    times: list[int] = []
    unseen: list[int] = []
    for group in groups:
        try:
            found = _run_group(track, task, group, threads, options)
        except CandidateFaultError as fault:
            track.end(fault.verdict, fault.reason)
            return
        times += [call.inner_ns for call in found]
        unseen += [_unseen(call, threads) for call in found]
    track.times_ns += times
    track.unseen_ns += unseen
    track.rounds += 1


def _run_group(track: _Track, task: Task, group: Sequence[int], threads: int, options: JudgeOptions) -> list[Call]:
    """Run the samples of one shape in a fresh process, judge every call, give the timed ones."""
    assert track.built is not None
    assert track.built.library is not None
    placement = Placement.END if track.rounds % 2 == 0 else Placement.START
    spec = task.spec.at(group[0])
    timed_calls = []
    with Session(track.built.library, spec, threads, placement, options.mode, options.limits) as session:
        try:
            for sample, timed in _schedule(task, group):
                call = session.call(task.samples[sample].inputs)
                _judge_call(track, task, sample, call)
                if timed:
                    timed_calls.append(call)
        except CandidateFaultError:
            track.log = session.log
            raise
    return timed_calls


# ---- time ------------------------------------------------------------------------------------------------------------

_NULL_SOURCE = """\
extern "C" int ytk_launch(const ytk_context*, const ytk_tensor*, int, ytk_tensor*, int) { return YTK_OK; }
"""


@dataclass(frozen=True)
class _Clock:
    """What a call costs that does nothing: by its own clock, and what the judge sees around it."""

    null_ns: int
    around_ns: int


def _unseen(call: Call, threads: int) -> int:
    """Give the time of a call that its own report does not account for.

    Processor time where the kernel gives it: a process that merely had to wait for a busy machine used none.
    """
    if call.cpu_ns is None:
        return call.outer_ns - call.inner_ns
    return call.cpu_ns - call.inner_ns * threads


def _calibrate(
    like: KernelBundle, task: Task, arch: ArchSpec, directory: Path, threads: int, options: JudgeOptions
) -> _Clock:
    """Measure an empty kernel on the same buffers.

    Raises:
        CandidateFaultError: Not even that runs here; the worker is sick.
    """
    import msgspec

    from ytk_core.formats.plugin_meta import Launcher

    directory.mkdir(parents=True, exist_ok=True)
    meta = msgspec.structs.replace(like.meta, compile_flags=[], launcher=Launcher())
    built = build(KernelBundle(header="", source=_NULL_SOURCE, meta=meta), arch, directory, options.mode)
    if built.library is None:
        raise CandidateFaultError(Verdict.COMPILE_ERROR, f"an empty kernel does not compile here: {built.log[:300]}")
    calls = []
    with Session(built.library, task.spec, threads, Placement.END, options.mode, options.limits) as session:
        for sample, _ in _schedule(task, task.spec.groups()[0]):
            calls.append(session.call(task.samples[sample].inputs))
    return _Clock(min(c.inner_ns for c in calls), min(_unseen(c, threads) for c in calls))


def store_rate(size_bytes: int = 32 << 10, repetitions: int = 200) -> float:
    """Give the fastest rate, in bytes per nanosecond, at which one thread filled a buffer that fits the first cache."""
    buffer = np.zeros(size_bytes, dtype=np.uint8)
    best = 1 << 62
    for value in range(repetitions):
        started = time.perf_counter_ns()
        buffer.fill(value & 0xFF)
        best = min(best, time.perf_counter_ns() - started)
    return size_bytes / max(1, best)


def _output_bytes(tensors: Sequence[TaskTensor]) -> int:
    return sum(int(np.prod(t.shape)) * min(8, expected_dtype(t.dtype).itemsize) for t in tensors)


def floor_bytes(task: Task) -> int:
    """Give the bytes that every right kernel has to move: every output once, and the inputs that must be read."""
    # Expectations of floats are kept in float64; the kernel stores half of that at most, hence the 2.
    return _output_bytes(task.spec.outputs) // 2 + task.spec.must_read_bytes


def floor_ns(task: Task, threads: int, clock_null_ns: int) -> float:
    """Give the time below which no kernel can have done the work."""
    return max(floor_bytes(task) / (store_rate() * _STORE_MARGIN * threads), clock_null_ns * _NULL_SHARE)


def _check_times(track: _Track, floor: float, clock: _Clock) -> None:
    fastest = min(track.times_ns)
    if fastest < floor:
        reason = f"{fastest} ns is below the floor of {floor:.0f} ns for this much memory"
        track.end(Verdict.IMPOSSIBLE_TIME, reason)
        return
    unseen = min(track.unseen_ns) - clock.around_ns
    if unseen > clock.around_ns + _CLOCK_SLACK_NS:
        reason = (
            f"the judge's clock saw at least {unseen / 1e6:.3f} ms of work per call that the process did not report"
        )
        track.end(Verdict.IMPOSSIBLE_TIME, reason)


# ---- side by side ----------------------------------------------------------------------------------------------------


def _finalists(tracks: Sequence[_Track]) -> list[_Track]:
    alive = sorted((t for t in tracks if t.running and t.times_ns), key=lambda t: statistics.median(t.times_ns))
    close = [t for t in alive if statistics.median(t.times_ns) <= _KEEP_WITHIN * statistics.median(alive[0].times_ns)]
    return close[: finals.MAX_FINALISTS]


def _side_by_side(
    tracks: list[_Track], task: Task, placement: Placement, threads: int, options: JudgeOptions, stack: ExitStack
) -> finals.Pairs:
    """Give every finalist a process, and every timed sample to all of them in turn.

    A finalist that misbehaves here is out (its verdict says why); the pairs of that pass are not used.
    """
    sessions: list[Session] = []
    for track in tracks:
        assert track.built is not None
        assert track.built.library is not None
        with _blamed(track):
            session = Session(track.built.library, task.spec, threads, placement, options.mode, options.limits)
            sessions.append(stack.enter_context(session))
    pairs = finals.Pairs([[] for _ in tracks], [[] for _ in tracks])
    schedule = _schedule(task, task.spec.groups()[0])
    cold = [(sample, True) for sample, timed in schedule if timed][: finals.COLD_SAMPLES]
    steps = [(sample, timed, False) for sample, timed in schedule] + [(sample, timed, True) for sample, timed in cold]
    for step, (sample, timed, flushed) in enumerate(steps):
        for k in finals.turns(len(tracks), step):
            with _blamed(tracks[k], sessions[k]):
                call = sessions[k].call(task.samples[sample].inputs, flush=flushed)
                _judge_call(tracks[k], task, sample, call)
            if timed:
                (pairs.cold if flushed else pairs.warm)[k].append(call.inner_ns)
                if not flushed:
                    tracks[k].unseen_ns.append(_unseen(call, threads))
    return pairs


class _FinalistOutError(Exception):
    """A finalist got a verdict; the pass is begun again without it."""


@contextlib.contextmanager
def _blamed(track: _Track, session: Session | None = None) -> Iterator[None]:
    try:
        yield
    except CandidateFaultError as fault:
        if session is not None:
            track.log = session.log
        track.end(fault.verdict, fault.reason)
        raise _FinalistOutError from fault


def _finals(tracks: Sequence[_Track], task: Task, threads: int, options: JudgeOptions, deadline: float) -> None:
    """Compare those that can still win, pair by pair, once with each placement of the buffers."""
    while len(contenders := _finalists(tracks)) > 0 and time.monotonic() <= deadline:
        total = finals.Pairs([[] for _ in contenders], [[] for _ in contenders])
        try:
            for placement in (Placement.END, Placement.START):
                with contextlib.ExitStack() as stack:
                    found = _side_by_side(contenders, task, placement, threads, options, stack)
                for k in range(len(contenders)):
                    total.warm[k] += found.warm[k]
                    total.cold[k] += found.cold[k]
        except _FinalistOutError:
            continue
        best = finals.best_of(total.warm)
        for k, track in enumerate(contenders):
            track.times_ns = total.warm[k]
            track.cold_ns = total.cold[k]
            track.ratio = finals.paired_ratio(total.warm[k], total.warm[best], contenders[best].id)
        return


# ---- all together ----------------------------------------------------------------------------------------------------


def _rounds(tracks: Sequence[_Track], task: Task, threads: int, options: JudgeOptions, deadline: float) -> None:
    """Run rounds over all candidates in turn, then more over those that can still win."""
    for number in range(max(MIN_ROUNDS, task.spec.rounds)):
        alive = [t for t in tracks if t.running]
        if number >= MIN_ROUNDS:
            best = min((statistics.median(t.times_ns) for t in alive), default=0)
            alive = [t for t in alive if statistics.median(t.times_ns) <= _KEEP_WITHIN * best]
        for track in alive:
            if time.monotonic() > deadline:
                return
            _run_round(track, task, threads, options)


def evaluate(
    task: Task, candidates: Mapping[str, str], arch: ArchSpec, workdir: Path, options: JudgeOptions | None = None
) -> Evaluation:
    """Judge candidates.

    Args:
        task: Inputs, expectations, limits.
        candidates: Id to text of a kernel bundle.
        arch: What they are compiled for; this machine must be able to run it.
        workdir: Gets one directory per candidate.
        options: Budget, threads, sandbox.

    Returns:
        A verdict for every candidate. Nothing a candidate does raises.

    Raises:
        BoardError: No sandbox where one is required.
        NotAvailableError: No compiler.
        UserError: The arch spec is no CPU.
    """
    options, workdir = options or JudgeOptions(), workdir.resolve()
    threads = options.threads or len(os.sched_getaffinity(0))
    sandbox = require(options.mode)
    deadline = time.monotonic() + options.budget_s
    before = snapshot()
    tracks = [_Track(name) for name in candidates]
    tests = self_test(task)
    passing = [f"{name} {what}" for name, what in tests.items() if what.startswith("passes")]
    if passing:
        for track in tracks:
            track.end(Verdict.NO_EVIDENCE, f"the task proves nothing: {'; '.join(passing)}")
    else:
        _prepare_all(tracks, candidates, task, arch, workdir, options.mode, deadline)
    clock, notes = _Clock(0, 0), list(task.spec.notes)
    like = next((parse_bundle(candidates[t.id], t.id) for t in tracks if t.running), None)
    if like is not None:
        clock = _calibrated(like, task, arch, workdir, threads, options)
        _rounds(tracks, task, threads, options, deadline)
        if all(t.rounds >= MIN_ROUNDS for t in tracks if t.running):
            _finals(tracks, task, threads, options, deadline)
    floor = floor_ns(task, threads, clock.null_ns)
    for track in tracks:
        _conclude(track, floor, clock)
    calls = [track.rounds * sum(s.timed for s in task.spec.samples) for track in tracks]
    conditions = make_conditions(
        before,
        snapshot(),
        iterations=max(calls, default=0),
        warmup=max(_WARM_UP_CALLS, sum(not s.timed for s in task.spec.samples)),
        threads=threads,
        engine="direct call",
        worker_id=options.worker_id,
        device_uid=options.device_uid,
    )
    return Evaluation(
        arch_spec=str(arch),
        region_digest=task.spec.region_digest,
        candidates=tuple(track.result() for track in tracks),
        conditions=conditions,
        threads=threads,
        compiler=compiler_version(),
        sandbox=sandbox.kind,
        floor_ms=floor / 1e6,
        floor_bytes=floor_bytes(task),
        call_overhead_ms=clock.null_ns / 1e6,
        self_test=tests,
        notes=tuple(notes),
    )


def _calibrated(
    like: KernelBundle, task: Task, arch: ArchSpec, workdir: Path, threads: int, options: JudgeOptions
) -> _Clock:
    from ytk_core.errors import BoardError

    try:
        return _calibrate(like, task, arch, workdir / "build" / "-empty", threads, options)
    except CandidateFaultError as fault:
        raise BoardError(
            f"this worker cannot run an empty kernel: {fault.reason}",
            code="worker_sick",
            hint="Look at the eval worker's compiler, memory and sandbox.",
        ) from fault


def _conclude(track: _Track, floor: float, clock: _Clock) -> None:
    if not track.running:
        return
    if track.rounds < MIN_ROUNDS:
        track.end(Verdict.NO_EVIDENCE, f"{track.rounds} of {MIN_ROUNDS} processes within the budget")
        return
    _check_times(track, floor, clock)
    if track.running:
        track.end(Verdict.PASSED, "")
