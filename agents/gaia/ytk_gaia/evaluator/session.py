"""One candidate process as the judge sees it: start it, tell it to call the kernel, look at the memory it leaves."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from ytk_core.abi import CTYPES_DIR
from ytk_core.dtypes import ONNX_NUMBER, itemsize
from ytk_core.sandbox import SandboxMode, SandboxPolicy, wrap
from ytk_gaia.evaluator import candidate_runner
from ytk_gaia.evaluator.arena import ALIGNMENT, Arena, Buffer, Kind, Layout, Placement, new_descriptor, plan
from ytk_gaia.evaluator.build import child_mark, end_group, tail
from ytk_gaia.evaluator.cpu_clock import cpu_ns, worker_below
from ytk_gaia.evaluator.verdicts import Verdict
from ytk_gaia.task_format import TaskSpec, TaskTensor

Array = np.ndarray[Any, Any]

MAX_WORKSPACE_BYTES = 4 << 30
_GIB = 1 << 30
_MAX_ANSWER_BYTES = 4096
_FAULT = re.compile(r"^ytk-fault (\d{1,20})$", re.MULTILINE)
_STATUS_NAME = {
    1: "YTK_BAD_ARITY",
    2: "YTK_BAD_DTYPE",
    3: "YTK_BAD_SHAPE",
    4: "YTK_BAD_ATTRIBUTE",
    5: "YTK_BAD_VARIANT",
    6: "YTK_WORKSPACE_TOO_SMALL",
    7: "YTK_DEVICE_ERROR",
    8: "YTK_UNSUPPORTED",
    9: "YTK_BAD_ALIGNMENT",
}


# Different in each placement, so that what reads them does not give the same answer twice.
_CANARY = {Placement.END: 0xCB, Placement.START: 0x5A}
_POISON = {Placement.END: 0xA5, Placement.START: 0xFD}


class CandidateFaultError(Exception):
    """The candidate misbehaved; carries its verdict. Never leaves the evaluator."""

    def __init__(self, verdict: Verdict, reason: str) -> None:
        super().__init__(reason)
        self.verdict = verdict
        self.reason = reason


@functools.cache
def cache_bytes() -> int:
    """Give the size of the largest cache of the first processor; 32 MiB where the kernel does not say, 256 MiB at most."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        with contextlib.suppress(OSError, ValueError):
            text = path.read_text(encoding="ascii").strip()
            sizes.append(int(text.rstrip("KM")) * {"K": 1 << 10, "M": 1 << 20}.get(text[-1], 1))
    return min(256 << 20, max(sizes, default=32 << 20))


@dataclass(frozen=True)
class Limits:
    """How long the judge waits.

    Attributes:
        start_s: From the start of the process until the memory is mapped.
        call_s: For one call of the kernel.
    """

    start_s: float = 30.0
    call_s: float = 20.0


