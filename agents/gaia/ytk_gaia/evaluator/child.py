"""A candidate's process and the words exchanged with it; what they mean is :mod:`.session`'s."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ytk_core.sandbox import SandboxMode, SandboxPolicy, wrap
from ytk_gaia.evaluator.build import end_group, tail
from ytk_gaia.evaluator.cpu_clock import worker_below
from ytk_gaia.evaluator.verdicts import Verdict
from ytk_gaia.evaluator.waiting import allowed_s, waited_s

_MAX_ANSWER_BYTES = 4096
_FAULT = re.compile(r"^ytk-fault (\d{1,20})$", re.MULTILINE)


class CandidateFaultError(Exception):
    """The candidate misbehaved; carries its verdict. Never leaves the evaluator."""

    def __init__(self, verdict: Verdict, reason: str) -> None:
        super().__init__(reason)
        self.verdict = verdict
        self.reason = reason


@dataclass(frozen=True)
class Limits:
    """How long the judge waits. What a process has to wait for a processor is added (:mod:`.waiting`).

    Attributes:
        start_s: From the start of the process until the memory is mapped.
        call_s: For one call of the kernel.
    """

    start_s: float = 30.0
    call_s: float = 20.0


class FaultAtError(CandidateFaultError):
    """The process died of a fault inside the memory that it shares with the judge. ``offset``: where, in bytes."""

    def __init__(self, offset: int) -> None:
        super().__init__(Verdict.RUNTIME_ERROR, f"a fault at offset {offset}")
        self.offset = offset


class Child:
    """A process that answers line by line.

    Args:
        argv: Program and arguments.
        policy: What it may use.
        mode: Whether a sandbox is required.
        env: Its environment.
        descriptor: Passed on to it.

    Raises:
        BoardError: No sandbox where one is required.
    """

    def __init__(
        self, argv: Sequence[str], policy: SandboxPolicy, mode: SandboxMode, env: Mapping[str, str], descriptor: int
    ) -> None:
        self._unread = b""
        self._worker = 0
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 -- closed in end()
        self._process = subprocess.Popen(
            wrap(argv, policy, mode, env=env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            pass_fds=(descriptor,),
            start_new_session=True,
        )

    @property
    def log(self) -> str:
        """End of what the process printed."""
        return _FAULT.sub("", tail(self._log.fileno())).strip()

    @property
    def worker(self) -> int:
        """The process that runs the kernel, below those that make the sandbox; looked for once it answers."""
        if not self._worker:
            self._worker = worker_below(self._process.pid)
        return self._worker

    def end(self) -> None:
        """End it and all that it started."""
        end_group(self._process)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # it died with a command unread
                    pipe.close()
        self._log.close()

    def say(self, text: str) -> None:
        """Write a line.

        Raises:
            CandidateFaultError: It is gone.
        """
        pipe = self._process.stdin
        assert pipe is not None
        try:
            pipe.write(text.encode() + b"\n")
            pipe.flush()
        except BrokenPipeError:
            raise self._death() from None

    def pending(self) -> bytes:
        """Give what it wrote and nobody asked for."""
        pipe = self._process.stdout
        assert pipe is not None
        if not self._unread and select.select([pipe], [], [], 0)[0]:
            self._unread += os.read(pipe.fileno(), _MAX_ANSWER_BYTES)
        return self._unread

    def answer(self, limit_s: float) -> str:
        """Read a line.

        Raises:
            CandidateFaultError: TIMEOUT: none came within the limit and what the process had to wait for a processor meanwhile;
                or it is gone, or says too much.
        """
        pipe = self._process.stdout
        assert pipe is not None
        begun, waited_before = time.monotonic(), self._waited_s()
        allowed = limit_s
        while b"\n" not in self._unread:
            left = begun + allowed - time.monotonic()
            # Looked at once more when the time is over: it may have been the judge who had to wait.
            if not select.select([pipe], [], [], max(0.0, left))[0]:
                longer = allowed_s(limit_s, self._waited_s() - waited_before)
                if begun + longer <= time.monotonic():
                    waited = f", and {longer - limit_s:.1f} s for a busy machine" if longer > limit_s + 0.05 else ""
                    raise CandidateFaultError(Verdict.TIMEOUT, f"no answer within {limit_s:g} s{waited}")
                allowed = longer
                continue
            chunk = os.read(pipe.fileno(), _MAX_ANSWER_BYTES)
            if not chunk:
                raise self._death()
            self._unread += chunk
            if len(self._unread) > _MAX_ANSWER_BYTES:
                raise CandidateFaultError(Verdict.RUNTIME_ERROR, "the process speaks out of turn")
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode(errors="replace")

    def _waited_s(self) -> float:
        return waited_s(self._worker or worker_below(self._process.pid))

    def _death(self) -> CandidateFaultError:
        """Say why the process is gone."""
        try:
            status = self._process.wait(5)
        except subprocess.TimeoutExpired:
            return CandidateFaultError(Verdict.RUNTIME_ERROR, "the process closed its answers and went on")
        number = -status if status < 0 else status - 128 if status > 128 else 0
        if number in {signal.SIGSEGV, signal.SIGBUS}:
            found = _FAULT.search(tail(self._log.fileno()))
            if found:
                return FaultAtError(int(found[1]))
        if number == signal.SIGSYS:
            return CandidateFaultError(
                Verdict.RUNTIME_ERROR,
                "the process died of SIGSYS: it asked for what no kernel needs (another process, another's memory, a fault handler)",
            )
        if number:
            name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
            return CandidateFaultError(Verdict.RUNTIME_ERROR, f"the process died of {name}")
        return CandidateFaultError(Verdict.RUNTIME_ERROR, f"the process ended by itself with {status}")
