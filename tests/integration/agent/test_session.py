"""The session and the attempts against a controller that misbehaves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from ytk_core.agent.session import SessionPolicy
from ytk_core.errors import BoardError, FailureClass, ToolkitError, UserError, YtkError
from ytk_core.jobs import JobKind, JobResult, JobSpec
from ytk_core.workers import Drain, LeaseAction, LeaseVerdict

from fakes.controller import WAIT_S, FakeController
from fakes.handlers import Gate, Handler

SPEC = JobSpec(kind=JobKind.PLUGIN_BUILD, params={"a": 1})


async def echo(ctx: Any) -> JobResult:
    return JobResult(summary=ctx.spec.params)


async def test_a_job_runs_and_is_committed(fake: FakeController, start_agent: Any) -> None:
    job = fake.queue_job(SPEC)
    async with start_agent(Handler(echo)) as agent:
        assert (await job.committed()).summary == {"a": 1}
        await fake.until(lambda: len(fake.claims) == 2, "the slot is offered again")
        assert agent.ready.is_set()
    assert job.start_calls == 1
    assert fake.hellos[0].worker.worker_id == "w1"
    assert list((agent.state_dir / "work").iterdir()) == []


async def test_the_token_is_presented_and_a_wrong_one_ends_the_agent(start_agent: Any) -> None:
    async with FakeController(token="right") as fake:
        job = fake.queue_job(SPEC)
        async with start_agent(Handler(echo), address=fake.address, token="right"):
            await job.committed()
        async with start_agent(Handler(echo), address=fake.address, token="wrong") as agent:
            with pytest.raises(YtkError) as caught:
                await agent.ended()
        assert caught.value.code == "unauthenticated"


async def test_no_controller_at_start(start_agent: Any) -> None:
    fake = FakeController()
    address = await fake.reserve_port()
    with capture_logs() as logs:
        async with start_agent(Handler(echo), address=address) as agent:
            async with asyncio.timeout(WAIT_S):
                while sum(entry["event"] == "controller_unreachable" for entry in logs) < 3:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)  # a captured log has no event to wait for
            assert not agent.task.done()
            assert not agent.ready.is_set()
            async with fake:
                job = fake.queue_job(SPEC)
                await job.committed()
    said = next(entry for entry in logs if entry["event"] == "controller_unreachable")
    assert said["controller"] == address
    assert said["next_try_s"] >= 0
    assert "does not answer" in said["error"]
    assert said["hint"]


async def test_backoff_is_capped_and_begins_anew_after_a_success(start_agent: Any) -> None:
    fake = FakeController()
    address = await fake.reserve_port()
    policy = SessionPolicy(first_wait_s=0.01, longest_wait_s=0.04, silent_intervals=WAIT_S / 0.05)
    with capture_logs() as logs:

        def tries() -> list[dict[str, Any]]:
            return [dict(entry) for entry in logs if entry["event"] == "controller_unreachable"]

        async def wait_tries(count: int) -> None:
            async with asyncio.timeout(WAIT_S):
                while len(tries()) < count:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)  # a captured log has no event to wait for

        async with start_agent(Handler(echo), address=address, policy=policy) as agent:
            await wait_tries(8)
            await fake.start()
            await asyncio.wait_for(agent.ready.wait(), WAIT_S)
            await fake.until(lambda: len(fake.heartbeats) > 2, "a session that lasts")
            before = len(tries())
            await fake.stop()
            await wait_tries(before + 3)
    assert [entry["attempt"] for entry in tries()[:8]] == list(range(1, 9))
    assert all(0 <= entry["next_try_s"] <= 0.04 for entry in tries())
    assert len({entry["next_try_s"] for entry in tries()}) > 1, "jitter"
    assert [entry["attempt"] for entry in tries()[before : before + 3]] == [1, 2, 3]


async def test_a_controller_that_cuts_after_its_welcome_is_not_stormed(fake: FakeController, start_agent: Any) -> None:
    fake.heartbeat_s = 60.0
    fake.drop_after_welcome = 5
    with capture_logs() as logs:
        job = fake.queue_job(SPEC)
        async with start_agent(Handler(echo)):
            await job.committed()
    waits = [entry["attempt"] for entry in logs if entry["event"] == "controller_unreachable"]
    assert waits == [1, 2, 3, 4, 5]


async def test_a_lost_assignment_is_claimed_again(fake: FakeController, start_agent: Any) -> None:
    fake.lose_assignments = 2
    job = fake.queue_job(SPEC)
    async with start_agent(Handler(echo)):
        await job.committed()
    ids = [claim.claim_id for claim in fake.claims[:3]]
    assert ids[0] == ids[1]
    assert len({hello.session_id for hello in fake.hellos}) == 1
    assert job.fence == 1
    assert len(job.commits) == 1


async def test_an_assignment_that_comes_twice_runs_once(fake: FakeController, start_agent: Any) -> None:
    gate = Gate()
    job = fake.queue_job(SPEC)
    async with start_agent(gate, slots=2):
        await gate.entered.wait()
        assignment = next(iter(fake._given.values()))
        fake.push(assignment)  # type: ignore[arg-type]  # any message can be pushed
        beats = len(fake.heartbeats)
        await fake.until(lambda: len(fake.heartbeats) > beats + 1)
        gate.open.set()
        await job.committed()
    assert gate.most == 1


async def test_reconnect_announces_running_leases(fake: FakeController, start_agent: Any) -> None:
    gate = Gate()
    job = fake.queue_job(SPEC)
    async with start_agent(gate):
        await gate.entered.wait()
        fake.drop_streams()
        await fake.until(lambda: len(fake.hellos) == 2, "a second hello")
        assert fake.hellos[1].running == (job.lease,)
        assert fake.hellos[0].session_id == fake.hellos[1].session_id
        gate.open.set()
        await job.committed()
    assert gate.cancelled == 0


async def test_a_restarted_controller_gets_the_result(fake: FakeController, start_agent: Any) -> None:
    gate = Gate()
    job = fake.queue_job(SPEC)
    async with start_agent(gate) as agent:
        await gate.entered.wait()
        await fake.stop()
        gate.open.set()
        async with asyncio.timeout(WAIT_S):
            await gate.left.wait()
        assert not agent.task.done()
        await fake.start()
        await job.committed()
    assert len(job.commits) == 1


async def test_heartbeats_name_the_leases(fake: FakeController, start_agent: Any) -> None:
    gate = Gate()
    first, second = fake.queue_job(SPEC), fake.queue_job(SPEC)
    async with start_agent(gate, slots=2):
        await fake.until(lambda: any(len(beat.leases) == 2 for beat in fake.heartbeats), "both leases in a heartbeat")
        gate.open.set()
        await asyncio.gather(first.committed(), second.committed())
        beats = len(fake.heartbeats)
        await fake.until(lambda: len(fake.heartbeats) > beats + 2)
    assert fake.heartbeats[-1].leases == ()
    numbers = [beat.sequence for beat in fake.heartbeats]
    assert numbers == sorted(set(numbers))


async def test_a_silent_controller_is_left(fake: FakeController, start_agent: Any) -> None:
    fake.acknowledge = False
    async with start_agent(Handler(echo), policy=SessionPolicy(first_wait_s=0.02, longest_wait_s=0.1)):
        await fake.until(lambda: len(fake.hellos) >= 2, "a second stream")


async def test_a_controller_that_does_not_answer_hello(fake: FakeController, start_agent: Any) -> None:
    held = fake.hold("Connect")
    policy = SessionPolicy(first_wait_s=0.02, longest_wait_s=0.05, welcome_within_s=0.1)
    async with start_agent(Handler(echo), policy=policy):
        await fake.until(lambda: len(fake.hellos) >= 1, "hello on a second stream")
        held.set()


async def test_cancel_is_pushed(fake: FakeController, start_agent: Any) -> None:
    gate = Gate()
    job = fake.queue_job(SPEC)
    async with start_agent(gate):
        await gate.entered.wait()
        fake.cancel(job)
        assert await job.outcome() is None
    assert gate.cancelled == 1


async def test_cancel_is_learnt_from_a_heartbeat_and_from_hello(fake: FakeController, start_agent: Any) -> None:
    gate = Gate()
    first, second = fake.queue_job(SPEC), fake.queue_job(SPEC)
    async with start_agent(gate):
        await gate.entered.wait()
        fake.verdicts[first.lease] = LeaseAction.CANCEL  # nothing is pushed
        assert await first.outcome() is None
        await second.wait_started()
        fake.heartbeat_s = 60.0
        fake.verdicts[second.lease] = LeaseAction.CANCEL
        fake.drop_streams()
        assert await second.outcome() is None


async def test_a_job_cancelled_before_its_start(fake: FakeController, start_agent: Any) -> None:
    gate = Gate()
    held = fake.hold("StartJob")
    job = fake.queue_job(SPEC)
    async with start_agent(gate):
        await fake.until(lambda: "StartJob" in fake.calls)
        fake.cancel(job)
        held.set()
        assert await job.outcome() is None
    assert not gate.entered.is_set()


async def test_abandon_stops_silently(fake: FakeController, start_agent: Any) -> None:
    gate = Gate()
    lost, after = fake.queue_job(SPEC), fake.queue_job(SPEC)
    async with start_agent(gate):
        await gate.entered.wait()
        fake.push(LeaseVerdict(lease=lost.lease, action=LeaseAction.ABANDON))
        await after.wait_started()
        gate.open.set()
        await after.committed()
    assert lost.commits == []
    assert gate.cancelled == 1


async def test_a_stale_lease_is_dropped_at_start_and_at_commit(fake: FakeController, start_agent: Any) -> None:
    stale = UserError("not yours", code="stale_lease")
    fake.fail("StartJob", stale)
    never, late, last = (fake.queue_job(SPEC) for _ in range(3))
    handler = Gate()
    handler.open.set()
    async with start_agent(handler):
        await late.wait_started()
        await late.committed()
        fake.fail("CommitJob", stale)
        other = fake.queue_job(SPEC)
        await fake.until(lambda: fake.calls.count("CommitJob") >= 3)
        await asyncio.gather(*(each.committed() for each in (last, other) if each.commits))
    assert never.commits == []


@pytest.mark.parametrize("method", ["StartJob", "CommitJob"])
async def test_a_lost_answer_is_asked_for_again(fake: FakeController, start_agent: Any, method: str) -> None:
    fake.lose(method, times=2)
    runs = 0

    async def count(ctx: Any) -> JobResult:
        nonlocal runs
        runs += 1
        return JobResult(summary={"run": runs})

    job = fake.queue_job(SPEC)
    async with start_agent(Handler(count)):
        await fake.until(lambda: fake.calls.count(method) == 3, "the third call")
        await job.committed()
    assert runs == 1
    assert {repr(commit) for commit in job.commits} == {repr(job.commits[0])}


ERRORS = [
    (UserError("rank 5", code="rank", hint="h"), FailureClass.YOURS, "rank"),
    (BoardError("gone"), FailureClass.BOARDS, "infrastructure"),
    (ToolkitError("bug"), FailureClass.OURS, "internal"),
    (KeyError("x"), FailureClass.OURS, "internal"),
]


@pytest.mark.parametrize(("error", "cls", "code"), ERRORS)
async def test_errors_become_failures(
    fake: FakeController, start_agent: Any, error: Exception, cls: FailureClass, code: str
) -> None:
    async def fail(_ctx: Any) -> JobResult:
        raise error

    job = fake.queue_job(SPEC)
    async with start_agent(Handler(fail)):
        failure = await job.failed()
    assert (failure.failure_class, failure.code) == (cls, code)


async def test_a_handler_that_gives_no_result(fake: FakeController, start_agent: Any) -> None:
    async def nothing(_ctx: Any) -> Any:
        return None

    job = fake.queue_job(SPEC)
    async with start_agent(Handler(nothing)):
        assert (await job.failed()).code == "bad_result"


async def test_a_result_that_the_controller_refuses_becomes_a_failure(fake: FakeController, start_agent: Any) -> None:
    fake.fail("CommitJob", UserError("outputs are gone", code="output_missing"))
    job = fake.queue_job(SPEC)
    async with start_agent(Handler(echo)):
        assert (await job.failed()).code == "output_missing"


async def test_the_wall_limit(fake: FakeController, start_agent: Any) -> None:
    gate = Gate()
    job = fake.queue_job(JobSpec(kind=JobKind.PLUGIN_BUILD, wall_limit_s=0.1))
    async with start_agent(gate):
        failure = await job.failed()
    assert (failure.failure_class, failure.code) == (FailureClass.YOURS, "wall_limit")
    assert gate.cancelled == 1


async def test_unknown_parameters_version(fake: FakeController, start_agent: Any) -> None:
    job = fake.queue_job(JobSpec(kind=JobKind.PLUGIN_BUILD, schema_version=99))
    async with start_agent(Handler(echo)):
        assert (await job.failed()).code == "schema_version"


async def test_drain_finishes_what_runs(fake: FakeController, start_agent: Any) -> None:
    gate = Gate()
    running, waiting = fake.queue_job(SPEC), fake.queue_job(SPEC)
    async with start_agent(gate) as agent:
        await gate.entered.wait()
        agent.runtime.drain()
        beats = len(fake.heartbeats)
        await fake.until(lambda: len(fake.heartbeats) > beats + 2, "heartbeats go on while draining")
        assert not agent.task.done()
        gate.open.set()
        await running.committed()
        await agent.ended()
    assert waiting.fence == 0


async def test_an_idle_agent_drains_at_once_also_without_a_controller(start_agent: Any) -> None:
    fake = FakeController()
    async with start_agent(Handler(echo), address=await fake.reserve_port()) as agent:
        agent.runtime.drain()
        await agent.ended()


async def test_a_drained_worker_claims_again_after_a_new_welcome(fake: FakeController, start_agent: Any) -> None:
    gate = Gate()
    first = fake.queue_job(SPEC)
    async with start_agent(gate):
        await gate.entered.wait()
        fake.push(Drain(reason="update"))
        gate.open.set()
        await first.committed()
        second = fake.queue_job(SPEC)
        beats = len(fake.heartbeats)
        await fake.until(lambda: len(fake.heartbeats) > beats + 2)
        assert len(fake.claims) == 1
        fake.drop_streams()  # as a controller does on resume
        await second.committed()


async def test_a_job_that_comes_after_its_slot_closed_is_handed_back(fake: FakeController, start_agent: Any) -> None:
    gate = Gate()
    running = fake.queue_job(SPEC)
    async with start_agent(gate, slots=2) as agent:
        await gate.entered.wait()
        await fake.until(lambda: len(fake.claims) == 2)
        agent.runtime.drain()
        beats = len(fake.heartbeats)
        await fake.until(lambda: len(fake.heartbeats) > beats + 1)
        late = fake.queue_job(SPEC)  # the fake does not know that the claim is void
        failure = await late.failed()
        assert (failure.failure_class, failure.code) == (FailureClass.BOARDS, "draining")
        gate.open.set()
        await running.committed()
        await agent.ended()


async def test_a_replaced_session_ends_the_agent_and_its_work(fake: FakeController, start_agent: Any) -> None:
    gate = Gate()
    fake.queue_job(SPEC)
    async with start_agent(gate) as agent:
        await gate.entered.wait()
        fake.drop_streams(BoardError("another one came", code="session_replaced"))
        with pytest.raises(Exception, match="another one came"):
            await agent.ended()
    assert gate.cancelled == 1


async def test_cancelling_the_runtime_stops_at_once(fake: FakeController, start_agent: Any) -> None:
    gate = Gate()
    job = fake.queue_job(SPEC)
    async with start_agent(gate) as agent:
        await gate.entered.wait()
        agent.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await agent.task
    assert gate.cancelled == 1
    assert job.commits == []
    assert list((agent.state_dir / "work").iterdir()) == []


async def test_leftovers_of_a_killed_predecessor_are_removed(
    fake: FakeController, start_agent: Any, tmp_path: Any
) -> None:
    left = tmp_path / "w1" / "work" / "job-0-1"
    left.mkdir(parents=True)
    (left / "big").write_bytes(b"x")
    left.chmod(0o500)
    job = fake.queue_job(SPEC)
    async with start_agent(Handler(echo)):
        await job.committed()
    assert not left.exists()
