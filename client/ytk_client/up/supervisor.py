"""Start the parts, wait until each is ready, restart what crashes, stop all in order.

One asyncio loop in the process that the user started. Parts write to log files of their own; the supervisor tells of
changes through ``say``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from ytk_client.up.layout import Layout, PartStatus, UpStatus
from ytk_client.up.parts import CONTROLLER, Part, agent_command, controller_command
from ytk_core.errors import BoardError


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Deadlines and waits of the supervisor, in seconds."""

    # Cold imports of torch or OpenVINO on a busy machine take tens of seconds.
    ready: float = 120.0
    # An agent finishes its uploads; a job that runs longer is queued again by the controller.
    drain: float = 10.0
    kill: float = 5.0
    first_backoff: float = 1.0
    longest_backoff: float = 30.0
    # A part that ran this long had not been crashing in a row.
    settled: float = 60.0


class _Process:
    """One running part."""

    def __init__(self, process: asyncio.subprocess.Process, log: IO[bytes], started: float) -> None:
        self.process = process
        self.started = started
        self._log = log
        self._ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._reader = asyncio.create_task(self._read(), name="ytk-up-stdout")

    async def _read(self) -> None:
        """Keep stdout: the ready line is for us, everything goes to the log."""
        assert self.process.stdout is not None
        try:
            while line := await self.process.stdout.readline():
                self._log.write(line)
                self._log.flush()
                if not self._ready.done():
                    with contextlib.suppress(ValueError):
                        event = json.loads(line)
                        if isinstance(event, dict) and event.get("event") == "ready":
                            self._ready.set_result(event)
        finally:
            self._log.close()

    async def ready(self, deadline_s: float) -> dict[str, Any] | None:
        """Give the ready event; None if the process ended first or was silent for too long."""
        ended = asyncio.create_task(self.process.wait(), name="ytk-up-wait")
        first: set[asyncio.Future[Any]] = {ended, self._ready}
        await asyncio.wait(first, timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        return self._ready.result() if self._ready.done() else None

    async def wait(self) -> int:
        """Wait for the end of the process and of its output."""
        code = await self.process.wait()
        with contextlib.suppress(TimeoutError):
            # A grandchild may hold the pipe open.
            await asyncio.wait_for(self._reader, 2.0)
        return code

    def send(self, number: signal.Signals, *, group: bool = False) -> None:
        """Send a signal to the process, or to its whole group."""
        with contextlib.suppress(ProcessLookupError):
            if group:
                os.killpg(self.process.pid, number)
            else:
                os.kill(self.process.pid, number)


class Supervisor:
    """Runs one stack.

    Args:
        layout: Where everything is kept.
        agents: The agents to run beside the controller.
        sandbox: ``required`` or ``optional``, passed on to the agents.
        listen: The controller's ``HOST:PORT``; port 0 takes a free one.
        say: Told of crashes and restarts.
        times: Deadlines.
    """

    def __init__(
        self,
        layout: Layout,
        agents: Sequence[Part],
        *,
        sandbox: str,
        listen: str,
        say: Callable[[str], None],
        times: Times | None = None,
    ) -> None:
        self._layout = layout
        self._agents = tuple(agents)
        self._sandbox = sandbox
        self._listen = listen
        self._say = say
        self._times = times or Times()
        self._processes: dict[str, _Process] = {}
        self._status = {
            part.name: PartStatus(name=part.name, log=str(layout.log(part.name))) for part in (CONTROLLER, *agents)
        }
        self._address = ""
        self._ready = False
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    def stop(self) -> None:
        """Ask for the end; a second time, do not wait for anybody."""
        (self._hurry if self._stop.is_set() else self._stop).set()

    async def run(self, on_ready: Callable[[UpStatus], None]) -> None:
        """Run the stack until :meth:`stop`, and leave no process behind.

        Args:
            on_ready: Called once when every part is ready.

        Raises:
            BoardError: A part did not start; the message ends with the tail of its log.
        """
        work = asyncio.create_task(self._start_and_keep(on_ready), name="ytk-up-work")
        stopped = asyncio.create_task(self._stop.wait(), name="ytk-up-stop")
        try:
            await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            work.cancel()
            (outcome,) = await asyncio.gather(work, return_exceptions=True)
            await self._stop_all()
        if isinstance(outcome, BaseExceptionGroup):
            raise outcome.exceptions[0]
        if isinstance(outcome, Exception):
            raise outcome

    def status(self) -> UpStatus:
        """Give the present status."""
        return UpStatus(
            pid=os.getpid(),
            home=str(self._layout.home),
            ready=self._ready,
            address=self._address,
            sandbox=self._sandbox,
            parts=tuple(self._status.values()),
        )

    # ---- starting and keeping ------------------------------------------------------------------------------------------

    async def _start_and_keep(self, on_ready: Callable[[UpStatus], None]) -> None:
        self._publish()
        event = await self._start(CONTROLLER)
        self._address = str(event["address"])
        # A restarted controller has to be found by its agents: same port.
        self._listen = self._address
        self._layout.write_client_toml(self._address)
        async with asyncio.TaskGroup() as group:
            for part in self._agents:
                group.create_task(self._start(part), name=f"ytk-up-start-{part.name}")
        self._ready = True
        self._publish()
        on_ready(self.status())
        async with asyncio.TaskGroup() as group:
            for part in (CONTROLLER, *self._agents):
                group.create_task(self._keep(part), name=f"ytk-up-keep-{part.name}")

    def _command(self, part: Part) -> list[str]:
        if part is CONTROLLER:
            return controller_command(self._layout, self._listen)
        return list(agent_command(part, self._layout, self._address, self._sandbox))

    async def _spawn(self, part: Part) -> _Process:
        self._layout.state(part.name).mkdir(parents=True, exist_ok=True)
        log = Path(self._status[part.name].log).open("ab")  # noqa: ASYNC230, SIM115 - a local file, closed by its reader
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "ytk_client.up.child", str(os.getpid()), "-m"),
            *self._command(part),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            # A session of its own: Ctrl-C of the terminal reaches the supervisor alone, which stops the parts in order.
            start_new_session=True,
        )
        running = _Process(process, log, time.monotonic())
        self._processes[part.name] = running
        return running

    async def _start(self, part: Part) -> dict[str, Any]:
        """Start one part and give its ready event.

        Raises:
            BoardError: It ended, or was not ready in time.
        """
        running = await self._spawn(part)
        self._set(part, state="starting", pid=running.process.pid)
        event = await running.ready(self._times.ready)
        if event is None:
            code = running.process.returncode
            what = f"was not ready within {self._times.ready:.0f} s" if code is None else f"ended with status {code}"
            log = Path(self._status[part.name].log)
            raise BoardError(
                f"{part.name} {what}; the end of its log:\n{log_tail(log)}",
                code="part_failed",
                hint=f"The whole log: {log}",
            )
        self._set(part, state="ready")
        return event

    async def _keep(self, part: Part) -> None:
        """Restart a part as often as it crashes, with growing waits."""
        backoff = self._times.first_backoff
        while True:
            running = self._processes[part.name]
            code = await running.wait()
            if time.monotonic() - running.started > self._times.settled:
                backoff = self._times.first_backoff
            self._set(part, state="restarting", pid=0, restarts=self._status[part.name].restarts + 1)
            self._say(f"{part.name} ended with status {code}; starting it again in {backoff:.0f} s")
            await asyncio.sleep(backoff)
            backoff = min(backoff * 2, self._times.longest_backoff)
            try:
                await self._start(part)
            except BoardError as error:
                self._say(error.message)
                # Silent ones are still there; the next round waits for their end.
                running = self._processes[part.name]
                running.send(signal.SIGKILL, group=True)
            else:
                self._say(f"{part.name} is back")

    # ---- stopping --------------------------------------------------------------------------------------------------------

    async def _stop_all(self) -> None:
        """Stop the agents, then the controller that takes their last words."""
        agents = [running for name, running in self._processes.items() if name != CONTROLLER.name]
        async with asyncio.TaskGroup() as group:
            for running in agents:
                group.create_task(self._end(running), name="ytk-up-end")
        if CONTROLLER.name in self._processes:
            await self._end(self._processes[CONTROLLER.name])
        self._layout.forget()

    async def _end(self, running: _Process) -> None:
        for number, patience in (
            (signal.SIGTERM, self._times.drain),
            (signal.SIGTERM, self._times.kill),
            (signal.SIGKILL, self._times.kill),
        ):
            if running.process.returncode is not None:
                break
            running.send(number, group=number is signal.SIGKILL)
            ended = asyncio.create_task(running.process.wait(), name="ytk-up-ended")
            hurry = asyncio.create_task(self._hurry.wait(), name="ytk-up-hurry")
            await asyncio.wait({ended, hurry}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            hurry.cancel()
            ended.cancel()
        # Whatever of its group is left, e.g. after a crash of its leader.
        running.send(signal.SIGKILL, group=True)
        await running.wait()

    # ---- status ----------------------------------------------------------------------------------------------------------

    def _set(self, part: Part, **changes: Any) -> None:
        self._status[part.name] = msgspec.structs.replace(self._status[part.name], **changes)
        self._publish()

    def _publish(self) -> None:
        self._layout.write_status(self.status())


def log_tail(path: Path, lines: int = 12) -> str:
    """Give the last lines of a log, for an error message."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "  (no log)"
    return "\n".join(f"  {line}" for line in text.splitlines()[-lines:]) or "  (nothing was written)"


async def serve(supervisor_of: Callable[[], Supervisor], on_ready: Callable[[UpStatus], None]) -> None:
    """Run a supervisor until SIGTERM or Ctrl-C.

    Args:
        supervisor_of: Makes it; called inside the running loop.
        on_ready: Called once when every part is ready.
    """
    supervisor = supervisor_of()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, supervisor.stop)
    try:
        await supervisor.run(on_ready)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)
