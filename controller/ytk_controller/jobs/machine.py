"""The state machine of one job. Pure: no I/O, no clock; ``now`` comes with each event.

::

    QUEUED --claim--> LEASED --start--> RUNNING --commit--> SUCCEEDED | FAILED
       ^                |                  |
       +--- board's failure or lost worker-+---2 distinct workers lost--> POISONED
    QUEUED --cancel--> CANCELLED        LEASED, RUNNING --cancel--> CANCELLING --commit, lease over--> CANCELLED
"""

from __future__ import annotations

import functools
from typing import Any, Protocol

import msgspec

from ytk_controller.jobs.events import (
    Adopted,
    CancelRequested,
    Claimed,
    Command,
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
from ytk_controller.jobs.model import JobRecord, LastCommit, Policy, Submission, Transition, outcome_fingerprint
from ytk_core.errors import BoardError, FailureClass, ToolkitError
from ytk_core.jobs import Failure, JobResult, JobSpec, JobState
from ytk_core.workers import LeaseAction

_S = JobState

TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    _S.QUEUED: frozenset({_S.LEASED, _S.CANCELLED, _S.FAILED}),
    _S.LEASED: frozenset({_S.RUNNING, _S.CANCELLING, _S.QUEUED, _S.FAILED, _S.POISONED}),
    _S.RUNNING: frozenset({_S.CANCELLING, _S.QUEUED, _S.SUCCEEDED, _S.FAILED, _S.POISONED}),
    _S.CANCELLING: frozenset({_S.CANCELLED}),
    _S.SUCCEEDED: frozenset(),
    _S.FAILED: frozenset(),
    _S.CANCELLED: frozenset(),
    _S.POISONED: frozenset(),
}


class InvalidTransitionError(ToolkitError):
    """A transition that the table does not list; the message carries the job's history."""

    default_code = "invalid_transition"


class StaleLeaseError(BoardError):
    """The caller does not hold the job: somebody else does, or it ended."""

    default_code = "stale_lease"


class Machine(Protocol):
    """What the board needs of a machine; tests put faulty ones here."""

    job: JobRecord

    def __init__(self, job: JobRecord, policy: Policy) -> None: ...

    def handle(self, event: Event) -> tuple[Command, ...]:
        """Apply an event; give what has to be done now."""
        ...


def queued(
    *, job_id: str, spec: JobSpec, key: str, submission: Submission, now: float, cause_id: str
) -> tuple[JobRecord, tuple[Command, ...]]:
    """Make a new job in QUEUED."""
    job = JobRecord(
        id=job_id,
        spec=spec,
        cache_key=key,
        state=_S.QUEUED,
        parent_id=submission.parent_id,
        submissions=(submission,),
        submitted_at=now,
        updated_at=now,
        not_before=now,
        history=(Transition(at=now, new=_S.QUEUED, fence=0, cause=cause_id),),
    )
    return job, (WakeScheduler(at=now),)


def answered_from_cache(job: JobRecord, result: JobResult) -> JobRecord:
    """Give a new job its cached result; it never was in the queue."""
    step = msgspec.structs.replace(job.history[0], new=_S.SUCCEEDED, cause="result cache")
    return msgspec.structs.replace(
        job, state=_S.SUCCEEDED, result=result, from_cache=True, progress=1.0, history=(step,)
    )


