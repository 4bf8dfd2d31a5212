"""The running side without a wire: dispatcher and reaper step by step on an injected clock, hub, interceptors."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from ytk_controller.interceptors.around import CallInfo
from ytk_controller.interceptors.deadline import DeadlineInterceptor
from ytk_controller.interceptors.request_log import REQUEST_ID, RequestLogInterceptor
from ytk_controller.jobs import working
from ytk_controller.jobs.model import JobRecord, Policy
from ytk_controller.jobs.submitting import SubmitRequest, submit
from ytk_controller.jobs.turn import Rules
from ytk_controller.live.desk import Desk
from ytk_controller.live.dispatcher import Dispatcher
from ytk_controller.live.hub import Hub, ShuttingDownError
from ytk_controller.live.reaper import Reaper
from ytk_controller.live.sessions import Session
from ytk_controller.store.memory import MemoryStore
from ytk_core.errors import BoardError, FailureClass
from ytk_core.jobs import Failure, JobSpec, JobState
from ytk_core.workers import Assignment, Hello

from fakes.store_agents import job_spec, worker

POLICY = Policy(lease_s=30, heartbeat_s=5, backoff_s=4, worker_memory_s=100)


class World:
    """A desk on an injected clock, and one connected worker."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.desk = Desk(MemoryStore(lambda: self.now), Rules(policy=POLICY, toolchain="test"))
        self.dispatcher = Dispatcher(self.desk)
        self.reaper = Reaper(self.desk)

    async def connect(self, worker_id: str = "w1", **facts) -> Session:
        hello = Hello(worker=worker(worker_id, **facts), session_id=f"{worker_id}-s")
        await self.desk.do(lambda turn: working.hello(turn, hello))
        session = Session(hello, resumed=False)
        self.desk.sessions.put(session)
        return session

    async def submit(self, spec: JobSpec | None = None) -> JobRecord:
        request = SubmitRequest(spec=spec or job_spec(), principal="me")
        return (await self.desk.do(lambda turn: submit(turn, request))).job

    async def job(self, job_id: str) -> JobRecord:
        return await self.desk.do(lambda turn: turn.job(job_id))


@pytest.fixture
def world() -> World:
    return World()


async def test_a_step_gives_a_job_to_a_claim_and_says_when_to_come_again(world: World) -> None:
    session = await world.connect()
    assert await world.dispatcher.step() is None  # nobody asks
    session.claim("c1")
    job = await world.submit()
    assert world.desk.wake.is_set()
    assert await world.dispatcher.step() is None
    message = await anext(session.messages())
    assert message == Assignment(claim_id="c1", lease=(await world.job(job.id)).lease, spec=job.spec)

    failure = Failure(failure_class=FailureClass.BOARDS, code="x", message="x")
    await world.desk.do(lambda turn: working.commit(turn, "w1", message.lease, failure))
    session.claim("c2")
    assert await world.dispatcher.step() == pytest.approx(4.0)
    world.now += 4.0
    await world.dispatcher.step()
    assert (await world.job(job.id)).fence == 2


async def test_the_reaper_takes_a_lease_when_its_time_is_over_and_not_before(world: World) -> None:
    session = await world.connect()
    session.claim("c1")
    job = await world.submit()
    await world.dispatcher.step()
    world.now += 29.9
    await world.reaper.step()
    assert (await world.job(job.id)).state is JobState.LEASED
    world.now += 0.2
    world.desk.wake.clear()
    await world.reaper.step()
    assert (await world.job(job.id)).state is JobState.QUEUED
    assert world.desk.wake.is_set()


async def test_a_controller_that_slept_itself_blames_no_agent(world: World) -> None:
    session = await world.connect()
    session.claim("c1")
    job = await world.submit()
    await world.dispatcher.step()
    # It wakes an hour later than it planned, on a clock that went on: a laptop was closed, a virtual machine was paused.
    clock = iter([1000.0, 4600.0, 4600.0])
    reaper = Reaper(world.desk, lambda: next(clock))
    reaper._interval_s = 0.0
    stepped = reaper.step

    async def once() -> None:
        await stepped()
        raise StopAsyncIteration

    reaper.step = once
    world.now += 3600
    with pytest.raises(StopAsyncIteration):
        await reaper.run()
    assert (await world.job(job.id)).state is JobState.LEASED
    world.now += 30.1  # from here on its silence counts again
    await stepped()
    assert (await world.job(job.id)).state is JobState.QUEUED


async def test_what_was_slept_through_is_accounted_for_although_the_database_was_away(world: World) -> None:
    clock = iter([1000.0, 4600.0, 4600.0])
    reaper = Reaper(world.desk, lambda: next(clock))
    reaper._interval_s = 0.0
    asked: list[float] = []

    async def account(late_s: float) -> None:
        asked.append(late_s)
        if len(asked) == 1:
            raise BoardError("the database is away", code="database")

    async def once() -> None:
        raise StopAsyncIteration

    reaper.account_for, reaper.step = account, once
    with pytest.raises(StopAsyncIteration):
        await reaper.run()
    assert asked == [3600.0, 3600.0]


