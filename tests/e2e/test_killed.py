"""Nothing is lost and nothing is done twice, whoever is killed, suspended or cancelled: real daemons as processes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from ytk_core.artifacts import SyncArtifactClient
from ytk_core.channels import CHUNK_BYTES, sync_channel
from ytk_core.digests import digest_file
from ytk_core.errors import YtkError
from ytk_core.jobs import JobKind, JobSpec, JobState
from ytk_core.workers import JobView
from ytk_proto.v1 import jobs_pb2, jobs_pb2_grpc

from e2e.daemons import SHORT_LEASE_S, WAIT_S, Stack, alive, stack, wait_gone
from e2e.gates import ARCH


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Stack]:
    with stack(tmp_path) as made:
        yield made


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[Stack]:
    """A stack that notices a lost agent within seconds."""
    with stack(tmp_path, lease_s=SHORT_LEASE_S) as made:
        yield made


def gate_job(gate: Path, text: str = "out", **more: object) -> JobSpec:
    return JobSpec(kind=JobKind.PLUGIN_BUILD, arch_spec=ARCH, params={"gate": str(gate), "text": text}, **more)


def ended(running: Stack, job_id: str) -> JobView:
    with running.client() as client:
        return list(client.watch(job_id))[-1]


def output(running: Stack, job: JobView) -> str:
    assert job.result is not None, job.failure
    dest = running.root / f"{job.id}.out"
    with running.client() as client:
        client.download(job.result.outputs[0], dest)
    return dest.read_text()


def test_a_killed_agents_job_is_finished_by_another(hasty: Stack) -> None:
    first = hasty.agent("first")
    gate = hasty.gate("gate")
    with hasty.client() as client:
        job = client.submit(gate_job(gate.path), {}).job
    child = gate.wait_started()
    first.kill()
    wait_gone(child)  # a killed agent leaves no child that goes on working
    hasty.agent("second")
    gate.wait_started()
    gate.open("by-second")
    job = ended(hasty, job.id)
    assert (job.state, job.attempts, job.worker_id) == (JobState.SUCCEEDED, 2, "second")
    assert output(hasty, job) == "out by-second"


def test_a_restarted_agent_takes_its_lost_job_again(running: Stack) -> None:
    first = running.agent("first")
    gate = running.gate("gate")
    with running.client() as client:
        job = client.submit(gate_job(gate.path), {}).job
    gate.wait_started()
    first.kill()
    first.start()  # same worker id, new session: what the old process held is lost at once
    gate.wait_started()
    gate.open("again")
    job = ended(running, job.id)
    assert (job.state, job.attempts) == (JobState.SUCCEEDED, 2), "one agent lost twice is not two distinct agents"


def test_a_job_that_loses_two_distinct_agents_is_poisoned(hasty: Stack) -> None:
    gate = hasty.gate("gate")
    with hasty.client() as client:
        first = hasty.agent("first")
        job = client.submit(gate_job(gate.path), {}).job
        gate.wait_started()
        second = hasty.agent("second")
        first.kill()
        gate.wait_started()
        third = hasty.agent("third")
        second.kill()
    job = ended(hasty, job.id)
    assert job.state is JobState.POISONED
    assert job.failure is not None
    assert "first" in job.failure.message
    assert "second" in job.failure.message
    assert third.terminate() == 0


def test_a_killed_controller_comes_back_and_the_job_has_one_result(running: Stack) -> None:
    running.agent("agent")
    gate = running.gate("gate")
    with running.client() as client:
        job = client.submit(gate_job(gate.path), {}).job
    child = gate.wait_started()
    running.controller.kill()
    assert alive(child), "the agent works on while the controller is away"
    running.restart_controller()
    gate.open("once")
    job = ended(running, job.id)
    assert (job.state, job.attempts) == (JobState.SUCCEEDED, 1)
    assert output(running, job) == "out once"
    with running.client() as client:
        log = b"".join(chunk.data for chunk in client.logs(job.id)).decode()
    assert log.count("at the gate") == 1
    assert log.count("through the gate") == 1, "the log goes on where it was before the restart"


def test_a_suspended_agents_late_result_is_refused(hasty: Stack) -> None:
    sleeper = hasty.agent("sleeper")
    gate = hasty.gate("gate")
    with hasty.client() as client:
        job = client.submit(gate_job(gate.path), {}).job
    sleepers_child = gate.wait_started()
    sleeper.suspend()
    gate.open("too-late")  # its child finishes; the agent cannot say so
    wait_gone_or_zombie(sleepers_child)
    hasty.agent("other")
    gate.wait_started()  # the lease ran out: the other agent has the job
    sleeper.resume()  # and now commits a result under the old fence
    gate.open("in-time")
    job = ended(hasty, job.id)
    assert (job.state, job.worker_id, job.attempts) == (JobState.SUCCEEDED, "other", 2)
    assert output(hasty, job) == "out in-time"
    assert sleeper.terminate() == 0, "a refused commit does not take the agent down"


def wait_gone_or_zombie(pid: int) -> None:
    """Wait for a process whose parent is suspended: it stays a zombie."""
    import os
    import select

    descriptor = os.pidfd_open(pid)
    try:
        readable, _, _ = select.select([descriptor], [], [], WAIT_S)
        assert readable
    finally:
        os.close(descriptor)


def test_cancelling_a_parent_ends_its_running_children(running: Stack) -> None:
    running.agent("parents", "--parents")
    running.agent("children", "--slots", "2")
    gates = [running.gate("a"), running.gate("b")]
    spec = JobSpec(kind=JobKind.KERNEL_GENERATE, arch_spec=ARCH, params={"gates": [str(gate.path) for gate in gates]})
    with running.client() as client:
        parent = client.submit(spec, {}).job
        pids = [gate.wait_started() for gate in gates]
        children = client.jobs(parent_id=parent.id)
        assert len(children) == 2
        client.cancel(parent.id)
    assert ended(running, parent.id).state is JobState.CANCELLED
    for child, pid in zip(children, pids, strict=True):
        assert ended(running, child.id).state is JobState.CANCELLED
        wait_gone(pid)


def test_a_lost_parent_ends_its_children(hasty: Stack) -> None:
    parents = hasty.agent("parents", "--parents")
    hasty.agent("children")
    gate = hasty.gate("a")
    spec = JobSpec(kind=JobKind.KERNEL_GENERATE, arch_spec=ARCH, params={"gates": [str(gate.path)]})
    with hasty.client() as client:
        parent = client.submit(spec, {}).job
        pid = gate.wait_started()
        (child,) = client.jobs(parent_id=parent.id)
    parents.kill()
    assert ended(hasty, child.id).state is JobState.CANCELLED
    wait_gone(pid)


def test_one_of_two_joined_submitters_leaves_and_the_other_gets_the_result(running: Stack) -> None:
    running.agent("agent")
    gate = running.gate("gate")
    with running.client() as one, running.client() as other:
        first = one.submit(gate_job(gate.path), {})
        child = gate.wait_started()
        second = other.submit(gate_job(gate.path), {})
        assert (second.job.id, second.joined) == (first.job.id, True)
        left = one.cancel(first.job.id, submission_id=first.submission_id)
        assert left.state is JobState.RUNNING
        assert alive(child)
        gate.open("for-the-other")
    job = ended(running, first.job.id)
    assert job.state is JobState.SUCCEEDED
    assert output(running, job) == "out for-the-other"


def test_an_equal_job_is_answered_from_the_cache_after_a_restart(running: Stack) -> None:
    running.agent("agent")
    gate = running.gate("gate")
    with running.client() as client:
        job = client.submit(gate_job(gate.path), {}).job
        gate.wait_started()
        gate.open("cached")
        job = ended(running, job.id)
    running.controller.kill()
    running.restart_controller()
    with running.client() as client:
        again = client.submit(gate_job(gate.path), {}).job
        assert again.state is JobState.SUCCEEDED
        assert again.from_cache
        assert again.result == job.result


def test_measuring_jobs_exclude_each_other_on_one_device_across_agents(running: Stack) -> None:
    running.agent("one", "--device", "cpu-0")
    running.agent("two", "--device", "cpu-0")
    gates = [running.gate("a"), running.gate("b")]
    with running.client() as client:
        jobs = [client.submit(gate_job(gate.path, measuring=True), {}).job for gate in gates]
        gates[0].wait_started()
        assert client.job(jobs[1].id).state is JobState.QUEUED
        gates[0].open()
        gates[1].wait_started()
        gates[1].open()
    assert {ended(running, job.id).state for job in jobs} == {JobState.SUCCEEDED}


def test_sigterm_lets_the_running_job_finish(running: Stack) -> None:
    agent = running.agent("agent")
    gate = running.gate("gate")
    with running.client() as client:
        job = client.submit(gate_job(gate.path), {}).job
    gate.wait_started()
    assert agent.process is not None
    agent.process.send_signal(signal.SIGTERM)
    gate.open("drained")
    assert agent.process.wait(WAIT_S) == 0
    job = ended(running, job.id)
    assert (job.state, job.attempts) == (JobState.SUCCEEDED, 1)


def test_an_upload_cut_at_70_percent_resends_the_rest_and_at_most_one_chunk(running: Stack, tmp_path: Path) -> None:
    size = 40 * CHUNK_BYTES + 12345
    blob = tmp_path / "blob"
    with blob.open("wb") as file:
        for number in range(41):
            file.write(number.to_bytes(2, "big") * (CHUNK_BYTES // 2))
        file.truncate(size)
    digest = digest_file(blob)
    # A sender that is killed after 70 %: another process, so that its connection dies with it.
    program = f"""
