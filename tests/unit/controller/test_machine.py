"""The job machine as tables: from a state, after an event, to a state with these commands."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from ytk_controller.jobs import machine as machine_module
from ytk_controller.jobs.events import (
    Adopted,
    CancelRequested,
    Claimed,
    Committed,
    ControllerReturned,
    Detached,
    EndChildren,
    Event,
    GivenUp,
    Joined,
    LeaseExpired,
    NotifyWatchers,
    ParentEnded,
    Progressed,
    RememberResult,
    Renewed,
    Started,
    TellWorker,
    WakeScheduler,
    WorkerLost,
)
from ytk_controller.jobs.machine import (
    TRANSITIONS,
    InvalidTransitionError,
    JobMachine,
    StaleLeaseError,
    answered_from_cache,
    queued,
)
from ytk_controller.jobs.model import Policy, Submission
from ytk_core.errors import FailureClass
from ytk_core.jobs import Failure, JobKind, JobResult, JobSpec, JobState
from ytk_core.workers import LeaseAction

S = JobState
POLICY = Policy(lease_s=30, backoff_s=2, backoff_cap_s=10, max_attempts=3)
OK = JobResult(summary={"ms": 1})
AT = {"cause_id": "test"}


def failure(cls: FailureClass) -> Failure:
    return Failure(failure_class=cls, code="c", message="m")


def claimed(worker: str = "w1", now: float = 100.0) -> Claimed:
    return Claimed(now=now, worker_id=worker, session_id=f"{worker}-s", claim_id="c", device_uid="d", **AT)


def started(fence: int = 1, worker: str = "w1") -> Started:
    return Started(now=101.0, worker_id=worker, fence=fence, **AT)


def committed(outcome, fence: int = 1, worker: str = "w1", now: float = 110.0) -> Committed:
    return Committed(now=now, worker_id=worker, fence=fence, outcome=outcome, **AT)


CANCEL = CancelRequested(now=105.0, **AT)
EXPIRED = LeaseExpired(now=1000.0, **AT)
LEASED = (claimed(),)
RUNNING = (*LEASED, started())
CANCELLING = (*RUNNING, CANCEL)


def machine_after(*events: Event, submissions: int = 1, parent_id: str = "") -> JobMachine:
    first = Submission(id="s0", job_id="j", principal="p", parent_id=parent_id)
    job, _ = queued(
        job_id="j", spec=JobSpec(kind=JobKind.PLUGIN_BUILD), key="key", submission=first, now=100.0, cause_id="test"
    )
    machine = JobMachine(job, POLICY)
    for number in range(1, submissions):
        one = Submission(id=f"s{number}", job_id="j", principal="p")
        machine.handle(Joined(now=100.0, submission=one, priority=number, **AT))
    for event in events:
        machine.handle(event)
    return machine


ENDED = (NotifyWatchers, EndChildren, WakeScheduler)
REQUEUED = (NotifyWatchers, EndChildren, WakeScheduler)


@pytest.mark.parametrize(
    ("before", "event", "state", "commands"),
    [
        ((), claimed(), S.LEASED, (NotifyWatchers,)),
        ((), CANCEL, S.CANCELLED, ENDED),
        ((), EXPIRED, S.QUEUED, ()),
        ((), GivenUp(now=1.0, failure=failure(FailureClass.BOARDS), **AT), S.FAILED, ENDED),
        (LEASED, started(), S.RUNNING, (NotifyWatchers,)),
        (LEASED, committed(failure(FailureClass.BOARDS)), S.QUEUED, REQUEUED),
        (LEASED, committed(failure(FailureClass.YOURS)), S.FAILED, ENDED),
        (LEASED, CANCEL, S.CANCELLING, (NotifyWatchers, TellWorker, EndChildren)),
        (LEASED, EXPIRED, S.QUEUED, REQUEUED),
        (RUNNING, started(), S.RUNNING, ()),
        (RUNNING, committed(OK), S.SUCCEEDED, (*ENDED, RememberResult)),
        (RUNNING, committed(failure(FailureClass.YOURS)), S.FAILED, ENDED),
        (RUNNING, committed(failure(FailureClass.CANDIDATES)), S.FAILED, ENDED),
        (RUNNING, committed(failure(FailureClass.OURS)), S.FAILED, ENDED),
        (RUNNING, committed(failure(FailureClass.BOARDS)), S.QUEUED, REQUEUED),
        (RUNNING, committed(None), S.QUEUED, REQUEUED),  # it stopped, and nobody had told it to
        (RUNNING, LeaseExpired(now=102.0, **AT), S.RUNNING, ()),
        (RUNNING, EXPIRED, S.QUEUED, REQUEUED),
        (RUNNING, WorkerLost(now=102.0, worker_id="w1", **AT), S.QUEUED, REQUEUED),
        (RUNNING, WorkerLost(now=102.0, worker_id="w2", **AT), S.RUNNING, ()),
        (RUNNING, Progressed(now=102.0, fence=1, fraction=7.0, note="x", **AT), S.RUNNING, (NotifyWatchers,)),
        (CANCELLING, started(), S.CANCELLING, ()),
        (CANCELLING, CANCEL, S.CANCELLING, ()),
        (CANCELLING, committed(None), S.CANCELLED, ENDED),
        (CANCELLING, committed(OK), S.CANCELLED, ENDED),
        (CANCELLING, committed(failure(FailureClass.BOARDS)), S.CANCELLED, ENDED),
        (CANCELLING, EXPIRED, S.CANCELLED, ENDED),
        ((*RUNNING, committed(OK)), CANCEL, S.SUCCEEDED, ()),
        ((*RUNNING, committed(OK)), EXPIRED, S.SUCCEEDED, ()),
        ((*RUNNING, committed(OK)), committed(OK), S.SUCCEEDED, ()),
        ((*CANCELLING, committed(None)), CANCEL, S.CANCELLED, ()),
        ((*RUNNING, committed(None)), committed(None), S.QUEUED, ()),
    ],
)
def test_transition(before, event, state, commands) -> None:
    machine = machine_after(*before)
    given = machine.handle(event)
    assert machine.job.state is state
    assert tuple(type(command) for command in given) == commands
    assert machine.job.open == (state in {S.LEASED, S.RUNNING, S.CANCELLING})
    if not machine.job.open:
        assert machine.job.device_uid == ""


@pytest.mark.parametrize(
    ("before", "event"),
    [
        ((), started()),
        ((), committed(OK)),
        (LEASED, started(fence=2)),
        (LEASED, started(worker="w2")),
        (RUNNING, committed(OK, fence=0)),
        (RUNNING, committed(OK, worker="w2")),
        (RUNNING, Renewed(now=1.0, worker_id="w1", fence=2, **AT)),
        (RUNNING, Adopted(now=1.0, worker_id="w2", session_id="s", fence=1, **AT)),
        (RUNNING, Progressed(now=1.0, fence=2, fraction=0.1, note="", **AT)),
        ((*RUNNING, committed(OK)), committed(failure(FailureClass.YOURS))),
        ((*RUNNING, committed(OK)), committed(OK, worker="w2")),
        ((*RUNNING, EXPIRED), committed(OK)),
        ((*RUNNING, EXPIRED, claimed("w2", 2000.0)), committed(OK)),
    ],
)
def test_a_stale_lease_changes_nothing(before, event) -> None:
    machine = machine_after(*before)
    job = machine.job
    with pytest.raises(StaleLeaseError, match="does not hold job j"):
        machine.handle(event)
    assert machine.job == job


def test_what_is_not_in_the_table_is_refused_with_the_history() -> None:
    machine = machine_after(*LEASED)
    with pytest.raises(InvalidTransitionError, match=r"LEASED -> SUCCEEDED.*QUEUED\(test\) -> LEASED\(test\)"):
        machine.handle(committed(OK))
    with pytest.raises(InvalidTransitionError):
        machine_after(*LEASED).handle(claimed("w2"))
    one = Submission(id="s9", job_id="j", principal="p")
    with pytest.raises(InvalidTransitionError, match="join in CANCELLING"):
        machine_after(*CANCELLING).handle(Joined(now=1.0, submission=one, priority=0, **AT))


def test_the_table_lists_every_state_and_terminal_ones_lead_nowhere() -> None:
    assert set(TRANSITIONS) == set(S)
    assert {state for state, following in TRANSITIONS.items() if not following} == {s for s in S if s.terminal}


def test_the_fence_grows_with_each_claim() -> None:
    machine = machine_after(*RUNNING, EXPIRED, claimed("w2", 2000.0))
    assert (machine.job.fence, machine.job.attempts) == (2, 2)


def test_two_distinct_workers_poison_but_not_one_that_is_lost_twice() -> None:
    machine = machine_after(*RUNNING, EXPIRED, claimed("w1", 2000.0), LeaseExpired(now=3000.0, **AT))
    assert machine.job.state is S.QUEUED
    assert machine.job.lost_workers == ("w1",)
    machine.handle(claimed("w2", 4000.0))
    machine.handle(LeaseExpired(now=5000.0, **AT))
    assert machine.job.state is S.POISONED
    assert machine.job.failure is not None
    assert "w1, w2" in machine.job.failure.message


def test_the_last_attempt_is_not_followed_by_another() -> None:
    machine = machine_after()
    for attempt in range(POLICY.max_attempts):
        machine.handle(claimed(now=1000.0 * attempt + 200))
        machine.handle(committed(failure(FailureClass.BOARDS), fence=attempt + 1, now=1000.0 * attempt + 201))
    assert machine.job.state is S.FAILED
    assert machine.job.failure == failure(FailureClass.BOARDS)
    lost = machine_after()
    for attempt in range(POLICY.max_attempts):
        lost.handle(claimed(now=1000.0 * attempt + 200))
        lost.handle(LeaseExpired(now=1000.0 * attempt + 900, **AT))
    assert lost.job.failure is not None
    assert lost.job.failure.code == "worker_lost"


def test_a_retry_waits_and_goes_elsewhere() -> None:
    machine = machine_after(*RUNNING, committed(failure(FailureClass.BOARDS), now=110.0))
    assert machine.job.not_before == 112.0
    assert machine.job.excluded_workers == ("w1",)
    machine.handle(claimed("w2", 120.0))
    machine.handle(committed(failure(FailureClass.BOARDS), fence=2, worker="w2", now=130.0))
    assert machine.job.not_before == 134.0
    assert [POLICY.backoff(attempts) for attempts in (1, 2, 3, 4, 9)] == [2, 4, 8, 10, 10]


def test_a_cancelled_job_has_the_rest_of_its_lease_to_stop() -> None:
    machine = machine_after(*CANCELLING)
    until = machine.job.lease_until
    machine.handle(Renewed(now=120.0, worker_id="w1", fence=1, **AT))
    assert machine.job.lease_until == until
    running = machine_after(*RUNNING)
    running.handle(Renewed(now=120.0, worker_id="w1", fence=1, **AT))
    assert running.job.lease_until == 150.0


def test_a_controller_that_was_away_grants_a_whole_lease() -> None:
    machine = machine_after(*RUNNING)
    machine.handle(ControllerReturned(now=900.0, **AT))
    assert machine.job.lease_until == 930.0


def test_only_the_last_submitters_cancel_cancels() -> None:
    machine = machine_after(*RUNNING, submissions=3)
    assert machine.job.spec.priority == 2
    for number, state in ((1, S.RUNNING), (1, S.RUNNING), (0, S.RUNNING), (2, S.CANCELLING)):
        machine.handle(Detached(now=105.0, submission_id=f"s{number}", **AT))
        assert machine.job.state is state
    tell = [command for command in machine_after(*RUNNING).handle(CANCEL) if isinstance(command, TellWorker)]
    assert [(one.worker_id, one.session_id, one.action) for one in tell] == [("w1", "w1-s", LeaseAction.CANCEL)]


def test_a_parents_end_takes_only_its_own_submission() -> None:
    alone = machine_after(*RUNNING, parent_id="p1")
    alone.handle(ParentEnded(now=105.0, parent_id="p2", **AT))
    assert alone.job.state is S.RUNNING
    alone.handle(ParentEnded(now=105.0, parent_id="p1", **AT))
    assert alone.job.state is S.CANCELLING
    shared = machine_after(*RUNNING, parent_id="p1", submissions=2)
    shared.handle(ParentEnded(now=105.0, parent_id="p1", **AT))
    assert shared.job.state is S.RUNNING
    assert [one.id for one in shared.job.submissions] == ["s1"]


def test_a_repeated_commit_is_remembered_over_the_next_claim() -> None:
    boards = failure(FailureClass.BOARDS)
    machine = machine_after(*RUNNING, committed(boards), claimed("w2", 500.0))
    assert machine.handle(committed(boards)) == ()
    assert machine.job.last_commit is not None
    assert machine.job.last_commit.answer is S.QUEUED
    assert machine.job.state is S.LEASED


def test_an_answer_from_the_cache_never_was_in_the_queue() -> None:
    job = answered_from_cache(machine_after().job, OK)
    assert (job.state, job.result, job.from_cache) == (S.SUCCEEDED, OK, True)
    assert [step.new for step in job.history] == [S.SUCCEEDED]


def test_every_event_has_a_handler() -> None:
    class Unheard(Event):
        pass

    with pytest.raises(Exception, match="no handler for Unheard"):
        machine_after().handle(Unheard(now=0.0, cause_id=""))


@pytest.mark.parametrize("name", ["machine", "events", "model", "turn", "submitting", "working", "upkeep"])
def test_jobs_are_pure(name: str) -> None:
    source = Path(machine_module.__file__).with_name(f"{name}.py").read_text()
    imported = {
        alias.partition(".")[0]
        for node in ast.walk(ast.parse(source))
        for alias in (
            [one.name for one in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert not imported & {"asyncio", "grpc", "sqlalchemy", "time", "os", "structlog", "threading"}