@dataclass(frozen=True)
class Call:
    """One call of the kernel.

    Attributes:
        inner_ns: Wall time by the process's own clock.
        outer_ns: Wall time by the judge's clock, with everything around the call.
        cpu_ns: Processor time of all threads, with everything around the call; None where the kernel does not say.
        idle_ns: Processor time since the call before, while the process had nothing to do; 0 where the kernel does not say.
        outputs: As copied aside right after the call.
        poison: Byte that filled the outputs before the call; -1: none.
    """

    inner_ns: int
    outer_ns: int
    cpu_ns: int | None
    outputs: tuple[Array, ...]
    idle_ns: int = 0
    poison: int = -1


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
    ) -> None:
        self._task = task
        self._limits = limits
        self._placement = placement
        self._threads = threads
        self._arena: Arena | None = None
        self._alignment = alignment
        self._unread = b""
        self._worker = 0
        self._cpu_after: int | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 -- closed in __exit__
        self._descriptor = new_descriptor()
        sizes = sum(_bytes_of(t) for t in (*task.inputs, *task.outputs, *task.outputs))
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
        runner += [str(library), str(self._descriptor)]
        self._process = subprocess.Popen(
            wrap(runner, policy, mode, env=env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            pass_fds=(self._descriptor,),
            start_new_session=True,
        )

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
        text = tail(self._log.fileno())
        return _FAULT.sub("", text).strip()

    def _end(self) -> None:
        end_group(self._process)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # it died with a command unread
                    pipe.close()
        if self._arena is not None:
            self._arena.close()
        os.close(self._descriptor)
        self._log.close()

    # ---- protocol ----------------------------------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        try:
            pipe.write(text.encode() + b"\n")
            pipe.flush()
        except BrokenPipeError:
            raise self._death() from None

    def _pending(self) -> bytes:
        """Give what the process wrote and nobody asked for."""
        pipe = self._process.stdout
        assert pipe is not None
        if not self._unread and select.select([pipe], [], [], 0)[0]:
            self._unread += os.read(pipe.fileno(), _MAX_ANSWER_BYTES)
        return self._unread

    def _answer(self, limit_s: float) -> str:
        pipe = self._process.stdout
        assert pipe is not None
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                raise CandidateFaultError(Verdict.TIMEOUT, f"no answer within {limit_s:g} s")
            chunk = os.read(pipe.fileno(), _MAX_ANSWER_BYTES)
            if not chunk:
                raise self._death()
            self._unread += chunk
            if len(self._unread) > _MAX_ANSWER_BYTES:
                raise CandidateFaultError(Verdict.RUNTIME_ERROR, "the process speaks out of turn")
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode(errors="replace")

    def _death(self) -> CandidateFaultError:
        """Say why the process is gone."""
        try:
            status = self._process.wait(5)
        except subprocess.TimeoutExpired:
            return CandidateFaultError(Verdict.RUNTIME_ERROR, "the process closed its answers and went on")
        number = -status if status < 0 else status - 128 if status > 128 else 0
        if number in {signal.SIGSEGV, signal.SIGBUS}:
            found = _FAULT.search(tail(self._log.fileno()))
            if found and self._arena is not None:
                return self._fault(int(found[1]))
        if number:
            name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
            return CandidateFaultError(Verdict.RUNTIME_ERROR, f"the process died of {name}")
        return CandidateFaultError(Verdict.RUNTIME_ERROR, f"the process ended by itself with {status}")

    def _fault(self, offset: int) -> CandidateFaultError:
        assert self._arena is not None
        kind, where = self._arena.layout.describe(offset)
        if kind is Kind.INPUT:
            return CandidateFaultError(Verdict.MUTATED_INPUT, f"it wrote to {where}")
        if kind is None:
            return CandidateFaultError(Verdict.OUT_OF_BOUNDS, f"it touched memory {where}")
        return CandidateFaultError(Verdict.RUNTIME_ERROR, f"a fault inside {where}")

    # ---- life --------------------------------------------------------------------------------------------------------

    def _set_up(self) -> None:
        task, limit = self._task, self._limits.start_s
        setup = {
            "threads": self._threads,
            "flush_bytes": cache_bytes() * 2,
            "inputs": _described(task.inputs, None),
            "outputs": _described(task.outputs, None),
        }
        self._say(json.dumps(setup))
        word, _, number = self._answer(limit).partition(" ")
        if word != "loaded" or not re.fullmatch(r"-?\d{1,19}", number):
            raise CandidateFaultError(Verdict.RUNTIME_ERROR, "the process speaks out of turn")
        self._worker = worker_below(self._process.pid)
        workspace = int(number)
        if not 0 <= workspace <= MAX_WORKSPACE_BYTES:
            raise CandidateFaultError(Verdict.RUNTIME_ERROR, f"it asks for {workspace} bytes of workspace")
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
        self._say(json.dumps(self._mapping(layout)))
        if self._answer(limit) != "mapped":
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

    def call(self, inputs: Sequence[Array], *, flush: bool = False) -> Call:
        """Call the kernel on fresh inputs, with poisoned outputs and workspace, and look at what it left.

        Args:
            inputs: In storage dtype.
            flush: Whether the process walks over more memory than the caches hold, just before.

        Returns:
            Times and raw output bytes; whether they are right is the caller's question.

        Raises:
            CandidateFaultError: It died, took too long, refused, wrote where it must not, or spoke out of turn.
        """
        arena = self._arena
        assert arena is not None
        layout = arena.layout
        fed = self._feed(arena, inputs)
        cpu_before = cpu_ns(self._worker)
        started = time.perf_counter_ns()
        status, inner = self._ask("cold" if flush else "go")
        outer = time.perf_counter_ns() - started
        cpu_after = cpu_ns(self._worker)
        if status != 0:
            raise CandidateFaultError(
                Verdict.RUNTIME_ERROR, f"launch returned {status} ({_STATUS_NAME.get(status, 'no known status')})"
            )
        self._inspect(arena, fed)
        snapshots = tuple(arena.view(b).copy() for b in layout.of(Kind.SNAPSHOT))
        for index, (buffer, snapshot) in enumerate(zip(layout.of(Kind.OUTPUT), snapshots, strict=True)):
            if not np.array_equal(arena.view(buffer), snapshot):
                raise CandidateFaultError(
                    Verdict.WRONG_VALUE, f"output {index} changed after the launcher had returned"
                )
        cpu = None if cpu_before is None or cpu_after is None else cpu_after - cpu_before
        idle = 0 if cpu_before is None or self._cpu_after is None else cpu_before - self._cpu_after
        self._cpu_after = cpu_after
        return Call(inner, outer, cpu, snapshots, idle, _POISON[self._placement])

    def control(self, inputs: Sequence[Array]) -> None:
        """Give the process fresh inputs and poisoned outputs, and let it *not* call the kernel.

        Raises:
            CandidateFaultError: NOT_USED: an output was written all the same; or as :meth:`call`.
        """
        arena = self._arena
        assert arena is not None
        fed = self._feed(arena, inputs)
        self._ask("skip")
        self._inspect(arena, fed)
        self._cpu_after = None
        for kind in (Kind.SNAPSHOT, Kind.OUTPUT):
            for buffer in arena.layout.of(kind):
                if (arena.view(buffer) != _POISON[self._placement]).any():
                    raise CandidateFaultError(
                        Verdict.NOT_USED, f"output {buffer.index} was written although the launcher had not been called"
                    )

    def refuses(self, index: int, axis: int, extent: int) -> bool:
        """Call the kernel with another extent than its buffers have, which its contract excludes; say whether it refused.

        Raises:
            CandidateFaultError: It died, took too long, or wrote where it must not.
        """
        arena = self._arena
        assert arena is not None
        if self._pending():
            raise CandidateFaultError(Verdict.RUNTIME_ERROR, "the process answered twice")
        self._cpu_after = None
        status, _ = self._ask("try", f" {index} {axis} {extent}")
        damaged = arena.damaged()
        if damaged:
            raise CandidateFaultError(Verdict.OUT_OF_BOUNDS, f"it wrote beside {damaged}")
        return status != 0

    def mapped_files(self) -> frozenset[str]:
        """Give the paths of the files in the process's memory; empty where the kernel does not let us look."""
        try:
            text = Path(f"/proc/{self._worker}/maps").read_text(errors="replace")
        except OSError:
            return frozenset()
        fields = (line.split(maxsplit=5) for line in text.splitlines())
        return frozenset(parts[5] for parts in fields if len(parts) > 5 and parts[5].startswith("/"))

    def _feed(self, arena: Arena, inputs: Sequence[Array]) -> list[Array]:
        """Write inputs, poison everything else; give the inputs as bytes."""
        if self._pending():
            raise CandidateFaultError(Verdict.RUNTIME_ERROR, "the process answered twice")
        layout = arena.layout
        fed = [np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in inputs]
        for buffer, raw in zip(layout.of(Kind.INPUT), fed, strict=True):
            arena.view(buffer)[:] = raw
        for kind in (Kind.OUTPUT, Kind.SNAPSHOT, Kind.WORKSPACE):
            for buffer in layout.of(kind):
                arena.view(buffer)[:] = _POISON[self._placement]
        return fed

    def _ask(self, word: str, more: str = "") -> tuple[int, int]:
        """Give a command and take its answer: status and nanoseconds."""
        nonce = secrets.token_hex(8)
        self._say(f"{word} {nonce}{more}")
        found = re.fullmatch(rf"done {nonce} (-?\d{{1,11}}) (-?\d{{1,18}})", self._answer(self._limits.call_s))
        if not found:
            raise CandidateFaultError(Verdict.RUNTIME_ERROR, "the process speaks out of turn")
        return int(found[1]), int(found[2])

    def _inspect(self, arena: Arena, fed: Sequence[Array]) -> None:
        damaged = arena.damaged()
        if damaged:
            raise CandidateFaultError(Verdict.OUT_OF_BOUNDS, f"it wrote beside {damaged}")
        for index, (buffer, raw) in enumerate(zip(arena.layout.of(Kind.INPUT), fed, strict=True)):
            if not np.array_equal(arena.view(buffer), raw):
                raise CandidateFaultError(Verdict.MUTATED_INPUT, f"input {index} is not what it was before the call")
