"""Run a task function in a child process: the parent side, with and without a job around it.

A task function has the form ``def f(task: dict[str, Any], workdir: Path) -> dict[str, Any]``: JSON in, JSON out, files by
paths below ``workdir``. The parent never imports its module.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import threading
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ytk_core import sandbox as sandboxes
from ytk_core.agent import processes
from ytk_core.agent.child import ERROR_FILE, RESULT_FILE, TASK_FILE
from ytk_core.agent.files import place_inside
from ytk_core.agent.outcome import ERROR_OF_CLASS, EndedBy, TaskCommand, TaskExit, collect, error_of
from ytk_core.errors import FailureClass
from ytk_core.together import to_its_end

CHILD_NICE = 5
PROGRESS_MARK = b"\x1e"
"""Begins a line of the child's output that is progress (JSON) and no log text."""

_MAX_LINE_BYTES = 64 * 1024
_TAIL_BYTES = 2000
_WATCH_EVERY_S = 0.2
_PIPE_GRACE_S = 2.0

_T = TypeVar("_T")
LogSink = Callable[[bytes], None]
ProgressSink = Callable[[float, str], None]


def report_progress(fraction: float, note: str = "") -> None:
    """Tell the job's watchers how far the task is. Called in the child."""
    line = PROGRESS_MARK + msgspec.json.encode([min(max(float(fraction), 0.0), 1.0), note]) + b"\n"
    sys.stdout.flush()
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def prepare_task(
    ref: str,
    task: Mapping[str, Any],
    workdir: Path,
    *,
    sandbox: sandboxes.SandboxPolicy | None,
    mode: sandboxes.SandboxMode,
    env: Mapping[str, str] | None = None,
    blame: FailureClass | None = None,
) -> TaskCommand:
    """Write ``task.json`` and give the command. Blocks on the disk: call it off the event loop.

    Raises:
        BoardError: Code ``no_sandbox``.
        UserError: Code ``sandbox_path``.
        CandidateError: Code ``bad_workdir``: an earlier task left a link where this one has its files.
    """
    workdir = workdir.resolve()
    # An untrusted task may have run here before: a link in its place must not be written through.
    for name in (TASK_FILE, RESULT_FILE, ERROR_FILE):
        _remove(workdir / name)
    with (workdir / TASK_FILE).open("xb") as file:
        file.write(msgspec.json.encode(dict(task), enc_hook=_path_as_text))
    token = uuid.uuid4().hex
    marked = {**(env or {}), processes.TOKEN_VARIABLE: token, processes.PLACE_VARIABLE: str(workdir)}
    child = [sys.executable, "-P", "-m", "ytk_core.agent.child", ref, str(workdir)]
    if sandbox is None:
        place_inside(workdir / "tmp", workdir).mkdir(exist_ok=True)
        marked = {"HOME": str(Path.home()), "TMPDIR": str(workdir / "tmp"), **marked}
        child += ["--parent", str(os.getpid()), "--nice", str(CHILD_NICE)]
        return TaskCommand(
            argv=tuple(child),
            env=sandboxes.clean_env(marked),
            workdir=workdir,
            token=token,
            policy=None,
            blame=blame or FailureClass.OURS,
            sandboxed=False,
            note="",
        )
    inputs = (place_inside(workdir / "in", workdir),) if (workdir / "in").is_dir() else ()
    policy = msgspec.structs.replace(
        sandbox, read_write=(workdir, *sandbox.read_write), read_only=(*inputs, *sandbox.read_only)
    )
    status = sandboxes.require(mode)
    sandboxed = status.kind == "bubblewrap"
    if not sandboxed:
        child += ["--parent", str(os.getpid())]
    return TaskCommand(
        argv=tuple(sandboxes.wrap(child, policy, mode, env=marked, cwd=workdir, nice=CHILD_NICE)),
        env=sandboxes.clean_env(marked),
        workdir=workdir,
        token=token,
        policy=policy,
        blame=blame or FailureClass.CANDIDATES,
        sandboxed=sandboxed,
        note="" if sandboxed else f"warning: untrusted code runs without a sandbox ({status.reason})",
    )