import os, signal
from pathlib import Path
from ytk_core.channels import CHUNK_BYTES, sync_channel
from ytk_proto.v1 import artifacts_pb2 as pb, artifacts_pb2_grpc
def messages():
    with open({str(blob)!r}, "rb") as file:
        for number in range(28):
            data = file.read(CHUNK_BYTES)
            first = dict(digest={digest!r}, size_bytes={size}, offset=0) if number == 0 else {{}}
            yield pb.WriteArtifactRequest(data=data, **first)
    stub = artifacts_pb2_grpc.ArtifactServiceStub(channel)
    while stub.GetWriteStatus(pb.GetWriteStatusRequest(digest={digest!r})).committed_bytes < 28 * CHUNK_BYTES:
        os.sched_yield()
    os.kill(os.getpid(), signal.SIGKILL)
channel = sync_channel({running.address!r}, {running.tokens["client"]!r})
artifacts_pb2_grpc.ArtifactServiceStub(channel).WriteArtifact(messages())
"""
    cut = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=WAIT_S, check=False)
    assert cut.returncode == -signal.SIGKILL, cut.stderr.decode()
    sent: list[int] = []

    with sync_channel(running.address, running.tokens["client"]) as channel:
        client = SyncArtifactClient(_Counting(channel, sent))
        client.ensure({"blob": blob})
    assert sum(sent) <= size - 28 * CHUNK_BYTES + CHUNK_BYTES
    assert sum(sent) > 0
    with running.client() as client, sync_channel(running.address, running.tokens["client"]) as channel:
        SyncArtifactClient(channel).download(digest, tmp_path / "back")
    assert digest_file(tmp_path / "back") == digest


class _Counting(grpc.Channel):
    """Counts the payload of streamed uploads."""

    def __init__(self, inner: grpc.Channel, sent: list[int]) -> None:
        self._inner = inner
        self._sent = sent

    def stream_unary(self, *args, **kwargs):
        call = self._inner.stream_unary(*args, **kwargs)

        def counted(messages, **options):
            def passing():
                for message in messages:
                    self._sent.append(len(message.data))
                    yield message

            return call(passing(), **options)

        return counted

    def unary_unary(self, *args, **kwargs):
        return self._inner.unary_unary(*args, **kwargs)

    def unary_stream(self, *args, **kwargs):
        return self._inner.unary_stream(*args, **kwargs)

    def stream_stream(self, *args, **kwargs):
        return self._inner.stream_stream(*args, **kwargs)

    def subscribe(self, *args, **kwargs):
        return self._inner.subscribe(*args, **kwargs)

    def unsubscribe(self, *args, **kwargs):
        return self._inner.unsubscribe(*args, **kwargs)

    def close(self):
        return self._inner.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


def test_a_wrong_key_is_refused_and_names_its_source(running: Stack) -> None:
    from ytk_client.api import Client
    from ytk_client.config import load_settings

    with (
        pytest.raises(YtkError) as caught,
        Client(load_settings(environment={"YTK_CONTROLLER": running.address, "YTK_API_KEY": "wrong"})),
    ):
        pass
    assert caught.value.code == "unauthenticated"
    assert "YTK_API_KEY" in str(caught.value.message) + caught.value.hint


def test_two_controllers_never_share_one_database(running: Stack) -> None:
    second = running._controller("127.0.0.1:0")
    process = subprocess.run(second.argv, capture_output=True, timeout=WAIT_S, check=False)
    assert process.returncode != 0
    assert b"database_locked" in process.stderr or b"another controller" in process.stderr.lower()


def test_watchers_that_vanish_do_not_take_the_controller_down(running: Stack) -> None:
    """A stream that its client drops is closed when its call is gone already; touching the call then is a crash."""
    running.agent("agent")
    gate = running.gate("gate")
    with running.client() as client:
        job = client.submit(gate_job(gate.path), {}).job
    gate.wait_started()
    for _ in range(20):
        with sync_channel(running.address, running.tokens["client"]) as channel:
            stub = jobs_pb2_grpc.JobServiceStub(channel)
            watch = stub.WatchJob(jobs_pb2.WatchJobRequest(id=job.id))
            log = stub.ReadLog(jobs_pb2.ReadLogRequest(id=job.id, follow=True))
            assert next(watch).job.id == job.id
            watch.cancel()
            log.cancel()
    gate.open()
    assert ended(running, job.id).state is JobState.SUCCEEDED
    assert running.controller.process is not None
    assert running.controller.process.poll() is None
