"""A real controller process for benchmarks, in a temporary directory, on a free port."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Server:
    """Where it listens and what it accepts."""

    address: str
    client_token: str
    agent_token: str
    pid: int

    def peak_mib(self) -> float:
        """Give the process's peak resident memory so far."""
        return status_mib(self.pid, "VmHWM")


def status_mib(pid: int, field: str) -> float:
    """Give a memory field of /proc/PID/status in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    msg = f"/proc/{pid}/status has no {field}"
    raise RuntimeError(msg)


@contextmanager
def controller(state: Path) -> Iterator[Server]:
    """Start ``ytk_controller serve`` and stop it at the end.

    Raises:
        RuntimeError: It did not print its ready line.
    """
    tokens = {}
    for scope in ("client", "agent"):
        tokens[scope] = secrets.token_urlsafe(24)
        (state / f"{scope}.token").write_text(tokens[scope])
    argv = [sys.executable, "-m", "ytk_controller.main", "serve", "--state-dir", str(state / "controller")]
    argv += ["--listen", "127.0.0.1:0", "--log-level", "warning"]
    for scope in tokens:
        argv += ["--bootstrap-token", f"{scope}:bench-{scope}:{state / f'{scope}.token'}"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                msg = f"the controller did not start (exit {process.wait()})"
                raise RuntimeError(msg)
            address = json.loads(line)["address"]
            yield Server(address, tokens["client"], tokens["agent"], process.pid)
        finally:
            process.terminate()
            process.wait(30)
