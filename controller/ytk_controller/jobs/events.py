"""What can happen to a job, and what has to be done about it. Frozen values; times come with the event."""

from __future__ import annotations

from dataclasses import dataclass

from ytk_controller.jobs.model import JobRecord, Submission
from ytk_core.jobs import Failure, JobResult, Lease
from ytk_core.workers import LeaseAction

# ---- events ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Event:
    """Base of all events: when it happened by the store's clock, and what caused it (goes to log and history)."""

    now: float
    cause_id: str


@dataclass(frozen=True, kw_only=True)
class Joined(Event):
    """An equal job was submitted while this one is in flight; ``priority`` is what that submitter asked for."""

    submission: Submission
    priority: int


@dataclass(frozen=True, kw_only=True)
class Detached(Event):
    """One submitter does not want the job any more."""

    submission_id: str


@dataclass(frozen=True, kw_only=True)
class CancelRequested(Event):
    """Cancelled for all submitters."""


@dataclass(frozen=True, kw_only=True)
class ParentEnded(Event):
    """A parent that submitted this job ended or was lost."""

    parent_id: str


@dataclass(frozen=True, kw_only=True)
class Claimed(Event):
    """The scheduler gave the job to a worker. ``device_uid`` is empty where no device is held."""

    worker_id: str
    session_id: str
    claim_id: str
    device_uid: str


@dataclass(frozen=True, kw_only=True)
class Started(Event):
    """The worker begins to work."""

    worker_id: str
    fence: int


@dataclass(frozen=True, kw_only=True)
class Renewed(Event):
    """A heartbeat named the lease."""

    worker_id: str
    fence: int


@dataclass(frozen=True, kw_only=True)
class Adopted(Event):
    """The worker reconnected and still works on the job."""

    worker_id: str
    session_id: str
    fence: int


@dataclass(frozen=True, kw_only=True)
class Progressed(Event):
    """The worker tells how far it came; ``fraction`` in [0, 1]."""

    fence: int
    fraction: float
    note: str


@dataclass(frozen=True, kw_only=True)
class Committed(Event):
    """The worker ends its attempt. ``outcome`` is None where it stopped because it was told to."""

    worker_id: str
    fence: int
    outcome: JobResult | Failure | None


@dataclass(frozen=True, kw_only=True)
class LeaseExpired(Event):
    """No heartbeat named the lease in time."""


@dataclass(frozen=True, kw_only=True)
class WorkerLost(Event):
    """The worker came back without the job."""

    worker_id: str


@dataclass(frozen=True, kw_only=True)
class ControllerReturned(Event):
    """A controller started: agents could not renew while it was away."""


@dataclass(frozen=True, kw_only=True)
class GivenUp(Event):
    """Nobody can serve the job any more."""

    failure: Failure


# ---- commands --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Command:
    """Base of all commands."""


@dataclass(frozen=True, kw_only=True)
class NotifyWatchers(Command):
    """Show the job to everyone who watches it."""

    job: JobRecord


@dataclass(frozen=True, kw_only=True)
class TellWorker(Command):
    """Send a verdict on a lease to the session that holds it."""

    worker_id: str
    session_id: str
    lease: Lease
    action: LeaseAction


@dataclass(frozen=True, kw_only=True)
class EndChildren(Command):
    """Detach the job from every job that it submitted."""

    parent_id: str


@dataclass(frozen=True, kw_only=True)
class RememberResult(Command):
    """Put the job's result in the result cache."""

    cache_key: str
    job_id: str


@dataclass(frozen=True, kw_only=True)
class WakeScheduler(Command):
    """There is something to schedule from ``at`` on."""

    at: float
