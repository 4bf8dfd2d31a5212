"""Jobs from submit to result through real gRPC."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from ytk_core import convert
from ytk_core.errors import FailureClass, YtkError
from ytk_core.jobs import Failure, JobKind, JobState
from ytk_core.rpc_errors import from_rpc_error
from ytk_core.workers import LeaseAction, LeaseVerdict
from ytk_proto.v1 import agents_pb2, fleet_pb2, jobs_pb2

from fakes.store_agents import WAIT_S, Peers, job_spec

BOARD_FAILED = Failure(failure_class=FailureClass.BOARDS, code="no_power", message="The board went dark.")


async def refusal(call) -> YtkError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return from_rpc_error(caught.value)


async def test_a_job_runs_and_its_watcher_sees_every_state(peers: Peers) -> None:
    agent = peers.agent()
    await agent.connect()
    submitted = await peers.submit()
    watch = aiter(peers.client.jobs.WatchJob(jobs_pb2.WatchJobRequest(id=submitted.job.id)))
    first = await anext(watch)
    assert first.job.state == convert.job_state_to_pb(JobState.QUEUED)

    given = await agent.take()
    assert given.lease.job_id == submitted.job.id
    assert given.lease.fence == 1
    assert await agent.start(given.lease)
    await agent.progress(given.lease, 0.5, "linking")
    result = await peers.result(plugin=b"\x7fELF")
    assert await agent.commit(given.lease, result) == "SUCCEEDED"

    async with asyncio.timeout(WAIT_S):
        seen = [convert.job_from_pb(update.job) async for update in watch]
    assert [job.state for job in seen] == ["LEASED", "RUNNING", "RUNNING", "SUCCEEDED"]
    assert (seen[2].progress, seen[2].progress_note) == (0.5, "linking")
    assert seen[-1].result == result
    assert seen[-1].worker_id == "w1"


async def test_a_job_submitted_before_any_claim_and_after_it_are_both_given(peers: Peers) -> None:
    agent = peers.agent(slots=2)
    await agent.connect()
    waiting = await agent.claim()
    submitted = await peers.submit()
    given = await agent.receive()
    assert given.claim_id == waiting
    assert given.lease.job_id == submitted.job.id


async def test_a_repeated_claim_gives_the_same_job(peers: Peers) -> None:
    agent = peers.agent(slots=4)
    await agent.connect()
    first = await peers.submit(job_spec(1))
    await peers.submit(job_spec(2))
    claim = await agent.claim()
    given = await agent.receive()
    await agent.claim(claim)
    assert await agent.receive() == given
    assert given.lease.job_id == first.job.id


async def test_a_claim_repeated_after_a_reconnect_gives_the_job_whose_assignment_was_lost(peers: Peers) -> None:
    agent = peers.agent()
    await agent.connect()
    submitted = await peers.submit()
    claim = await agent.claim()
    given = await agent.receive()
    await agent.disconnect()  # as if the assignment had not arrived
    await agent.connect()
    await agent.claim(claim)
    assert await agent.receive() == given
    assert (await peers.job(submitted.job.id)).attempts == 1


async def test_equal_jobs_are_joined_and_one_cancel_only_detaches(peers: Peers) -> None:
    agent = peers.agent()
    await agent.connect()
    one = await peers.submit()
    two = await peers.submit()
    assert two.joined
    assert not one.joined
    assert two.job.id == one.job.id
    assert two.job.submitters == 2

    given = await agent.take()
    await agent.start(given.lease)
    cancel = jobs_pb2.CancelJobRequest(id=one.job.id, submission_id=one.submission_id)
    answer = await peers.client.jobs.CancelJob(cancel, timeout=WAIT_S)
    assert convert.job_from_pb(answer.job).state is JobState.RUNNING
    assert answer.job.submitters == 1
    await agent.receive_nothing()
    assert await agent.commit(given.lease, await peers.result(out=b"1")) == "SUCCEEDED"


async def test_the_last_submitters_cancel_reaches_the_agent_at_once(peers: Peers) -> None:
    agent = peers.agent()
    await agent.connect()
    submitted = await peers.submit()
    given = await agent.take()
    await agent.start(given.lease)
    await peers.client.jobs.CancelJob(jobs_pb2.CancelJobRequest(id=submitted.job.id), timeout=WAIT_S)
    assert await agent.receive() == LeaseVerdict(lease=given.lease, action=LeaseAction.CANCEL)
    assert (await agent.heartbeat(given.lease)).verdicts[0].action is LeaseAction.CANCEL
    assert await agent.commit(given.lease, None) == "CANCELLED"
    job = await peers.job(submitted.job.id)
    assert job.failure is not None
    assert job.failure.code == "cancelled"


async def test_an_idempotency_key_makes_one_submission(peers: Peers) -> None:
    await peers.agent().connect()
    one = await peers.submit(key="k")
    two = await peers.submit(key="k")
    assert (one.job.id, one.submission_id, one.joined) == (two.job.id, two.submission_id, two.joined)
    assert two.job.submitters == 1
    err = await refusal(peers.submit(job_spec(7), key="k"))
    assert err.code == "idempotency_conflict"


async def test_an_equal_job_is_answered_from_the_cache_unless_its_outputs_are_gone(peers: Peers, tmp_path) -> None:
    agent = peers.agent()
    await agent.connect()
    await peers.submit()
    given = await agent.take()
    await agent.start(given.lease)
    result = await peers.result(out=b"cached")
    await agent.commit(given.lease, result)

    again = await peers.submit()
    assert again.job.from_cache
    assert convert.job_from_pb(again.job).result == result
    assert (await peers.submit(job_spec(no_cache=True))).job.state == convert.job_state_to_pb(JobState.QUEUED)

    name = result.outputs[0].digest.partition(":")[2]
    (tmp_path / "state" / "artifacts" / name[:2] / name).unlink()
    assert not (await peers.submit()).job.from_cache


async def test_a_stale_commit_is_refused_and_the_winners_repeat_is_not(peers: Peers) -> None:
    first = peers.agent("w1")
    await first.connect()
    submitted = await peers.submit()
    old = await first.take()
    await first.start(old.lease)
    newer = peers.agent("w1", session_id="w1-s2")  # the agent's process died and came back without the job
    await newer.connect()
    second = peers.agent("w2")
    await second.connect()
    given = await second.take()
    assert given.lease.fence == old.lease.fence + 1
    await second.start(given.lease)

    result = await peers.result(out=b"result")
    err = await refusal(first.commit(old.lease, result))
    assert err.code == "stale_lease"
    assert await second.commit(given.lease, result) == "SUCCEEDED"
    assert await second.commit(given.lease, result) == "SUCCEEDED"
    assert (await refusal(second.commit(given.lease, BOARD_FAILED))).code == "stale_lease"
    assert (await peers.job(submitted.job.id)).attempts == 2


async def test_a_result_without_its_outputs_is_refused_and_can_be_committed_later(peers: Peers) -> None:
    agent = peers.agent()
    await agent.connect()
    await peers.submit()
    given = await agent.take()
    await agent.start(given.lease)
    result = await peers.result(out=b"there")
    absent = result.outputs[0].__class__(name="absent", digest="blake3:" + "0" * 64, size_bytes=1)
    broken = result.__class__(outputs=(*result.outputs, absent))
    err = await refusal(agent.commit(given.lease, broken))
    assert err.code == "output_missing"
    assert "absent" in err.message
    assert await agent.commit(given.lease, result) == "SUCCEEDED"


async def test_a_boards_failure_is_tried_elsewhere(controllers) -> None:
    from ytk_controller.jobs.model import Policy

    async with controllers(Policy(lease_s=30, heartbeat_s=5, backoff_s=0.01)) as peers:
        first, second = peers.agent("w1"), peers.agent("w2")
        await first.connect()
        submitted = await peers.submit()
        given = await first.take()
        await second.connect()
        assert await first.commit(given.lease, BOARD_FAILED) == "QUEUED"
        await first.claim()
        again = await second.take()
        assert again.lease.job_id == submitted.job.id
        await first.receive_nothing()


async def test_cancelling_a_parent_cancels_its_children(peers: Peers) -> None:
    generator = peers.agent("gen", kinds=(JobKind.KERNEL_GENERATE,), role="gaia")
    evaluator = peers.agent("eval", kinds=(JobKind.KERNEL_EVALUATE,), role="gaia", device_uid="cpu0")
    await generator.connect()
    await evaluator.connect()
    parent = await peers.submit(job_spec(kind=JobKind.KERNEL_GENERATE))
    held = await generator.take()
    await generator.start(held.lease)
    spec = job_spec(kind=JobKind.KERNEL_EVALUATE, measuring=True)
    running = await peers.submit(spec, stubs=peers.agent_stubs, parent=held.lease)
    waiting = await peers.submit(job_spec(2, kind=JobKind.KERNEL_EVALUATE), stubs=peers.agent_stubs, parent=held.lease)
    assert running.job.parent_id == parent.job.id
    child = await evaluator.take()
    await evaluator.start(child.lease)

    await peers.client.jobs.CancelJob(jobs_pb2.CancelJobRequest(id=parent.job.id), timeout=WAIT_S)
    assert await evaluator.receive() == LeaseVerdict(lease=child.lease, action=LeaseAction.CANCEL)
    assert (await peers.job(waiting.job.id)).state is JobState.CANCELLED
    assert await evaluator.commit(child.lease, None) == "CANCELLED"
    listed = await peers.client.jobs.ListJobs(jobs_pb2.ListJobsRequest(parent_id=parent.job.id), timeout=WAIT_S)
    assert [job.id for job in listed.jobs] == [waiting.job.id, running.job.id]
    err = await refusal(peers.submit(job_spec(3, kind=JobKind.KERNEL_EVALUATE), parent=held.lease))
    assert err.code == "stale_lease"


async def test_what_nobody_could_ever_do_is_said_at_submit(peers: Peers) -> None:
    assert (await refusal(peers.submit())).code == "unsatisfiable"
    await peers.agent().connect()
    err = await refusal(peers.submit(job_spec(arch_spec="amd64-cpuv4-linux-glibc236-ov20264")))
    assert err.code == "unsatisfiable"
    assert "amd64-cpuv3-linux-glibc236-ov20264" in err.message
    assert "device" in err.message


async def test_a_log_is_followed_until_the_job_is_over(peers: Peers) -> None:
    agent = peers.agent()
    await agent.connect()
    submitted = await peers.submit()
    follow = aiter(peers.client.jobs.ReadLog(jobs_pb2.ReadLogRequest(id=submitted.job.id, follow=True)))
    given = await agent.take()
    await agent.start(given.lease)
    assert await agent.log(given.lease, 0, b"one\n") == 4
    assert (await anext(follow)).data == b"one\n"
    assert await agent.log(given.lease, 0, b"one\ntwo\n") == 8  # repeated, with more behind it
    err = await refusal(agent.log(given.lease, 100, b"far"))
    assert (err.code, err.offset) == ("log_gap", 8)
    await agent.commit(given.lease, await peers.result(out=b"x"))
    async with asyncio.timeout(WAIT_S):
        rest = [(part.offset, part.data) async for part in follow]
    assert rest == [(4, b"two\n")]
    tail = peers.client.jobs.ReadLog(jobs_pb2.ReadLogRequest(id=submitted.job.id, offset=4))
    assert [part.data async for part in tail] == [b"two\n"]
    assert (await refusal(agent.log(given.lease, 8, b"late"))).code == "stale_lease"


async def test_silence_costs_the_lease(controllers) -> None:
    from ytk_controller.jobs.model import Policy

    async with controllers(Policy(lease_s=1.5, heartbeat_s=0.5, backoff_s=0.01)) as peers:
        silent, other = peers.agent("w1"), peers.agent("w2")
        await silent.connect()
        submitted = await peers.submit()
        given = await silent.take()
        watch = peers.client.jobs.WatchJob(jobs_pb2.WatchJobRequest(id=submitted.job.id))
        async with asyncio.timeout(WAIT_S):
            async for update in watch:
                if convert.job_from_pb(update.job).state is JobState.QUEUED and update.job.attempts == 1:
                    break
        await other.connect()
        again = await other.take()
        assert again.lease.fence == given.lease.fence + 1


async def test_a_job_that_loses_two_workers_is_poisoned(controllers) -> None:
    from ytk_controller.jobs.model import Policy

    async with controllers(Policy(lease_s=30, heartbeat_s=5, backoff_s=0.01)) as peers:
        await peers.agent("w1").connect()
        submitted = await peers.submit()
        for worker_id in ("w1", "w2"):
            agent = peers.agent(worker_id, session_id=f"{worker_id}-first")
            await agent.connect()
            await agent.take()
            await peers.agent(worker_id, session_id=f"{worker_id}-second").connect()
        job = await peers.job(submitted.job.id)
        assert job.state is JobState.POISONED
        assert job.failure is not None
        assert "w1, w2" in job.failure.message


async def test_workers_are_listed_drained_and_resumed(peers: Peers) -> None:
    agent = peers.agent()
    await agent.connect()
    await peers.submit()
    fleet = peers.client.fleet
    await fleet.DrainWorker(fleet_pb2.DrainWorkerRequest(worker_id="w1", reason="new fan"), timeout=WAIT_S)
    assert getattr(await agent.receive(), "reason", "") == "new fan"
    await agent.claim()
    await agent.receive_nothing()
    listed = await fleet.ListWorkers(fleet_pb2.ListWorkersRequest(role="forge"), timeout=WAIT_S)
    assert [convert.worker_from_pb(pb).state for pb in listed.workers] == ["DRAINING"]
    await fleet.DrainWorker(fleet_pb2.DrainWorkerRequest(worker_id="w1", resume=True), timeout=WAIT_S)
    await agent.connect()  # the controller ended the stream, so that the agent begins anew
    assert (await agent.take()).lease.fence == 1


async def test_an_older_session_of_the_same_worker_is_told_so(peers: Peers) -> None:
    one, two = peers.agent(session_id="s1"), peers.agent(session_id="s2")
    await one.connect()
    await two.connect()
    err = await refusal(one.receive())
    assert err.code == "session_replaced"


async def test_the_first_message_has_to_be_hello(peers: Peers) -> None:
    stream = peers.agent_stubs.agents.Connect()
    await stream.write(agents_pb2.ConnectRequest(claim=agents_pb2.Claim(claim_id="c")))
    assert (await refusal(stream.read())).code == "bad_message"