async def test_a_job_whose_workers_stay_away_is_given_up(world: World) -> None:
    await world.connect()
    job = await world.submit()
    world.now += 99.0
    for _ in range(10):
        await world.reaper.step()
    assert (await world.job(job.id)).state is JobState.QUEUED
    world.now += 2.0
    for _ in range(10):
        await world.reaper.step()
    ended = await world.job(job.id)
    assert ended.state is JobState.FAILED
    assert ended.failure is not None
    assert (ended.failure.code, ended.failure.failure_class) == ("unsatisfiable", FailureClass.BOARDS)


async def test_a_worker_that_is_gone_does_not_keep_a_retry_from_the_only_one_left(world: World) -> None:
    one, _ = await world.connect("w1"), await world.connect("w2")
    one.claim("c1")
    job = await world.submit()
    await world.dispatcher.step()
    failure = Failure(failure_class=FailureClass.BOARDS, code="x", message="x")
    lease = (await world.job(job.id)).lease
    await world.desk.do(lambda turn: working.commit(turn, "w1", lease, failure))
    world.now += 10
    one.claim("c2")
    await world.dispatcher.step()
    assert (await world.job(job.id)).state is JobState.QUEUED  # w2 is there, only busy
    world.now += 31  # w2 was not heard of for a lease's time
    await world.desk.do(lambda turn: working.heartbeat(turn, "w1", "w1-s", ()))
    await world.dispatcher.step()
    assert (await world.job(job.id)).worker_id == "w1"


async def test_the_dispatcher_outlives_a_database_that_fails_but_not_a_bug(world: World, monkeypatch) -> None:
    failures = [BoardError("disk full", code="database"), RuntimeError("a bug")]

    async def step() -> float | None:
        raise failures.pop(0)

    monkeypatch.setattr("ytk_controller.live.dispatcher._AFTER_FAILURE_S", 0.0)
    monkeypatch.setattr(world.dispatcher, "step", step)
    with pytest.raises(RuntimeError, match="a bug"):
        await asyncio.wait_for(world.dispatcher.run(), 60)
    assert failures == []


async def test_a_slow_watcher_misses_progress_but_not_the_end() -> None:
    hub = Hub()
    job = JobRecord(id="j", spec=job_spec(), cache_key="", state=JobState.RUNNING)
    with hub.subscribe("j") as subscription:
        for number in range(1000):
            hub.publish(JobRecord(id="j", spec=job.spec, cache_key="", state=JobState.RUNNING, progress=number))
        hub.publish(JobRecord(id="other", spec=job.spec, cache_key="", state=JobState.FAILED))
        hub.publish(JobRecord(id="j", spec=job.spec, cache_key="", state=JobState.FAILED))
        news = await subscription.wait(None)
        assert len(news) == 256
        assert news[-1].state is JobState.FAILED
        assert await subscription.wait(0.001) == []
        hub.close()
        with pytest.raises(ShuttingDownError):
            await subscription.wait(None)
    hub.publish(job)  # nobody listens any more


class FakeContext:
    """What the interceptors ask of a call."""

    def __init__(self, remaining: float | None = None) -> None:
        self.remaining = remaining

    def time_remaining(self) -> float | None:
        return self.remaining

    def peer(self) -> str:
        return "test"

    def details(self) -> str:
        return ""


def call(**fields) -> CallInfo:
    defaults = {"method": "/p.S/M", "metadata": {}, "response_streaming": False, "request_streaming": False}
    return CallInfo(**(defaults | fields))


@pytest.mark.parametrize("remaining", [None, 0.01])
async def test_a_unary_call_ends_at_its_deadline_or_ours(remaining: float | None) -> None:
    interceptor = DeadlineInterceptor(limit_s=0.01 if remaining is None else 60)
    with pytest.raises(BoardError, match="M took longer") as caught:
        async with interceptor.around(call(), FakeContext(remaining)):
            await asyncio.Event().wait()
    assert caught.value.code == "deadline"


async def test_a_stream_has_no_deadline_of_ours() -> None:
    async with DeadlineInterceptor(limit_s=0.001).around(call(response_streaming=True), FakeContext()):
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("given", "kept"), [("abc-1", True), ("", False), ("line\nbreak", False), ("x" * 65, False), (b"bytes", False)]
)
async def test_a_request_id_is_kept_only_where_it_can_do_no_harm(given, kept: bool) -> None:
    async with RequestLogInterceptor().around(call(metadata={"ytk-request-id": given}), FakeContext()):
        assert (REQUEST_ID.get() == given) == kept
        assert REQUEST_ID.get()


def test_the_table_of_statuses_knows_every_code_of_the_controller() -> None:
    import re
    from pathlib import Path

    import ytk_controller
    from ytk_core.rpc_errors import STATUS_OF_CODE

    root = Path(ytk_controller.__file__).parent
    sources = [path.read_text() for path in root.rglob("*.py")]
    codes = {code for text in sources for code in re.findall(r'\bcode="([a-z_]+)"|default_code = "([a-z_]+)"', text)}
    used = {one or other for one, other in codes}
    # What a daemon says before it serves, and codes of failures of jobs; none of them is a status of a call.
    elsewhere = {"state_dir", "database_locked", "database_url", "address", "bad_token"}
    failures = {"cancelled", "worker_stopped", "poisoned", "worker_lost"}
    by_class = {"database", "disk", "object_store"}  # BoardError: UNAVAILABLE by its class
    assert used - elsewhere - failures - by_class <= set(STATUS_OF_CODE)
    assert grpc.StatusCode.OK not in STATUS_OF_CODE.values()
