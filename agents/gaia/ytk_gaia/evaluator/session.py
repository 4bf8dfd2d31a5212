"""One candidate process as the judge sees it: start it, tell it to call the kernel, look at the memory it leaves."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import re
import secrets
import sys
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from ytk_core.abi import CTYPES_DIR
from ytk_core.abi.ctypes_abi import STATUS
from ytk_core.dtypes import ONNX_NUMBER, itemsize
from ytk_core.sandbox import SandboxMode, SandboxPolicy
from ytk_gaia.evaluator import candidate_runner, system_calls
from ytk_gaia.evaluator.arena import ALIGNMENT, Arena, Buffer, Kind, Layout, Placement, moved, new_descriptor, plan
from ytk_gaia.evaluator.build import child_mark
from ytk_gaia.evaluator.calls import Attempt, Call, Change
from ytk_gaia.evaluator.child import CandidateFaultError, Child, FaultAtError, Limits
from ytk_gaia.evaluator.cpu_clock import cpu_ns
from ytk_gaia.evaluator.untouched import rewritten_code
from ytk_gaia.evaluator.verdicts import Verdict
from ytk_gaia.evaluator.waiting import own_wait_s, waited_s
from ytk_gaia.task_format import TaskSpec, TaskTensor

__all__ = ["Attempt", "Call", "CandidateFaultError", "Change", "Limits", "Session", "cache_bytes"]

Array = np.ndarray[Any, Any]

MAX_WORKSPACE_BYTES = 4 << 30
_FLOAT_MODE = {"x86_64": 0x037F1F80, "aarch64": 0}
"""How a process begins: round to nearest, no traps, denormals kept (:func:`.candidate_runner._float_mode`)."""
# Different in each placement, so that what reads them does not give the same answer twice.
_CANARY = {Placement.END: 0xCB, Placement.START: 0x5A}
_POISON = {Placement.END: 0xA5, Placement.START: 0xFD}


@functools.cache
def cache_bytes() -> int:
    """Give the size of the largest cache of the first processor; 32 MiB where the kernel does not say, 256 MiB at most."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        with contextlib.suppress(OSError, ValueError):
            text = path.read_text(encoding="ascii").strip()
            sizes.append(int(text.rstrip("KM")) * {"K": 1 << 10, "M": 1 << 20}.get(text[-1], 1))
    return min(256 << 20, max(sizes, default=32 << 20))


def _bytes_of(tensor: TaskTensor) -> int:
    count = 1
    for extent in tensor.shape:
        count *= extent
    return count * itemsize(tensor.dtype)


def _described(tensors: Sequence[TaskTensor], buffers: Sequence[Buffer] | None) -> list[dict[str, Any]]:
    return [
        {"offset": buffers[i].offset if buffers else 0, "dtype": ONNX_NUMBER[t.dtype], "dims": list(t.shape)}
        for i, t in enumerate(tensors)
    ]