async def run_command(
    command: TaskCommand, log: LogSink, progress: ProgressSink, wall_limit_s: float | None = None
) -> TaskExit:
    """Run the child to its end. Nothing of it lives when this returns or raises, whatever it forked.

    Cancelling kills it at once.
    """
    splitter = _OutputSplitter(log, progress)
    process, output = await _start(command, splitter)
    watch = asyncio.create_task(_watch(process.pid, command.policy), name="task-limits")
    waiter = asyncio.create_task(process.wait(), name="task-exit")
    ended_by: EndedBy = "itself"
    try:
        done, _ = await asyncio.wait({waiter, watch}, timeout=wall_limit_s, return_when=asyncio.FIRST_COMPLETED)
        if waiter not in done:
            ended_by = watch.result() if watch in done else "wall_limit"
    finally:
        watch.cancel()
        processes.kill_group(process.pid)  # before the first await: a cancellation may come again
        await to_its_end(_end(waiter, output, command.token))
    return TaskExit(returncode=await waiter, ended_by=ended_by, tail=splitter.tail)


async def run_task(
    ref: str,
    task: Mapping[str, Any],
    workdir: Path,
    *,
    sandbox: sandboxes.SandboxPolicy | None,
    mode: sandboxes.SandboxMode,
    log: LogSink,
    progress: ProgressSink,
    wall_limit_s: float | None = None,
    env: Mapping[str, str] | None = None,
    blame: FailureClass | None = None,
) -> dict[str, Any]:
    """Run a task function in a child and give its result.

    Raises:
        YtkError: As :func:`prepare_task` and :func:`collect` do.
    """
    command = await asyncio.to_thread(
        prepare_task, ref, task, workdir, sandbox=sandbox, mode=mode, env=env, blame=blame
    )
    if command.note:
        log(f"{command.note}\n".encode())
    ended = await run_command(command, log, progress, wall_limit_s)
    return await asyncio.to_thread(collect, command, ended)


def run_task_locally(
    ref: str,
    task: Mapping[str, Any],
    workdir: Path,
    sandbox: sandboxes.SandboxPolicy | None = None,
    wall_limit_s: float | None = None,
    env: Mapping[str, str] | None = None,
    mode: sandboxes.SandboxMode = "optional",
    log: Callable[[str], None] | None = None,
    blame: FailureClass | None = None,
) -> dict[str, Any]:
    """Run a task function in the same child that an agent uses, without controller or network.

    Args:
        ref: ``module:function``.
        task: JSON object for the function.
        workdir: Existing directory for files in and out.
        sandbox: None runs it as trusted.
        wall_limit_s: The child is killed after this long.
        env: More environment variables.
        mode: ``optional`` runs without a sandbox where none works.
        log: Takes the child's output as text; standard error by default.
        blame: Class of a failure that the child's own code caused.

    Raises:
        YtkError: As :func:`collect`.
    """
    sink = log or sys.stderr.write
    decoder = _incremental_text(sink)
    work = run_task(
        ref,
        task,
        workdir,
        sandbox=sandbox,
        mode=mode,
        log=decoder,
        progress=lambda _fraction, _note: None,
        wall_limit_s=wall_limit_s,
        env=env,
        blame=blame,
    )
    return run_blocking(work)


