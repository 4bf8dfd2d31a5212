"""Agents as processes: signals, the ready line, exit codes."""

# ruff: noqa: ASYNC240 - a test may block its own loop

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ytk_core.jobs import JobKind, JobSpec, JobState

from fakes.controller import WAIT_S, FakeController

TESTS = Path(__file__).parents[2]


@asynccontextmanager
async def agent(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "fakes.agent_process",
        *arguments,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def ready(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stdout is not None
    async with asyncio.timeout(WAIT_S):
        line: dict[str, Any] = json.loads(await process.stdout.readline())
    return line


async def ended(process: asyncio.subprocess.Process) -> tuple[int, list[dict[str, Any]]]:
    """Wait for the end; gives exit code and log lines."""
    async with asyncio.timeout(WAIT_S):
        _, stderr = await process.communicate()
    lines = [line for line in stderr.decode().splitlines() if line.startswith("{")]
    assert process.returncode is not None
    return process.returncode, [json.loads(line) for line in lines]


def burn(mark: Path, seconds: float) -> JobSpec:
    return JobSpec(
        kind=JobKind.PLUGIN_BUILD, params={"task": "burn", "argument": {"mark": str(mark), "seconds": seconds}}
    )


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def test_ready_line_description_and_drain(fake: FakeController, tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with agent("--controller", fake.address, "--state-dir", str(state), "--mode", "b") as process:
        said = await ready(process)
        assert said == {"event": "ready", "worker_id": (state / "worker_id").read_text().strip()}
        worker = fake.hellos[0].worker
        assert worker.worker_id == said["worker_id"]
        assert (worker.role, worker.arch_specs, worker.slots) == ("test", ("spec-b",), 1)
        assert worker.version.software
        assert worker.sandbox in {"bubblewrap", "none"}
        job = fake.queue_job(burn(tmp_path / "mark", 1.0))
        await job.wait_log(b"burning")
        process.send_signal(signal.SIGTERM)
        code, logs = await ended(process)
    assert code == 0
    assert (await job.committed()).summary == {"burnt": True}
    events = [entry["event"] for entry in logs]
    assert events.index("draining") < events.index("job_committed") < events.index("agent_stopped")
    committed = next(entry for entry in logs if entry["event"] == "job_committed")
    assert committed["job_id"] == job.id
    assert committed["worker_id"] == said["worker_id"]
    assert committed["role"] == "test"
    async with agent("--controller", fake.address, "--state-dir", str(state)) as process:
        assert await ready(process) == said, "the worker id is kept"


async def test_a_second_signal_kills_at_once(fake: FakeController, tmp_path: Path) -> None:
    async with agent("--controller", fake.address, "--state-dir", str(tmp_path / "s")) as process:
        job = fake.queue_job(burn(tmp_path / "mark", 600))
        await job.wait_log(b"burning")
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        async with asyncio.timeout(WAIT_S):
            while b"draining" not in await process.stderr.readline():
                pass
        process.send_signal(signal.SIGTERM)
        await ended(process)
    assert job.commits == []
    assert not any(alive(pid) for pid in json.loads((tmp_path / "mark").read_text()))


async def test_a_killed_agents_child_dies_and_its_successor_says_so(fake: FakeController, tmp_path: Path) -> None:
    async with agent("--controller", fake.address, "--state-dir", str(tmp_path / "s")) as process:
        job = fake.queue_job(burn(tmp_path / "mark", 600))
        await job.wait_log(b"burning")
        process.kill()
        await process.wait()
        child, grandchild = json.loads((tmp_path / "mark").read_text())
        async with asyncio.timeout(WAIT_S):
            while alive(child):  # noqa: ASYNC110  (another process's death has no event here)
                await asyncio.sleep(0.005)
        async with agent("--controller", fake.address, "--state-dir", str(tmp_path / "s")) as second:
            await ready(second)
            assert fake.hellos[-1].running == ()
            assert fake.hellos[-1].session_id != fake.hellos[0].session_id
            assert list((tmp_path / "s" / "work").iterdir()) == []
            assert not alive(grandchild), "what the child had detached is swept by the successor"


async def test_a_suspended_agent_learns_that_its_job_is_gone(fake: FakeController, tmp_path: Path) -> None:
    async with agent("--controller", fake.address, "--state-dir", str(tmp_path / "s")) as process:
        job = fake.queue_job(burn(tmp_path / "mark", 600))
        await job.wait_log(b"burning")
        process.send_signal(signal.SIGSTOP)
        job.fence += 1  # given to another worker meanwhile
        job.state = JobState.RUNNING
        process.send_signal(signal.SIGCONT)
        fake.queue_job(JobSpec(kind=JobKind.PLUGIN_BUILD, params={"task": "echo"}))
        await fake.until(lambda: any(each.state is JobState.SUCCEEDED for each in fake.jobs.values()), "the next job")
        assert job.commits == []
        assert not any(alive(pid) for pid in json.loads((tmp_path / "mark").read_text()))


async def test_one_agent_per_state_dir(fake: FakeController, tmp_path: Path) -> None:
    arguments = ("--controller", fake.address, "--state-dir", str(tmp_path / "s"))
    async with agent(*arguments) as first:
        await ready(first)
        async with agent(*arguments) as second:
            code, logs = await ended(second)
    assert code == 5
    assert logs[-1]["code"] == "state_dir_in_use"
    assert "--state-dir" in logs[-1]["hint"]


async def test_a_wrong_token_is_said_clearly(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("wrong\n")
    async with FakeController(token="right") as fake:
        arguments = ("--controller", fake.address, "--state-dir", str(tmp_path / "s"), "--token-file", str(token))
        async with agent(*arguments) as process:
            code, logs = await ended(process)
        assert code == 3
        assert (logs[-1]["event"], logs[-1]["code"]) == ("agent_failed", "unauthenticated")
        token.write_text("right")
        async with agent(*arguments) as process:
            await ready(process)
    async with agent("--controller", "127.0.0.1:1", "--token-file", str(tmp_path / "none")) as process:
        code, logs = await ended(process)
    assert (code, logs[-1]["code"]) == (3, "token_file")


async def test_the_parent_imports_nothing_heavy(fake: FakeController, tmp_path: Path) -> None:
    async with agent("--controller", fake.address, "--state-dir", str(tmp_path / "s")) as process:
        await ready(process)
        maps = Path(f"/proc/{process.pid}/maps").read_text()
    assert "cygrpc" in maps, "the probe sees what is loaded"
    for heavy in ("libtorch", "libopenvino", "onnxruntime", "sqlalchemy"):
        assert heavy not in maps
