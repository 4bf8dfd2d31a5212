"""A controller that goes away and comes back on the same state directory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest

from ytk_controller.config import Config
from ytk_controller.jobs.model import Policy
from ytk_controller.jobs.upkeep import reap
from ytk_controller.server import serve
from ytk_controller.store.sqlite import DatabaseLockedError
from ytk_core.jobs import JobState
from ytk_core.rpc_errors import from_rpc_error
from ytk_core.workers import LeaseAction
from ytk_proto.v1 import jobs_pb2

from fakes.store_agents import WAIT_S, Peers, job_spec


async def test_leases_survive_a_restart_and_the_agent_goes_on(controllers) -> None:
    async with controllers() as peers:
        agent = peers.agent()
        await agent.connect()
        submitted = await peers.submit()
        waiting = await peers.submit(job_spec(2))
        given = await agent.take()
        await agent.start(given.lease)
        await agent.log(given.lease, 0, b"before\n")

    async with controllers() as peers:
        agent = peers.agent()
        welcome = await agent.connect(given.lease)
        assert [verdict.action for verdict in welcome.verdicts] == [LeaseAction.CONTINUE]
        assert await agent.log(given.lease, 7, b"after\n") == 13
        assert await agent.commit(given.lease, await peers.result(out=b"x")) == "SUCCEEDED"
        log = peers.client.jobs.ReadLog(jobs_pb2.ReadLogRequest(id=submitted.job.id, follow=True))
        assert b"".join([part.data async for part in log]) == b"before\nafter\n"
        job = await peers.job(submitted.job.id)
        assert (job.state, job.attempts) == (JobState.SUCCEEDED, 1)
        assert (await agent.take()).lease.job_id == waiting.job.id


async def test_a_lease_that_ran_out_while_the_controller_was_away_is_not_reaped_at_once(controllers) -> None:
    policy = Policy(lease_s=1.0, heartbeat_s=0.2, backoff_s=0.01)
    async with controllers(policy) as peers:
        agent = peers.agent()
        await agent.connect()
        await peers.submit()
        given = await agent.take()
        await agent.start(given.lease)
    await asyncio.sleep(1.1)  # longer than the lease, by the real clock of the daemon
    async with controllers() as peers:
        await peers.controller.desk.do(reap)
        welcome = await peers.agent().connect(given.lease)
        assert [verdict.action for verdict in welcome.verdicts] == [LeaseAction.CONTINUE]


async def test_a_commit_repeated_after_a_restart_gets_the_same_answer(controllers) -> None:
    async with controllers() as peers:
        agent = peers.agent()
        await agent.connect()
        await peers.submit()
        given = await agent.take()
        await agent.start(given.lease)
        result = await peers.result(out=b"x")
        await agent.commit(given.lease, result)
    async with controllers() as peers:
        assert await peers.agent().commit(given.lease, result) == "SUCCEEDED"


async def test_streams_are_ended_with_a_reason_when_the_controller_stops(controllers) -> None:
    async with controllers() as peers:
        agent = peers.agent()
        await agent.connect()
        submitted = await peers.submit()
        watch = aiter(peers.client.jobs.WatchJob(jobs_pb2.WatchJobRequest(id=submitted.job.id)))
        await anext(watch)
        peers.controller.desk.hub.close()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anext(watch)
        assert from_rpc_error(caught.value).code == "shutting_down"


async def test_a_bug_in_the_background_ends_the_daemon(tmp_path: Path, monkeypatch) -> None:
    async def broken(_self) -> float | None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("ytk_controller.live.dispatcher.Dispatcher.step", broken)
    config = Config(state_dir=tmp_path / "state", listen="127.0.0.1:0", tokens=())
    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(serve(config, asyncio.Event(), lambda _address: None), WAIT_S)
    assert caught.group_contains(RuntimeError, match="a bug")


async def test_a_second_controller_on_the_same_file_is_refused(controllers, peers: Peers) -> None:
    with pytest.raises(DatabaseLockedError, match=r"controller\.db"):
        async with controllers():
            pass
    await peers.client.jobs.ListJobs(jobs_pb2.ListJobsRequest(), timeout=WAIT_S)
