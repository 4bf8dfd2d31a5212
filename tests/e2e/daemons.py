"""Real daemons as processes: started on a free port, killed, suspended, started again."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from ytk_client.api import Client
from ytk_client.config import load_settings

TESTS = Path(__file__).resolve().parents[1]
WAIT_S = 240.0
"""For what comes within seconds on an idle machine; only a hang meets it."""
LEASE_S = 60.0
"""Of tests in which no lease runs out: an agent that waits for its processor keeps its job."""
SHORT_LEASE_S = 4.0
"""Of tests that wait for a lost agent."""


class Daemon:
    """One process; its standard error goes to a file that a failing test shows."""

    def __init__(self, name: str, argv: list[str], log: Path) -> None:
        self.name = name
        self.argv = argv
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None
        self.ready: dict[str, str] = {}

    def start(self) -> dict[str, str]:
        """Start it (again) and give its ready line."""
        if self.process is not None and self.process.stdout is not None:
            self.process.stdout.close()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.argv,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(TESTS)},
                start_new_session=True,
            )
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], WAIT_S)
        line = self.process.stdout.readline() if readable else b""
        assert line, f"{self.name} is not ready:\n{self.log.read_text()[-4000:]}"
        self.ready = json.loads(line)
        return self.ready

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def kill(self) -> None:
        """SIGKILL the process alone, as a crash or the kernel would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(WAIT_S)

    def terminate(self) -> int:
        """SIGTERM, and give the exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(WAIT_S)

    def suspend(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """End it in any case, with what it started."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(WAIT_S)
        if self.process.stdout is not None:
            self.process.stdout.close()


class Gate:
    """The test's end of a job's gate (see :mod:`e2e.gates`)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(f"{path}.started")
        os.mkfifo(f"{path}.go")

    def wait_started(self) -> int:
        """Wait until a task stands at the gate; give its process id."""
        descriptor = os.open(f"{self.path}.started", os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(descriptor) as started:
            readable, _, _ = select.select([started], [], [], WAIT_S)
            deadline = time.monotonic() + WAIT_S
            # A FIFO without a writer yet reads as ended; select then returns at once.
            while readable:
                line = started.readline()
                if line:
                    return int(line)
                assert time.monotonic() < deadline, f"nobody came to {self.path.name}"
                readable, _, _ = select.select([started], [], [], 0.05)
                readable = [started]
        raise AssertionError(f"nobody came to {self.path.name}")

    def open(self, word: str = "go") -> None:
        """Let the task that stands there through; forget one that died there."""
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                descriptor = os.open(f"{self.path}.go", os.O_WRONLY | os.O_NONBLOCK)
                break
            except OSError:  # ENXIO: the task is between its two FIFOs
                assert time.monotonic() < deadline, f"nobody waits at {self.path.name}"
                os.sched_yield()
        with os.fdopen(descriptor, "w") as go:
            go.write(word + "\n")


class Stack:
    """A controller and any number of gate agents below one directory."""

    def __init__(self, root: Path, *, lease_s: float = LEASE_S) -> None:
        self.root = root
        self.tokens = {scope: secrets.token_urlsafe(16) for scope in ("client", "agent")}
        for scope, token in self.tokens.items():
            (root / f"{scope}.token").write_text(token)
        self._lease_s = lease_s
        self._daemons: list[Daemon] = []
        self.controller = self._controller("127.0.0.1:0")
        self.address = self.controller.start()["address"]

    def _controller(self, listen: str) -> Daemon:
        argv = [sys.executable, "-m", "ytk_controller.main", "serve", "--state-dir", str(self.root / "controller")]
        # Beats of a second, whatever the lease: a stream that lasted for one is begun again at once, not after a growing wait.
        argv += ["--listen", listen, "--lease-seconds", str(self._lease_s), "--heartbeat-seconds", "1"]
        for scope in self.tokens:
            argv += ["--bootstrap-token", f"{scope}:test-{scope}:{self.root / f'{scope}.token'}"]
        daemon = Daemon("controller", argv, self.root / "controller.log")
        self._daemons.append(daemon)
        return daemon

    def restart_controller(self) -> None:
        """Start the controller again on the same port and state."""
        self.controller = self._controller(self.address)
        self.controller.start()

    def agent(self, name: str, *options: str) -> Daemon:
        """Start a gate agent."""
        return self.part(name, "e2e.gates", *options)

    def part(self, name: str, module: str, *options: str) -> Daemon:
        """Start a real agent."""
        argv = [sys.executable, "-m", module, "--controller", self.address, "--worker-id", name]
        argv += ["--token-file", str(self.root / "agent.token"), "--state-dir", str(self.root / name), *options]
        daemon = Daemon(name, argv, self.root / f"{name}.log")
        self._daemons.append(daemon)
        daemon.start()
        return daemon

    def gate(self, name: str) -> Gate:
        return Gate(self.root / name)

    def client(self) -> Client:
        return Client(load_settings(environment={"YTK_CONTROLLER": self.address, "YTK_API_KEY": self.tokens["client"]}))

    def close(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.close()


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_gone(pid: int) -> None:
    """Wait until a process that is not our child has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        readable, _, _ = select.select([descriptor], [], [], WAIT_S)
        assert readable, f"process {pid} still runs"
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def stack(root: Path, *, lease_s: float = LEASE_S) -> Iterator[Stack]:
    """Run a stack, and end all of it."""
    made = Stack(root, lease_s=lease_s)
    try:
        yield made
    finally:
        made.close()