class JobMachine:
    """Applies events to one job; ``job`` is the record after the last event."""

    def __init__(self, job: JobRecord, policy: Policy) -> None:
        self.job = job
        self._policy = policy

    def handle(self, event: Event) -> tuple[Command, ...]:
        """Apply an event.

        Returns:
            What has to be done now, in order.

        Raises:
            StaleLeaseError: The event speaks for a lease that is not the current one.
            InvalidTransitionError: The event has no place in this state.
        """
        return self._apply(event)

    @functools.singledispatchmethod
    def _apply(self, event: Event) -> tuple[Command, ...]:
        raise ToolkitError(f"no handler for {type(event).__name__}")

    # ---- submitters ----

    @_apply.register
    def _(self, event: Joined) -> tuple[Command, ...]:
        if self.job.state not in {_S.QUEUED, _S.LEASED, _S.RUNNING}:
            raise self._invalid(f"join in {self.job.state}")
        spec = self.job.spec
        if event.priority > spec.priority:
            spec = msgspec.structs.replace(spec, priority=event.priority)
        self._set(event, spec=spec, submissions=(*self.job.submissions, event.submission))
        return (NotifyWatchers(job=self.job),)

    @_apply.register
    def _(self, event: Detached) -> tuple[Command, ...]:
        left = tuple(one for one in self.job.submissions if one.id != event.submission_id)
        return self._detach(event, left, "cancelled by its submitter")

    @_apply.register
    def _(self, event: CancelRequested) -> tuple[Command, ...]:
        return self._detach(event, (), "cancelled")

    @_apply.register
    def _(self, event: ParentEnded) -> tuple[Command, ...]:
        left = tuple(one for one in self.job.submissions if one.parent_id != event.parent_id)
        return self._detach(event, left, f"its parent job {event.parent_id} ended")

    def _detach(self, event: Event, left: tuple[Submission, ...], why: str) -> tuple[Command, ...]:
        if self.job.state.terminal:
            return ()
        if left:
            if left == self.job.submissions:
                return ()
            self._set(event, submissions=left)
            return (NotifyWatchers(job=self.job),)
        if self.job.state is _S.CANCELLING:
            return ()
        failure = Failure(
            failure_class=FailureClass.YOURS,
            code="cancelled",
            message=f"The job was {why}." if why.startswith("cancelled") else f"The job was cancelled: {why}.",
            hint="Submit it again.",
        )
        if self.job.state is _S.QUEUED:
            return self._end(event, _S.CANCELLED, submissions=(), failure=failure)
        # The worker has the rest of its lease to stop; heartbeats do not prolong it.
        self._to(event, _S.CANCELLING, submissions=(), failure=failure)
        tell = TellWorker(
            worker_id=self.job.worker_id,
            session_id=self.job.session_id,
            lease=self.job.lease,
            action=LeaseAction.CANCEL,
        )
        return (NotifyWatchers(job=self.job), tell, EndChildren(parent_id=self.job.id))

    # ---- workers ----

    @_apply.register
    def _(self, event: Claimed) -> tuple[Command, ...]:
        self._to(
            event,
            _S.LEASED,
            fence=self._next_fence(),
            worker_id=event.worker_id,
            session_id=event.session_id,
            claim_id=event.claim_id,
            device_uid=event.device_uid,
            lease_until=event.now + self._policy.lease_s,
            attempts=self.job.attempts + 1,
            progress=0.0,
            progress_note="",
        )
        return (NotifyWatchers(job=self.job),)

    @_apply.register
    def _(self, event: Started) -> tuple[Command, ...]:
        self._check_holder(event.worker_id, event.fence)
        if self.job.state is not _S.LEASED:
            return ()  # a repeated start, or being cancelled: the caller reads the state
        self._to(event, _S.RUNNING, lease_until=event.now + self._policy.lease_s)
        return (NotifyWatchers(job=self.job),)

    @_apply.register
    def _(self, event: Renewed) -> tuple[Command, ...]:
        self._check_holder(event.worker_id, event.fence)
        if self.job.state is not _S.CANCELLING:
            # Not an update that anyone needs to see: updated_at stays.
            self.job = msgspec.structs.replace(self.job, lease_until=event.now + self._policy.lease_s)
        return ()

    @_apply.register
    def _(self, event: Adopted) -> tuple[Command, ...]:
        self._check_holder(event.worker_id, event.fence)
        until = self.job.lease_until if self.job.state is _S.CANCELLING else event.now + self._policy.lease_s
        self.job = msgspec.structs.replace(self.job, session_id=event.session_id, lease_until=until)
        return ()

    @_apply.register
    def _(self, event: Progressed) -> tuple[Command, ...]:
        self._check_holder(self.job.worker_id, event.fence)
        self._set(event, progress=min(1.0, max(0.0, event.fraction)), progress_note=event.note[:200])
        return (NotifyWatchers(job=self.job),)

    @_apply.register
    def _(self, event: Committed) -> tuple[Command, ...]:
        fingerprint = outcome_fingerprint(event.outcome, event.worker_id)
        last = self.job.last_commit
        if last is not None and (last.fence, last.fingerprint) == (event.fence, fingerprint):
            return ()  # its answer was lost; the caller reads last_commit
        self._check_holder(event.worker_id, event.fence)
        commands = self._ended(event)
        answer = LastCommit(fence=event.fence, fingerprint=fingerprint, answer=self.job.state)
        self.job = msgspec.structs.replace(self.job, last_commit=answer)
        return tuple(
            NotifyWatchers(job=self.job) if isinstance(command, NotifyWatchers) else command for command in commands
        )

    def _ended(self, event: Committed) -> tuple[Command, ...]:
        outcome = event.outcome
        if self.job.state is _S.CANCELLING:
            return self._end(event, _S.CANCELLED)
        if isinstance(outcome, JobResult):
            commands = self._end(event, _S.SUCCEEDED, result=outcome, progress=1.0)
            return (*commands, RememberResult(cache_key=self.job.cache_key, job_id=self.job.id))
        if outcome is None:
            outcome = Failure(
                failure_class=FailureClass.BOARDS,
                code="worker_stopped",
                message=f"Worker {event.worker_id} stopped before the job was done.",
                hint="Submit it again.",
            )
        if self._retryable(outcome):
            return self._requeue(event, event.worker_id)
        return self._end(event, _S.FAILED, failure=outcome)

    # ---- time and loss ----

    @_apply.register
    def _(self, event: LeaseExpired) -> tuple[Command, ...]:
        if not self.job.open or self.job.lease_until > event.now:
            return ()  # renewed or ended since the reaper looked
        return self._lost(event)

    @_apply.register
    def _(self, event: WorkerLost) -> tuple[Command, ...]:
        if not self.job.open or self.job.worker_id != event.worker_id:
            return ()
        return self._lost(event)

    @_apply.register
    def _(self, event: ControllerReturned) -> tuple[Command, ...]:
        if self.job.open:
            until = max(self.job.lease_until, event.now + self._policy.lease_s)
            self.job = msgspec.structs.replace(self.job, lease_until=until)
        return ()

    @_apply.register
    def _(self, event: GivenUp) -> tuple[Command, ...]:
        if self.job.state is not _S.QUEUED:
            return ()
        return self._end(event, _S.FAILED, failure=event.failure)

    def _lost(self, event: Event) -> tuple[Command, ...]:
        worker_id = self.job.worker_id
        lost = (*self.job.lost_workers, *({worker_id} - set(self.job.lost_workers)))
        if self.job.state is _S.CANCELLING:
            return self._end(event, _S.CANCELLED, lost_workers=lost)
        if self._poisoned(lost):
            failure = Failure(
                failure_class=FailureClass.BOARDS,
                code="poisoned",
                message=f"The job took {len(lost)} workers with it: {', '.join(lost)}.",
                hint=f"Read its log (`ytk jobs logs {self.job.id}`) before you submit it again.",
            )
            return self._end(event, _S.POISONED, lost_workers=lost, failure=failure)
        if self.job.attempts >= self._policy.max_attempts:
            failure = Failure(
                failure_class=FailureClass.BOARDS,
                code="worker_lost",
                message=f"Worker {worker_id} was lost; {self.job.attempts} attempts were made.",
                hint="Look at the worker (`ytk embedded workers`), then submit the job again.",
            )
            return self._end(event, _S.FAILED, lost_workers=lost, failure=failure)
        return self._requeue(event, worker_id, lost_workers=lost)

    # ---- rules that tests replace by faulty ones ----

    def _next_fence(self) -> int:
        return self.job.fence + 1

    def _holds(self, worker_id: str, fence: int) -> bool:
        return self.job.open and self.job.worker_id == worker_id and self.job.fence == fence

    def _retryable(self, failure: Failure) -> bool:
        return failure.failure_class is FailureClass.BOARDS and self.job.attempts < self._policy.max_attempts

    def _poisoned(self, lost: tuple[str, ...]) -> bool:
        return len(lost) >= self._policy.poison_workers

    # ---- steps ----

    def _requeue(self, event: Event, worker_id: str, **changes: Any) -> tuple[Command, ...]:
        not_before = event.now + self._policy.backoff(self.job.attempts)
        excluded = (*self.job.excluded_workers, *({worker_id} - set(self.job.excluded_workers)))
        self._to(event, _S.QUEUED, not_before=not_before, excluded_workers=excluded, **self._freed(), **changes)
        return (
            NotifyWatchers(job=self.job),
            EndChildren(parent_id=self.job.id),
            WakeScheduler(at=not_before),
        )

    def _end(self, event: Event, state: JobState, **changes: Any) -> tuple[Command, ...]:
        self._to(event, state, **self._freed(), **changes)
        return (
            NotifyWatchers(job=self.job),
            EndChildren(parent_id=self.job.id),
            WakeScheduler(at=event.now),  # a slot or a device may be free now
        )

    @staticmethod
    def _freed() -> dict[str, Any]:
        return {"session_id": "", "claim_id": "", "device_uid": "", "lease_until": 0.0}

    def _check_holder(self, worker_id: str, fence: int) -> None:
        if not self._holds(worker_id, fence):
            job = self.job
            holder = f"worker {job.worker_id} holds it under {job.fence}" if job.open else f"it is {job.state}"
            raise StaleLeaseError(
                f"worker {worker_id} does not hold job {job.id} under fence {fence}: {holder}",
                hint="Stop working on it and report nothing.",
            )

    def _set(self, event: Event, **changes: Any) -> None:
        self.job = msgspec.structs.replace(self.job, updated_at=event.now, **changes)

    def _to(self, event: Event, new: JobState, **changes: Any) -> None:
        if new not in TRANSITIONS[self.job.state]:
            raise self._invalid(f"{self.job.state} -> {new}")
        step = Transition(at=event.now, new=new, fence=changes.get("fence", self.job.fence), cause=event.cause_id)
        self._set(event, state=new, history=(*self.job.history, step), **changes)

    def _invalid(self, what: str) -> InvalidTransitionError:
        history = " -> ".join(f"{step.new}({step.cause})" for step in self.job.history)
        return InvalidTransitionError(
            f"job {self.job.id}: {what} is no transition; history: {history}",
            hint="An agent has to start a job before it commits a result.",
        )