class Session:
    """A process that holds one candidate. Use as a context manager.

    Args:
        library: The compiled candidate.
        task: Types of inputs and outputs.
        threads: CPU threads it may use.
        placement: Which end of each buffer touches a forbidden page.
        mode: Whether a sandbox is required.
        limits: How long to wait.
        alignment: Of inputs and outputs, in bytes: what the candidate's contract asks for.
        policy: What it may use instead of what a CPU kernel may: a GPU's driver needs device nodes and address space.
        variant: Which of the contract's variants is called.

    Raises:
        CandidateFaultError: It did not even start.
        BoardError: No sandbox where one is required.
    """

    def __init__(
        self,
        library: Path,
        task: TaskSpec,
        threads: int,
        placement: Placement,
        mode: SandboxMode,
        limits: Limits,
        alignment: int = ALIGNMENT,
        policy: SandboxPolicy | None = None,
        variant: int = 0,
    ) -> None:
        self._task = task
        self._limits = limits
        self._placement = placement
        self._threads = threads
        self._variant = variant
        self._arena: Arena | None = None
        self._alignment = alignment
        self._cpu_after: int | None = None
        self.idle_ns: list[int] = []
        """Per pause between two calls: processor time that the process used; a control is part of a pause."""
        self._descriptor = new_descriptor()
        self._plain_cpu = policy is None
        sizes = sum(_bytes_of(t) for t in (*task.inputs, *task.outputs, *task.outputs, *task.outputs))
        policy = policy or SandboxPolicy(
            read_only=(library.parent, Path(candidate_runner.__file__), CTYPES_DIR),
            memory_bytes=sizes + MAX_WORKSPACE_BYTES + 2 * cache_bytes(),
            file_bytes=1 << 20,
            tmp_bytes=1 << 20,
            processes=threads + 32,
            cpu_s=600,
        )
        # A spinning OpenMP team would steal the judge's processor between calls.
        env = {"OMP_WAIT_POLICY": "PASSIVE", "OMP_DYNAMIC": "false", **child_mark()}
        runner = [sys.executable, "-I", "-S", candidate_runner.__file__, str(CTYPES_DIR)]
        # A GPU's driver asks for much that a kernel has no use for.
        runner += [str(library), str(self._descriptor), system_calls.filters() if self._plain_cpu else "-"]
        self._child = Child(runner, policy, mode, env, self._descriptor)

    def __enter__(self) -> Self:
        try:
            self._set_up()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    @property
    def log(self) -> str:
        """End of what the process printed."""
        return self._child.log

    @property
    def threads(self) -> int:
        """CPU threads that it may use."""
        return self._threads

    @property
    def workspace_bytes(self) -> int:
        """What the kernel asked for."""
        return sum(b.size for b in self._arena.layout.of(Kind.WORKSPACE)) if self._arena else 0

    def _end(self) -> None:
        self._child.end()
        if self._arena is not None:
            self._arena.close()
        os.close(self._descriptor)

    # ---- life --------------------------------------------------------------------------------------------------------

    def _set_up(self) -> None:
        task, limit = self._task, self._limits.start_s
        setup = {
            "threads": self._threads,
            "variant": self._variant,
            "flush_bytes": cache_bytes() * 2,
            "inputs": _described(task.inputs, None),
            "outputs": _described(task.outputs, None),
        }
        self._child.say(json.dumps(setup))
        word, _, number = self._child.answer(limit).partition(" ")
        if word != "loaded" or not re.fullmatch(r"-?\d{1,19}", number):
            raise CandidateFaultError(Verdict.RUNTIME_ERROR, "the process speaks out of turn")
        workspace = int(number)
        if not 0 <= workspace <= MAX_WORKSPACE_BYTES:
            raise CandidateFaultError(
                Verdict.RUNTIME_ERROR,
                f"it asks for {workspace} bytes of workspace; 0 to {MAX_WORKSPACE_BYTES} are possible",
            )
        layout = plan(
            [_bytes_of(t) for t in task.inputs],
            [_bytes_of(t) for t in task.outputs],
            workspace,
            self._placement,
            self._alignment,
        )
        try:
            self._arena = Arena(layout, self._descriptor, _CANARY[self._placement])
        except OSError as err:
            raise CandidateFaultError(Verdict.RUNTIME_ERROR, f"it tampered with its memory: {err.strerror}") from err
        self._child.say(json.dumps(self._mapping(layout)))
        if self._child.answer(limit) != "mapped":
            raise CandidateFaultError(Verdict.RUNTIME_ERROR, "the process speaks out of turn")

    def _mapping(self, layout: Layout) -> dict[str, Any]:
        inputs, outputs, snapshots = layout.of(Kind.INPUT), layout.of(Kind.OUTPUT), layout.of(Kind.SNAPSHOT)
        workspace = layout.of(Kind.WORKSPACE)
        return {
            "size": layout.size,
            "guards": layout.guards,
            "read_only": [(b.first, b.last - b.first) for b in inputs],
            "inputs": _described(self._task.inputs, inputs),
            "outputs": _described(self._task.outputs, outputs),
            "workspace": {"offset": workspace[0].offset, "size": workspace[0].size} if workspace else None,
            "snapshots": [(o.offset, s.offset, o.size) for o, s in zip(outputs, snapshots, strict=True)],
        }

    # ---- calls -------------------------------------------------------------------------------------------------------

    def call(self, inputs: Sequence[Array], *, flush: bool = False, times: int = 1) -> Call:
        """Call the kernel on fresh inputs, with poisoned outputs and workspace, and look at what it left.

        Args:
            inputs: In storage dtype.
            flush: Whether the process walks over more memory than the caches hold, just before.
            times: How often the kernel is called before anybody looks; the times are of all calls together.

        Returns:
            Times and raw output bytes; whether they are right is the caller's question.

        Raises:
            CandidateFaultError: It died, took too long, refused, wrote where it must not, or spoke out of turn.
        """
        arena = self._arena
        assert arena is not None
        layout = arena.layout
        fed = self._feed(arena, inputs)
        waited = (waited_s(self._child.worker), own_wait_s()) if times > 1 else (0.0, 0.0)
        cpu_before = cpu_ns(self._child.worker)
        started = time.perf_counter_ns()
        word, more = ("many", f" {times}") if times > 1 else ("cold" if flush else "go", "")
        status, inner, checksum = self._ask(word, more)
        outer = time.perf_counter_ns() - started
        cpu_after = cpu_ns(self._child.worker)
        if times > 1:
            waited = (waited_s(self._child.worker) - waited[0], own_wait_s() - waited[1])
        if status != 0:
            raise CandidateFaultError(
                Verdict.RUNTIME_ERROR, f"launch returned {status} ({STATUS.get(status, 'no known status')})"
            )
        self._inspect(arena, fed)
        snapshots = tuple(arena.view(b).copy() for b in layout.of(Kind.SNAPSHOT))
        self._check_late(arena, snapshots, checksum)
        cpu = None if cpu_before is None or cpu_after is None else cpu_after - cpu_before
        idle = 0 if cpu_before is None or self._cpu_after is None else cpu_before - self._cpu_after
        self._cpu_after = cpu_after
        self.idle_ns.append(idle)
        return Call(
            inner,
            outer,
            cpu,
            snapshots,
            idle,
            _POISON[self._placement],
            (round(waited[0] * 1e9), round(waited[1] * 1e9)),
        )

    def control(self, inputs: Sequence[Array]) -> None:
        """Give the process fresh inputs and poisoned outputs, and let it *not* call the kernel.

        Raises:
            CandidateFaultError: NOT_USED: an output was written all the same; RUNTIME_ERROR: code in the process is no longer that
                of its files; or as :meth:`call`.
        """
        arena = self._arena
        assert arena is not None
        fed = self._feed(arena, inputs)
        self._ask("skip")
        self._inspect(arena, fed)
        for kind in (Kind.SNAPSHOT, Kind.OUTPUT):
            for buffer in arena.layout.of(kind):
                if (arena.view(buffer) != _POISON[self._placement]).any():
                    raise CandidateFaultError(
                        Verdict.NOT_USED, f"output {buffer.index} was written although the launcher had not been called"
                    )
        cpu = cpu_ns(self._child.worker)
        if cpu is not None and self._cpu_after is not None:
            self.idle_ns.append(cpu - self._cpu_after)
        self._cpu_after = cpu
        changed = rewritten_code(self._child.worker) if self._plain_cpu else ""
        if changed:
            raise CandidateFaultError(Verdict.RUNTIME_ERROR, f"it rewrote the code of {changed} in its memory")

    def attempt(self, inputs: Sequence[Array], change: Change) -> Attempt:
        """Call the kernel in a way that its contract does not cover; the next :meth:`call` is an ordinary one again.

        Raises:
            CandidateFaultError: It died, took too long, or wrote where it must not.
        """
        arena = self._arena
        assert arena is not None
        usual = arena.layout
        shift = -change.shift if self._placement is Placement.END else change.shift
        arena.use(moved(usual, shift))
        try:
            fed = self._feed(arena, inputs)
            self._cpu_after = None
            given = {name: getattr(change, name) for name in change.__dataclass_fields__} | {"shift": shift}
            status, _, _ = self._ask("try", f" {json.dumps(given)}")
            self._inspect(arena, fed)
            outputs = tuple(arena.view(b).copy() for b in arena.layout.of(Kind.OUTPUT))
            poison = _POISON[self._placement]
            written = (
                b.name
                for b in arena.layout.buffers
                if b.kind in {Kind.OUTPUT, Kind.WORKSPACE} and (arena.view(b) != poison).any()
            )
            workspace = arena.layout.of(Kind.WORKSPACE)
            kept = arena.view(workspace[0])[-change.workspace_less :] if workspace and change.workspace_less else ()
            return Attempt(status, outputs, next(written, ""), bool(np.any(np.asarray(kept) != poison)))
        finally:
            arena.use(usual)

    def mapped_files(self) -> frozenset[str]:
        """Give the paths of the files in the process's memory; empty where the kernel does not let us look."""
        try:
            text = Path(f"/proc/{self._child.worker}/maps").read_text(errors="replace")
        except OSError:
            return frozenset()
        fields = (line.split(maxsplit=5) for line in text.splitlines())
        return frozenset(parts[5] for parts in fields if len(parts) > 5 and parts[5].startswith("/"))

    def _feed(self, arena: Arena, inputs: Sequence[Array]) -> list[Array]:
        """Poison everything, then write inputs; give the inputs as bytes.

        Inputs last: a thread that waits for them, to be done before it is asked, has no time left.
        """
        if self._child.pending():
            raise CandidateFaultError(Verdict.RUNTIME_ERROR, "the process answered twice")
        layout = arena.layout
        for kind in (Kind.OUTPUT, Kind.SNAPSHOT, Kind.WORKSPACE):
            for buffer in layout.of(kind):
                arena.view(buffer)[:] = _POISON[self._placement]
        fed = [np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in inputs]
        for buffer, raw in zip(layout.of(Kind.INPUT), fed, strict=True):
            arena.view(buffer)[:] = raw
        return fed

    def _ask(self, word: str, more: str = "") -> tuple[int, int, int]:
        """Give a command and take its answer: status, nanoseconds, checksum of the outputs."""
        nonce = secrets.token_hex(8)
        try:
            self._child.say(f"{word} {nonce}{more}")
            answer = self._child.answer(self._limits.call_s)
        except FaultAtError as fault:
            raise self._fault(fault.offset) from None
        found = re.fullmatch(rf"done {nonce} (-?\d{{1,11}}) (-?\d{{1,18}}) (\d{{1,10}}) (\d{{1,10}})", answer)
        if not found:
            raise CandidateFaultError(Verdict.RUNTIME_ERROR, "the process speaks out of turn")
        status, took, checksum, mode = map(int, found.groups())
        wanted = _FLOAT_MODE.get(platform.machine(), 0)
        if self._plain_cpu and mode and wanted and mode != wanted:
            raise CandidateFaultError(
                Verdict.RUNTIME_ERROR,
                f"it left the processor's floating-point mode changed (rounding, traps or denormals: 0x{mode:08x}, before 0x{wanted:08x})",
            )
        return status, took, checksum

    def _check_late(self, arena: Arena, snapshots: Sequence[Array], checksum: int) -> None:
        """Check that nothing was written after the launcher had returned, not to the outputs and not to the copies of them."""
        for index, (buffer, snapshot) in enumerate(zip(arena.layout.of(Kind.OUTPUT), snapshots, strict=True)):
            if not np.array_equal(arena.view(buffer), snapshot):
                raise CandidateFaultError(
                    Verdict.WRONG_VALUE, f"output {index} changed after the launcher had returned"
                )
        found = 0
        for snapshot in snapshots:
            found = zlib.crc32(snapshot.data, found)
        if found != checksum:
            raise CandidateFaultError(
                Verdict.WRONG_VALUE, "outputs and the copies of them both changed after the launcher had returned"
            )

    def _fault(self, offset: int) -> CandidateFaultError:
        assert self._arena is not None
        kind, where = self._arena.layout.describe(offset)
        if kind is Kind.INPUT:
            return CandidateFaultError(Verdict.MUTATED_INPUT, f"it wrote to {where}")
        if kind is None:
            return CandidateFaultError(Verdict.OUT_OF_BOUNDS, f"it touched memory {where}")
        return CandidateFaultError(Verdict.RUNTIME_ERROR, f"a fault inside {where}")

    def _inspect(self, arena: Arena, fed: Sequence[Array]) -> None:
        damaged = arena.damaged()
        if damaged:
            raise CandidateFaultError(Verdict.OUT_OF_BOUNDS, f"it wrote beside {damaged}")
        for index, (buffer, raw) in enumerate(zip(arena.layout.of(Kind.INPUT), fed, strict=True)):
            if not np.array_equal(arena.view(buffer), raw):
                raise CandidateFaultError(Verdict.MUTATED_INPUT, f"input {index} is not what it was before the call")