def run_blocking(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine to its end, also where the caller is inside a running loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    outcome: list[_T | BaseException] = []

    def body() -> None:
        try:
            outcome.append(asyncio.run(work))
        except BaseException as err:  # noqa: BLE001  (handed to the caller's thread)
            outcome.append(err)

    # A thread that lives as long as the child: the child dies with the *thread* that started it.
    thread = threading.Thread(target=body, name="run-blocking")
    thread.start()
    thread.join()
    (first,) = outcome
    if isinstance(first, BaseException):
        raise first
    return first


def _incremental_text(sink: Callable[[str], Any]) -> LogSink:
    import codecs

    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def write(chunk: bytes) -> None:
        sink(decoder.decode(chunk))

    return write


class _OutputSplitter:
    """Separates progress lines from log text and keeps the log's end."""

    def __init__(self, log: LogSink, progress: ProgressSink) -> None:
        self._log = log
        self._progress = progress
        self._partial = b""
        self._tail = b""

    @property
    def tail(self) -> str:
        return self._tail.decode(errors="replace").strip()

    def feed(self, chunk: bytes) -> None:
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        text = b""
        for line in lines:
            if line.startswith(PROGRESS_MARK):
                self._report(line[len(PROGRESS_MARK) :])
            else:
                text += line + b"\n"
        if len(self._partial) > _MAX_LINE_BYTES or (self._partial and not self._partial.startswith(PROGRESS_MARK)):
            # Half a line of text is shown at once (a progress bar); only a progress line has to be whole.
            text, self._partial = text + self._partial, b""
        self._emit(text)

    def close(self) -> None:
        self._emit(self._partial)
        self._partial = b""

    def _emit(self, text: bytes) -> None:
        if text:
            self._tail = (self._tail + text)[-_TAIL_BYTES:]
            self._log(text)

    def _report(self, line: bytes) -> None:
        try:
            fraction, note = msgspec.json.decode(line, type=tuple[float, str])
        except msgspec.MsgspecError:
            return  # not ours: a child may print anything
        self._progress(min(max(fraction, 0.0), 1.0), note[:200])


class _Output(asyncio.Protocol):
    """Takes the child's output from a pipe of our own.

    Not asyncio's subprocess pipe: with that, waiting for the child also waits for everyone else who holds the pipe.
    """

    def __init__(self, splitter: _OutputSplitter) -> None:
        self._splitter = splitter
        self._transport: asyncio.BaseTransport | None = None
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._splitter.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc  # an end is an end
        self._splitter.close()
        self.ended.set()

    async def close(self) -> None:
        """Take what is left in the pipe; a holder that cannot be killed does not keep us."""
        try:
            async with asyncio.timeout(_PIPE_GRACE_S):
                await self.ended.wait()
        except TimeoutError:
            if self._transport is not None:
                self._transport.close()
            await self.ended.wait()


async def _start(command: TaskCommand, splitter: _OutputSplitter) -> tuple[asyncio.subprocess.Process, _Output]:
    reader, writer = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *command.argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=writer,
            stderr=asyncio.subprocess.STDOUT,
            env=command.env,
            cwd=command.workdir,
            start_new_session=True,
        )
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    loop = asyncio.get_running_loop()
    _, output = await loop.connect_read_pipe(lambda: _Output(splitter), os.fdopen(reader, "rb", buffering=0))
    return process, output


async def _watch(pid: int, policy: sandboxes.SandboxPolicy | None) -> EndedBy:
    """Return when the whole tree breaks a limit that the kernel's per-process limits cannot express."""
    while True:
        if policy is None:
            await asyncio.Event().wait()
            continue
        await asyncio.sleep(_WATCH_EVERY_S)
        broken = await asyncio.to_thread(_broken_limit, pid, policy)
        if broken is not None:
            return broken


def _broken_limit(pid: int, policy: sandboxes.SandboxPolicy) -> EndedBy | None:
    if policy.memory_bytes is not None or policy.processes is not None:
        usage = processes.usage_of_tree(pid)
        if policy.memory_bytes is not None and usage.memory_bytes > policy.memory_bytes:
            return "memory_limit"
        # The sandbox's own two processes are not the task's.
        if policy.processes is not None and usage.processes > policy.processes + 2:
            return "process_limit"
    if policy.disk_bytes is not None and processes.disk_usage(policy.read_write) > policy.disk_bytes:
        return "disk_limit"
    return None


async def _end(waiter: asyncio.Task[int], output: _Output, token: str) -> None:
    await waiter
    await asyncio.to_thread(processes.kill_all, lambda: processes.strays(token))
    await output.close()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _path_as_text(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"{type(value).__name__} in a task")


__all__: Sequence[str] = (
    "ERROR_OF_CLASS",
    "LogSink",
    "ProgressSink",
    "TaskCommand",
    "TaskExit",
    "collect",
    "error_of",
    "prepare_task",
    "report_progress",
    "run_blocking",
    "run_command",
    "run_task",
    "run_task_locally",
)
