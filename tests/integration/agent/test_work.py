"""Jobs that move blobs, run children, write logs and hold devices."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from ytk_core import sandbox as sandboxes
from ytk_core.agent.calls import Stubs
from ytk_core.agent.joblog import JobLog
from ytk_core.channels import aio_channel
from ytk_core.errors import BoardError, FailureClass, UserError
from ytk_core.jobs import JobKind, JobResult, JobSpec, JobState
from ytk_core.sandbox import SandboxPolicy, SandboxStatus

from fakes.controller import WAIT_S, FakeController
from fakes.handlers import Gate, Handler, child

SPEC = JobSpec(kind=JobKind.PLUGIN_BUILD)
MEASURING = JobSpec(kind=JobKind.KERNEL_EVALUATE, measuring=True)
MIB = 1 << 20


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def test_inputs_and_outputs(fake: FakeController, start_agent: Any) -> None:
    big = os.urandom(3 * MIB + 17)

    async def copy(ctx: Any) -> JobResult:
        files = await ctx.fetch_all("plugins/")
        assert sorted(files) == ["plugins/a.so", "plugins/deep/b.so"]
        assert (await ctx.fetch("model.npz")) == ctx.workdir / "in" / "model.npz"
        with pytest.raises(UserError, match="no input 'nothing'"):
            await ctx.fetch("nothing")
        out = ctx.workdir / "out.bin"
        out.write_bytes(b"".join(path.read_bytes() for path in files.values()) + big)
        return JobResult(outputs=await ctx.publish({"out.bin": out, "same": out}))

    job = fake.queue_job(SPEC, inputs={"model.npz": big, "plugins/a.so": b"a", "plugins/deep/b.so": b"b", "empty": b""})
    async with start_agent(Handler(copy)):
        result = await job.committed()
    assert [blob.name for blob in result.outputs] == ["out.bin", "same"]
    assert fake.blobs[result.outputs[0].digest] == b"ab" + big
    assert fake.received_bytes == len(big) + 2, "equal content is sent once"


@pytest.mark.parametrize("name", ["../out", "/etc/passwd", "a/../../b", "", "a\\b"])
async def test_a_hostile_input_name_writes_nowhere(fake: FakeController, start_agent: Any, name: str) -> None:
    async def fetch(ctx: Any) -> JobResult:
        await ctx.fetch_all()
        return JobResult()

    job = fake.queue_job(SPEC, inputs={name: b"x"})
    async with start_agent(Handler(fetch)):
        assert (await job.failed()).code == "bad_blob_name"


async def test_a_link_out_of_the_workdir_is_not_published(fake: FakeController, start_agent: Any) -> None:
    async def publish(ctx: Any) -> JobResult:
        (ctx.workdir / "out").symlink_to("/etc/hostname")
        return JobResult(outputs=await ctx.publish({"out": ctx.workdir / "out"}))

    job = fake.queue_job(SPEC)
    async with start_agent(Handler(publish)):
        failure = await job.failed()
    assert (failure.failure_class, failure.code) == (FailureClass.CANDIDATES, "bad_output")
    assert fake.blobs == {}


async def test_a_cut_upload_and_a_cut_download_go_on_where_they_stopped(fake: FakeController, start_agent: Any) -> None:
    data = os.urandom(10 * MIB)

    async def swap(ctx: Any) -> JobResult:
        out = ctx.workdir / "out"
        out.write_bytes((await ctx.fetch("in")).read_bytes()[::-1])
        return JobResult(outputs=await ctx.publish({"out": out}))

    fake.cut_upload_after = 7 * MIB
    fake.cut_download_after = 7 * MIB
    job = fake.queue_job(SPEC, inputs={"in": data})
    async with start_agent(Handler(swap)):
        result = await job.committed()
    assert fake.blobs[result.outputs[0].digest] == data[::-1]
    assert fake.received_bytes <= len(data) + MIB
    assert fake.calls.count("WriteArtifact") == 2
    assert fake.calls.count("ReadArtifact") == 2


async def test_a_damaged_store_is_the_boards(fake: FakeController, start_agent: Any) -> None:
    async def fetch(ctx: Any) -> JobResult:
        await ctx.fetch("in")
        return JobResult()

    job = fake.queue_job(SPEC, inputs={"in": b"right"})
    fake.blobs[job.spec.inputs[0].digest] = b"wrong"
    async with start_agent(Handler(fetch)) as agent:
        failure = await job.failed()
        assert not list(agent.state_dir.rglob("*.part"))
    assert (failure.failure_class, failure.code) == (FailureClass.BOARDS, "digest_mismatch")


async def test_heartbeats_go_on_under_a_child_that_burns_all_processors(fake: FakeController, start_agent: Any) -> None:
    async def burn(ctx: Any) -> JobResult:
        return JobResult(summary=await child(ctx, "burn"))

    jobs = [fake.queue_job(SPEC) for _ in range(2)]
    async with start_agent(Handler(burn), slots=2):
        await asyncio.gather(*(job.wait_log(b"burning") for job in jobs))
        before = len(fake.heartbeats)
        await fake.until(lambda: len(fake.heartbeats) > before + 20, "heartbeats while both children burn")
        assert {job.state for job in jobs} == {JobState.RUNNING}
        assert {lease.job_id for lease in fake.heartbeats[-1].leases} == {job.id for job in jobs}
        for job in jobs:
            fake.cancel(job)
        await asyncio.gather(*(job.outcome() for job in jobs))


async def test_cancel_kills_the_childs_tree(fake: FakeController, start_agent: Any, tmp_path: Path) -> None:
    mark = tmp_path / "pids"

    async def burn(ctx: Any) -> JobResult:
        return JobResult(summary=await child(ctx, "burn", {"mark": str(mark)}))

    job = fake.queue_job(SPEC)
    async with start_agent(Handler(burn)):
        await job.wait_log(b"burning")
        pids = json.loads(mark.read_text())
        assert all(alive(pid) for pid in pids)
        fake.cancel(job)
        assert await job.outcome() is None
        assert not any(alive(pid) for pid in pids)


async def test_a_childs_output_and_progress_are_forwarded(fake: FakeController, start_agent: Any) -> None:
    async def work(ctx: Any) -> JobResult:
        ctx.log("before")
        ctx.progress(0.1, "begin")
        await child(ctx, "progressing")
        ctx.log("after\n")
        return JobResult()

    fake.lose("AppendLog")  # the repeated chunk is not doubled
    job = fake.queue_job(SPEC)
    async with start_agent(Handler(work)):
        await job.committed()
    assert job.log == b"before\ntext between\nafter\n"
    assert job.progress
    assert all(0 <= fraction <= 1 for fraction, _note in job.progress)


async def test_the_log_is_there_before_the_commit(fake: FakeController, start_agent: Any) -> None:
    held = fake.hold("AppendLog")
    job = fake.queue_job(SPEC)
    worked = asyncio.Event()

    async def spam(ctx: Any) -> JobResult:
        await child(ctx, "spam", {"lines": 20_000})
        worked.set()
        return JobResult()

    async with start_agent(Handler(spam)):
        async with asyncio.timeout(WAIT_S):
            await worked.wait()
        beats = len(fake.heartbeats)
        await fake.until(lambda: len(fake.heartbeats) > beats + 5)
        assert "CommitJob" not in fake.calls
        held.set()
        await job.committed()
        assert len(job.log) == 20_000 * 100


async def test_a_log_without_a_controller_is_bounded_and_says_what_is_missing(fake: FakeController) -> None:
    job = fake.queue_job(SPEC)
    job.fence = 1
    async with aio_channel(fake.address) as channel:
        log = JobLog(Stubs(channel), job.lease, max_pending_bytes=1000, max_total_bytes=3000)
        for number in range(30):
            log.write(f"{number:99}\n".encode())
        sending = asyncio.create_task(log.run())
        await log.finish()
        assert job.log.startswith(f"{0:99}\n".encode())
        assert b"[2000 bytes of log were dropped here]" in job.log
        for number in range(100):
            log.write(f"{number:99}\n".encode())
            await log.flush()
        await log.finish()
        assert len(job.log) < 3200
        assert job.log.endswith(b"bytes of log were dropped here]\n")
        sending.cancel()
        await asyncio.wait({sending})
        await log.flush()  # nobody sends: nobody waits


async def test_a_controller_that_forgot_a_part_of_the_log(fake: FakeController) -> None:
    job = fake.queue_job(SPEC)
    job.fence = 1
    async with aio_channel(fake.address) as channel:
        log = JobLog(Stubs(channel), job.lease)
        sending = asyncio.create_task(log.run())
        log.write(b"first\nsecond\n")
        await log.flush()
        job.log = b"first\n"  # it crashed before the rest was on its disk
        log.write(b"third\n")
        await log.flush()
        assert job.log == b"first\nthird\n"
        job.fence = 2
        log.write(b"to nobody\n")
        await log.flush()
        assert job.log == b"first\nthird\n"
        sending.cancel()
        await asyncio.wait({sending})


async def test_one_measurement_per_device_across_agents(fake: FakeController, start_agent: Any) -> None:
    one, two, free = Gate(JobKind.KERNEL_EVALUATE), Gate(JobKind.KERNEL_EVALUATE), Gate()
    first = fake.queue_job(MEASURING)
    async with start_agent(one, worker_id="w1", device_uid="cpu-1"):
        await one.entered.wait()
        async with start_agent(two, free, worker_id="w2", device_uid="cpu-1", slots=2):
            second = fake.queue_job(MEASURING)
            await second.wait_log(b"waiting for the device")
            other = fake.queue_job(SPEC)
            await asyncio.wait_for(free.entered.wait(), WAIT_S)  # a job that measures nothing does not wait
            free.open.set()
            await other.committed()
            assert not two.entered.is_set()
            one.open.set()
            await first.committed()
            await asyncio.wait_for(two.entered.wait(), WAIT_S)
            two.open.set()
            await second.committed()


async def test_waiting_for_a_device_is_within_the_wall_limit(fake: FakeController, start_agent: Any) -> None:
    gate = Gate(JobKind.KERNEL_EVALUATE)
    first = fake.queue_job(MEASURING)
    second = fake.queue_job(JobSpec(kind=JobKind.KERNEL_EVALUATE, measuring=True, wall_limit_s=0.2))
    async with start_agent(gate, device_uid="cpu-1", slots=2):
        assert (await second.failed()).code == "wall_limit"
        gate.open.set()
        await first.committed()


async def test_a_parent_lends_its_device_to_its_child(fake: FakeController, start_agent: Any) -> None:
    async def parent(ctx: Any) -> JobResult:
        task = ctx.workdir / "task.npz"
        task.write_bytes(b"task")
        job_id = await ctx.submit_child(MEASURING, {"task.npz": task})
        job = await ctx.wait_job(job_id)
        (blob,) = job.result.outputs
        return JobResult(summary={"child": (await ctx.fetch_blob(blob)).read_text(), "state": job.state})

    async def measure(ctx: Any) -> JobResult:
        assert (await ctx.fetch("task.npz")).read_bytes() == b"task"
        out = ctx.workdir / "evaluation.json"
        out.write_text("measured")
        return JobResult(outputs=await ctx.publish({"evaluation.json": out}))

    fake.lose("SubmitJob")
    fake.fail("WatchJob", BoardError("cut", code="unavailable"))
    job = fake.queue_job(JobSpec(kind=JobKind.KERNEL_GENERATE, measuring=True))
    async with (
        start_agent(Handler(parent, JobKind.KERNEL_GENERATE), worker_id="w1", device_uid="cpu-1"),
        start_agent(Handler(measure, JobKind.KERNEL_EVALUATE), worker_id="w2", device_uid="cpu-1"),
    ):
        assert (await job.committed()).summary == {"child": "measured", "state": "SUCCEEDED"}
    children = [each for each in fake.jobs.values() if each.parent is not None]
    assert [each.parent for each in children] == [("job-1", 1)]


async def test_without_a_sandbox_untrusted_tasks_are_refused(
    fake: FakeController, start_agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    none = SandboxStatus("none", "no user namespaces (of the test)")
    monkeypatch.setattr(sandboxes, "detect", lambda: none)

    async def work(ctx: Any) -> JobResult:
        return JobResult(summary=await child(ctx, "echo", sandbox=SandboxPolicy()))

    refused = fake.queue_job(SPEC)
    async with start_agent(Handler(work), worker_id="w1"):
        failure = await refused.failed()
    assert (failure.failure_class, failure.code) == (FailureClass.BOARDS, "no_sandbox")
    assert "no user namespaces" in failure.message
    allowed = fake.queue_job(SPEC)
    async with start_agent(Handler(work), worker_id="w2", sandbox_mode="optional"):
        await allowed.committed()
    assert b"without a sandbox (no user namespaces (of the test))" in allowed.log


@pytest.mark.skipif(sandboxes.detect().kind == "none", reason="no sandbox here")
async def test_a_sandboxed_task_of_a_job(fake: FakeController, start_agent: Any) -> None:
    async def work(ctx: Any) -> JobResult:
        await ctx.fetch("region.pt2")
        result = await child(ctx, "echo", {"n": 1}, sandbox=SandboxPolicy(), subdir="confined")
        return JobResult(summary={"inside": result["workdir"] == str(ctx.workdir / "confined")})

    job = fake.queue_job(SPEC, inputs={"region.pt2": b"x"})
    async with start_agent(Handler(work)):
        assert (await job.committed()).summary == {"inside": True}
    assert job.log == b"hello from the child\nand from stderr\n"


async def test_a_killed_child_of_a_trusted_task_is_the_boards(fake: FakeController, start_agent: Any) -> None:
    async def work(ctx: Any) -> JobResult:
        await child(ctx, "kill_self", {"signal": 9})
        return JobResult()

    job = fake.queue_job(SPEC)
    async with start_agent(Handler(work)):
        failure = await job.failed()
    assert (failure.failure_class, failure.code) == (FailureClass.BOARDS, "child_killed")


async def test_a_state_dir_that_vanished_is_the_boards(fake: FakeController, start_agent: Any) -> None:
    async with start_agent(Handler(lambda _ctx: None)) as agent:  # type: ignore[arg-type, return-value]  # never called
        await fake.until(lambda: len(fake.claims) == 1)
        shutil.rmtree(agent.state_dir)
        agent.state_dir.write_text("a file in its place")
        job = fake.queue_job(SPEC)
        failure = await job.failed()
        assert (failure.failure_class, failure.code) == (FailureClass.BOARDS, "workdir")
        agent.state_dir.unlink()
        agent.state_dir.mkdir()
