"""What became of a task's child, and who is to blame.

Who is to blame when a child ends badly: for a trusted task a kill from outside is the board's and everything else a
bug of ours; for a sandboxed task, whose code nobody vouches for, it is ``blame`` (the candidate's by default), also
where the child *says* that the board failed: else any kernel could have itself retried on every board.
"""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path
from typing import Any, Literal

import msgspec

from ytk_core.agent.child import ERROR_FILE, EXIT_DISK_FULL, RESULT_FILE
from ytk_core.errors import BoardError, CandidateError, FailureClass, ToolkitError, UserError, YtkError
from ytk_core.jobs import Failure
from ytk_core.sandbox import SandboxPolicy

_MAX_RESULT_BYTES = 64 * 1024 * 1024

# What code may do to itself whatever class the child's runner gave it.
_BLAMED_CODES = frozenset({"left_processes", "file_limit", "process_limit"})

EndedBy = Literal["itself", "wall_limit", "memory_limit", "process_limit", "disk_limit"]

ERROR_OF_CLASS: dict[FailureClass, type[YtkError]] = {
    FailureClass.YOURS: UserError,
    FailureClass.CANDIDATES: CandidateError,
    FailureClass.BOARDS: BoardError,
    FailureClass.OURS: ToolkitError,
}


class TaskCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A child ready to be started.

    Attributes:
        argv: The command, sandbox included.
        env: Its environment.
        workdir: Where task, result and error files are.
        token: Marks every process of the task.
        policy: Limits to watch; None for a trusted task.
        blame: Class of a failure that the child's own code caused.
        sandboxed: Whether a sandbox is really around it.
        note: For the job's log; empty where there is nothing to say.
    """

    argv: tuple[str, ...]
    env: dict[str, str]
    workdir: Path
    token: str
    policy: SandboxPolicy | None
    blame: FailureClass
    sandboxed: bool
    note: str


class TaskExit(msgspec.Struct, frozen=True, kw_only=True):
    """How a child ended; ``tail`` is the end of its output."""

    returncode: int
    ended_by: EndedBy
    tail: str


def error_of(failure: Failure) -> YtkError:
    """Give the exception that a failure stands for, of the class that handlers catch."""
    return ERROR_OF_CLASS[failure.failure_class](failure.message, code=failure.code, hint=failure.hint)


def collect(command: TaskCommand, ended: TaskExit) -> dict[str, Any]:
    """Give the task's result. Reads files that untrusted code wrote: no links, no devices, bounded.

    Raises:
        YtkError: Of the class that has to act; codes ``wall_limit``, ``memory_limit``, ``process_limit``,
            ``disk_limit``, ``cpu_limit``, ``child_killed``, ``child_crashed``, ``no_result``, ``bad_result``,
            ``sandbox_failed``, or the task's own.
    """
    blame = ERROR_OF_CLASS[command.blame]
    if ended.ended_by != "itself":
        raise _limit_error(command, ended)
    text = f"; its last output: {ended.tail}" if ended.tail else ""
    error = _read(command.workdir / ERROR_FILE, blame)
    if error is not None:
        raise _task_error(error, command)
    number = _signal_of(command, ended.returncode)
    if number == signal.SIGXCPU:
        raise blame("the task used up its processor seconds", code="cpu_limit")
    if number == signal.SIGKILL:
        cls = blame if command.policy is not None else BoardError
        raise cls(
            f"the task was killed (SIGKILL), probably by the kernel for lack of memory{text}",
            code="child_killed",
            hint="Look at the worker's memory (dmesg), or use a worker with more.",
        )
    if number is not None:
        raise blame(f"the task crashed with {number.name}{text}", code="child_crashed")
    if command.sandboxed and ended.returncode == 1 and ended.tail.startswith("bwrap: "):
        raise BoardError(f"the sandbox did not start: {ended.tail}", code="sandbox_failed")
    if ended.returncode == EXIT_DISK_FULL and command.policy is None:
        raise BoardError(f"the worker's disk is full{text}", code="disk_full", hint="Free space on the worker.")
    result = _read(command.workdir / RESULT_FILE, blame) if ended.returncode == 0 else None
    if result is None:
        raise blame(f"the task exited with {ended.returncode} and left no result{text}", code="no_result")
    try:
        return msgspec.json.decode(result, type=dict[str, Any])
    except msgspec.DecodeError as err:
        raise blame(f"the task's result is not a JSON object: {err}", code="bad_result") from err


def _limit_error(command: TaskCommand, ended: TaskExit) -> YtkError:
    text = f"; its last output: {ended.tail}" if ended.tail else ""
    if ended.ended_by == "wall_limit":
        cls = UserError if command.policy is None else ERROR_OF_CLASS[command.blame]
        return cls(f"the task ran over its wall limit and was killed{text}", code="wall_limit", hint="Allow more time.")
    what = {"memory_limit": "memory", "process_limit": "processes", "disk_limit": "disk space"}[ended.ended_by]
    return ERROR_OF_CLASS[command.blame](
        f"the task used more {what} than its policy allows and was killed{text}", code=ended.ended_by
    )


def _task_error(payload: bytes, command: TaskCommand) -> YtkError:
    try:
        failure = msgspec.json.decode(payload, type=Failure)
    except msgspec.MsgspecError as err:
        return ERROR_OF_CLASS[command.blame](f"the task's error file is broken: {err}", code="bad_result")
    untrusted = command.policy is not None
    if untrusted and (failure.failure_class is FailureClass.BOARDS or failure.code in _BLAMED_CODES):
        failure = msgspec.structs.replace(failure, failure_class=command.blame)
    return error_of(failure)


def _signal_of(command: TaskCommand, returncode: int) -> signal.Signals | None:
    """Give the signal that ended the task; bubblewrap reports it as a shell does (128 + number)."""
    number = -returncode if returncode < 0 else (returncode - 128 if command.sandboxed and returncode > 128 else 0)
    try:
        return signal.Signals(number)
    except ValueError:
        return None


def _read(path: Path, blame: type[YtkError]) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as err:
        raise blame(f"the task left {path.name} as no plain file: {err.strerror}", code="bad_result") from err
    with os.fdopen(descriptor, "rb") as file:
        info = os.fstat(file.fileno())
        if not stat.S_ISREG(info.st_mode) or info.st_size > _MAX_RESULT_BYTES:
            raise blame(f"the task left {path.name} as no plain file of sane size", code="bad_result")
        return file.read(_MAX_RESULT_BYTES)
