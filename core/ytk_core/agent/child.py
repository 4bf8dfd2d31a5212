"""The child side of a task: ``python -P -m ytk_core.agent.child MODULE:FUNCTION WORKDIR [--parent PID] [--nice N]``.

Reads ``WORKDIR/task.json``, calls ``function(task, workdir)`` and leaves ``result.json`` or ``error.json``. Standard
output and error are the job's log. Imports nothing heavy itself.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ytk_core.agent import processes
from ytk_core.errors import BoardError, ToolkitError, UserError, YtkError

TASK_FILE = "task.json"
RESULT_FILE = "result.json"
ERROR_FILE = "error.json"
EXIT_ERROR = 1
EXIT_DISK_FULL = 75
"""Not even the error file could be written."""

TaskFunction = Callable[[dict[str, Any], Path], dict[str, Any]]

_PR_SET_PDEATHSIG = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run one task; the exit code is 0 with a result file and 1 with an error file."""
    parser = argparse.ArgumentParser(prog="ytk_core.agent.child")
    parser.add_argument("ref")
    parser.add_argument("workdir", type=Path)
    parser.add_argument("--parent", type=int, default=0)
    parser.add_argument("--nice", type=int, default=0)
    args = parser.parse_args(argv)
    if args.parent:
        _die_with(args.parent)
    if args.nice:
        os.nice(args.nice)
    try:
        payload = _encode(_run(args.ref, args.workdir))
        _refuse_daemons()
        _leave(args.workdir / RESULT_FILE, payload)
    except Exception as err:  # noqa: BLE001  (whatever a task raises becomes its error file)
        failure = as_ytk_error(err)
        if failure is not err:
            traceback.print_exc()
        try:
            _leave(args.workdir / ERROR_FILE, _encode_error(failure))
        except OSError:
            traceback.print_exc()
            return EXIT_DISK_FULL
        return EXIT_ERROR
    return 0


def resolve(ref: str) -> TaskFunction:
    """Import a task function.

    Raises:
        ToolkitError: Code ``bad_task_ref``: not ``module:function``, or no such thing.
    """
    module_name, separator, name = ref.partition(":")
    if not separator:
        raise ToolkitError(f"task reference {ref!r} is not 'module:function'", code="bad_task_ref")
    function = getattr(importlib.import_module(module_name), name, None)
    if not callable(function):
        raise ToolkitError(f"{module_name} has no function {name!r}", code="bad_task_ref")
    task: TaskFunction = function
    return task


def as_ytk_error(err: Exception) -> YtkError:
    """Give the error of the distribution that stands for any exception of a task."""
    if isinstance(err, YtkError):
        return err
    text = f"{type(err).__name__}: {err}"
    if isinstance(err, MemoryError):
        return BoardError(
            f"the task ran out of memory ({text})", code="out_of_memory", hint="Use a worker with more memory."
        )
    if isinstance(err, OSError) and err.errno in {errno.ENOSPC, errno.EDQUOT}:
        return BoardError(f"the disk is full ({text})", code="disk_full", hint="Free space on the worker.")
    if isinstance(err, OSError) and err.errno == errno.EFBIG:
        return UserError(f"a file grew over the limit ({text})", code="file_limit")
    if isinstance(err, BlockingIOError):  # EAGAIN of fork or of a thread's start
        return UserError(f"the task may not start more processes ({text})", code="process_limit")
    return ToolkitError(text, hint="The traceback is in the job's log; report it.")


def _run(ref: str, workdir: Path) -> dict[str, Any]:
    function = resolve(ref)
    task = msgspec.json.decode((workdir / TASK_FILE).read_bytes(), type=dict[str, Any])
    result: Any = function(task, workdir)
    if not isinstance(result, dict):
        raise ToolkitError(f"task {ref} returned {type(result).__name__}, not a dict", code="bad_result")
    return result


def _encode(result: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(result, enc_hook=_as_json)
    except (TypeError, ValueError) as err:
        raise ToolkitError(f"the task's result is not JSON: {err}", code="bad_result") from err


def _as_json(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a numpy scalar, without importing numpy
        return value.item()
    raise TypeError(f"{type(value).__name__} {value!r:.80}")


def _encode_error(err: YtkError) -> bytes:
    return msgspec.json.encode(
        {"failure_class": err.failure_class, "code": err.code, "message": err.message, "hint": err.hint}
    )


def _leave(path: Path, payload: bytes) -> None:
    """Write in one step: the parent never sees half a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    partial = path.with_suffix(".partial")
    partial.write_bytes(payload)
    partial.replace(path)


def _refuse_daemons() -> None:
    """Fail a task that left a detached process: it would work on after the job, on a device that others measure on."""
    token = os.environ.get(processes.TOKEN_VARIABLE, "")
    left = processes.daemons(processes.strays(token)) if token else []
    if left:
        raise ToolkitError(
            f"the task left {len(left)} detached process(es) behind",
            code="left_processes",
            hint="Wait for children, or keep them in the task's session.",
        )


def _die_with(parent: int) -> None:
    """End this process when its parent dies: an orphan would go on holding the device."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the line above
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
