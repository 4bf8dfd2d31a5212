"""Ctrl-C in front of a real job: the command ends, the job does not, and the way back works."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ytk_core.errors import ExitCode
from ytk_core.jobs import JobKind, JobSpec, JobState

from e2e.daemons import WAIT_S, Stack, alive, stack
from e2e.gates import ARCH


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Stack]:
    with stack(tmp_path) as made:
        made.agent("agent")
        yield made


class Command:
    """A ``ytk`` process, as a person starts it."""

    def __init__(self, running: Stack, *words: str) -> None:
        # The module's own guard runs main(), so Ctrl-C goes the way it goes in a terminal.
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ytk_client.cli.main", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "YTK_CONTROLLER": running.address, "YTK_API_KEY": running.tokens["client"]},
            cwd=running.root,
        )
        self.err = ""

    def wait_for(self, text: str) -> None:
        """Read its messages until one holds the text."""
        assert self.process.stderr is not None
        deadline = time.monotonic() + WAIT_S
        while text not in self.err:
            readable, _, _ = select.select([self.process.stderr], [], [], WAIT_S)
            chunk = os.read(self.process.stderr.fileno(), 65536) if readable else b""
            assert chunk, f"no {text!r} in:\n{self.err}"
            assert time.monotonic() < deadline
            self.err += chunk.decode()

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.end()

    def end(self) -> int:
        _, rest = self.process.communicate(timeout=WAIT_S)
        self.err += rest.decode()
        return self.process.returncode


def test_ctrl_c_leaves_the_job_running_and_attach_takes_it_up_again(running: Stack) -> None:
    gate = running.gate("gate")
    spec = JobSpec(kind=JobKind.PLUGIN_BUILD, arch_spec=ARCH, params={"gate": str(gate.path), "text": "out"})
    with running.client() as client:
        job = client.submit(spec, {}).job
    child = gate.wait_started()
    first = Command(running, "jobs", "attach", job.id)
    first.wait_for("at the gate")
    assert first.interrupt() == ExitCode.DETACHED
    assert "Traceback" not in first.err
    assert f"ytk jobs attach {job.id}" in first.err
    assert f"ytk jobs cancel {job.id}" in first.err
    with running.client() as client:
        assert client.job(job.id).state is JobState.RUNNING
    assert alive(child), "the worker goes on"

    # Whoever comes back sees the log from its beginning, and gets what the job gave.
    second = Command(running, "jobs", "attach", job.id, "--download", "got")
    second.wait_for("at the gate")
    gate.open("go")
    assert second.end() == 0, second.err
    assert "through the gate" in second.err
    assert (running.root / "got" / "output.txt").read_text() == "out go"


def test_a_job_that_was_left_can_be_cancelled_with_the_line_that_was_printed(running: Stack) -> None:
    gate = running.gate("gate")
    spec = JobSpec(kind=JobKind.PLUGIN_BUILD, arch_spec=ARCH, params={"gate": str(gate.path), "text": "out"})
    with running.client() as client:
        job = client.submit(spec, {}).job
    gate.wait_started()
    left = Command(running, "jobs", "attach", job.id)
    left.wait_for("at the gate")
    assert left.interrupt() == ExitCode.DETACHED
    (line,) = [line.partition(": ")[2].split() for line in left.err.splitlines() if "ytk jobs cancel" in line]
    assert line[0] == "ytk"
    assert Command(running, *line[1:]).end() == 0
    with running.client() as client:
        assert list(client.watch(job.id))[-1].state is JobState.CANCELLED
