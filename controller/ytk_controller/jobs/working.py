"""What agents do with jobs: hello, claim, start, heartbeat, commit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

import msgspec

from ytk_controller.jobs.events import (
    Adopted,
    Claimed,
    Committed,
    Progressed,
    Renewed,
    Started,
    WakeScheduler,
    WorkerLost,
)
from ytk_controller.jobs.machine import StaleLeaseError
from ytk_controller.jobs.model import JobRecord
from ytk_controller.jobs.turn import Turn
from ytk_controller.scheduling.scheduler import Assigned, FreeWorker, Round
from ytk_controller.store.base import QueuePosition, WorkerRecord
from ytk_core.errors import BoardError, UserError
from ytk_core.jobs import Failure, JobResult, JobState, Lease
from ytk_core.workers import Assignment, Hello, LeaseAction, LeaseVerdict

# The dispatcher reads the head of the queue, and more only while somebody is still free: with other controllers on the
# database, what it reads is locked for them.
_FIRST_PAGE_PER_SLOT = 4
_MAX_PAGE = 512


class SessionReplacedError(BoardError):
    """Another process of the same worker said hello after this one."""

    default_code = "session_replaced"


class OutputMissingError(UserError):
    """A commit names an output that is not in the artifact store."""

    default_code = "output_missing"


def hello(turn: Turn, message: Hello) -> tuple[LeaseVerdict, ...]:
    """Begin a session: leases that the process still works on go on, the worker's others are lost at once.

    A lease that this very session was given and has not started yet stays: its assignment may have been lost on the
    way, and the agent repeats the claim.

    Returns:
        A verdict for each lease of ``message.running``.
    """
    worker_id = message.worker.worker_id
    before = turn.tx.worker(worker_id)
    turn.tx.save_worker(
        WorkerRecord(
            description=message.worker,
            session_id=message.session_id,
            connected=True,
            last_seen=turn.now,
            draining=before.draining if before else False,
            drain_reason=before.drain_reason if before else "",
        )
    )
    running = set(message.running)
    for job in turn.tx.open_jobs(worker_id):
        if job.lease in running:
            adopted = Adopted(
                now=turn.now,
                cause_id=turn.cause_id,
                worker_id=worker_id,
                session_id=message.session_id,
                fence=job.fence,
            )
            turn.apply(job, adopted)
        elif not (job.state is JobState.LEASED and job.session_id == message.session_id):
            turn.apply(job, WorkerLost(now=turn.now, cause_id=turn.cause_id, worker_id=worker_id))
    return tuple(_verdict(turn, worker_id, lease) for lease in message.running)


def goodbye(turn: Turn, worker_id: str, session_id: str) -> None:
    """End a session; its leases live on until they expire, so that the agent can reconnect."""
    worker = turn.tx.worker(worker_id)
    if worker is not None and worker.session_id == session_id:
        turn.tx.save_worker(msgspec.structs.replace(worker, connected=False, last_seen=turn.now))


def heartbeat(turn: Turn, worker_id: str, session_id: str, leases: Iterable[Lease]) -> tuple[LeaseVerdict, ...]:
    """Note a sign of life and renew the leases that it names.

    Returns:
        A verdict for each lease.

    Raises:
        SessionReplacedError: The session is not the worker's newest.
    """
    worker = _session(turn, worker_id, session_id)
    turn.tx.save_worker(msgspec.structs.replace(worker, connected=True, last_seen=turn.now))
    verdicts = []
    for lease in leases:
        job = turn.tx.job(lease.job_id)
        if job is not None and _holds(job, worker_id, lease):
            turn.apply(job, Renewed(now=turn.now, cause_id=turn.cause_id, worker_id=worker_id, fence=lease.fence))
        verdicts.append(_verdict(turn, worker_id, lease))
    return tuple(verdicts)


def repeated_claim(turn: Turn, worker_id: str, session_id: str, claim_id: str) -> Assignment | None:
    """Give the job that a claim was already answered with; None where the claim is new, or its job went elsewhere."""
    for job in turn.tx.open_jobs(worker_id):
        if job.session_id == session_id and job.claim_id == claim_id:
            return Assignment(claim_id=claim_id, lease=job.lease, spec=job.spec)
    return None


def dispatch(turn: Turn, free: Collection[FreeWorker]) -> list[tuple[Assigned, Assignment]]:
    """Give waiting jobs to the workers that ask for one; drained and replaced sessions get none.

    Args:
        turn: The transaction.
        free: Workers connected to this controller, with their open claims.

    Returns:
        What to send to whom.
    """
    kinds = {kind for one in free for kind in one.worker.kinds}
    limit = _FIRST_PAGE_PER_SLOT * sum(len(one.claim_ids) for one in free)
    page = turn.tx.queue_page(kinds=kinds, after=None, limit=min(limit, _MAX_PAGE))
    if not page:
        return []  # the common case: agents wait for work
    around = _round(turn, free)
    jobs: dict[str, JobRecord] = {}
    while page:
        jobs.update((job.id, job) for job in page)
        around.give(page)
        if around.full or len(page) < min(limit, _MAX_PAGE):
            break
        limit *= 4
        after = QueuePosition(page[-1].spec.priority, page[-1].seq)
        page = turn.tx.queue_page(kinds=kinds, after=after, limit=min(limit, _MAX_PAGE))
    return [(given, _claim(turn, jobs[given.job_id], given)) for given in around.assigned]


def _claim(turn: Turn, job: JobRecord, given: Assigned) -> Assignment:
    claimed = turn.apply(
        job,
        Claimed(
            now=turn.now,
            cause_id=turn.cause_id,
            worker_id=given.worker_id,
            session_id=given.session_id,
            claim_id=given.claim_id,
            device_uid=given.device_uid,
        ),
    )
    return Assignment(claim_id=given.claim_id, lease=claimed.lease, spec=claimed.spec)


def _serves(worker: WorkerRecord | None, free: FreeWorker) -> bool:
    return worker is not None and worker.session_id == free.session_id and not worker.draining


def _round(turn: Turn, free: Collection[FreeWorker]) -> Round:
    known = {worker.id: worker for worker in turn.tx.workers()}
    held: defaultdict[str, list[str]] = defaultdict(list)
    for job in turn.tx.open_jobs():
        held[job.worker_id].append(job.claim_id)
    ready = [
        _within_slots(one, held[one.worker.worker_id]) for one in free if _serves(known.get(one.worker.worker_id), one)
    ]
    live = [
        worker.description
        for worker in known.values()
        if worker.live(turn.now, turn.policy.lease_s) and not worker.draining
    ]
    return Round.begin(ready, live, turn.tx.held_devices())


def _within_slots(free: FreeWorker, held: list[str]) -> FreeWorker:
    """Take away the claims that were answered already, and those beyond the worker's slots."""
    claims = [claim for claim in free.claim_ids if claim not in held]
    slots = max(0, free.worker.slots - len(held))
    return FreeWorker(worker=free.worker, session_id=free.session_id, claim_ids=tuple(claims[:slots]))


def start(turn: Turn, worker_id: str, lease: Lease) -> bool:
    """Note that a worker begins a job.

    Returns:
        False where the job is being cancelled: the worker commits it as cancelled.

    Raises:
        StaleLeaseError: The lease is not the current one.
    """
    event = Started(now=turn.now, cause_id=turn.cause_id, worker_id=worker_id, fence=lease.fence)
    return turn.apply(turn.job(lease.job_id), event).state is not JobState.CANCELLING


def progress(turn: Turn, lease: Lease, fraction: float, note: str) -> None:
    """Note how far a job came.

    Raises:
        StaleLeaseError: The lease is not the current one.
    """
    event = Progressed(now=turn.now, cause_id=turn.cause_id, fence=lease.fence, fraction=fraction, note=note)
    turn.apply(turn.job(lease.job_id), event)


def commit(turn: Turn, worker_id: str, lease: Lease, outcome: JobResult | Failure | None) -> JobState:
    """End an attempt; repeating the commit that ended it gives the same answer.

    Args:
        turn: The transaction.
        worker_id: The worker.
        lease: The lease it holds.
        outcome: What came out; None where the worker stopped because it was told to.

    Returns:
        The state the job went to.

    Raises:
        StaleLeaseError: The lease is not the current one.
        OutputMissingError: An output is not in the artifact store.
    """
    event = Committed(now=turn.now, cause_id=turn.cause_id, worker_id=worker_id, fence=lease.fence, outcome=outcome)
    job = turn.apply(turn.job(lease.job_id), event)
    if isinstance(outcome, JobResult) and job.state is JobState.SUCCEEDED:
        _check_outputs(turn, outcome)
    if job.last_commit is None:
        raise StaleLeaseError(f"job {job.id} has no commit", hint="Report this: it cannot happen.")
    return job.last_commit.answer


def check_lease(turn: Turn, lease: Lease) -> None:
    """Check that a lease is the current one of a job that is held.

    Raises:
        StaleLeaseError: It is not.
    """
    job = turn.job(lease.job_id)
    if not job.open or job.fence != lease.fence:
        raise StaleLeaseError(
            f"fence {lease.fence} is not the current one of job {job.id} ({job.state})",
            hint="Stop working on it and report nothing.",
        )


def drain(turn: Turn, worker_id: str, reason: str, *, resume: bool) -> WorkerRecord:
    """Give a worker no new jobs, or serve it again.

    Raises:
        UserError: There is no such worker (code ``not_found``).
    """
    worker = turn.tx.worker(worker_id)
    if worker is None:
        raise UserError(
            f"there is no worker {worker_id!r}", code="not_found", hint="List them with `ytk embedded workers`."
        )
    worker = msgspec.structs.replace(worker, draining=not resume, drain_reason="" if resume else reason)
    turn.tx.save_worker(worker)
    if resume:
        turn.carry_out(WakeScheduler(at=turn.now))
    return worker


def _check_outputs(turn: Turn, result: JobResult) -> None:
    missing = turn.tx.missing_blobs({blob.digest for blob in result.outputs})
    if missing:
        names = sorted(blob.name for blob in result.outputs if blob.digest in missing)
        raise OutputMissingError(
            f"outputs that are not in the artifact store: {', '.join(names)}",
            hint="Upload them, then commit again.",
        )


def _session(turn: Turn, worker_id: str, session_id: str) -> WorkerRecord:
    worker = turn.tx.worker(worker_id)
    if worker is None or worker.session_id != session_id:
        raise SessionReplacedError(
            f"worker {worker_id} has a newer session than {session_id}",
            hint="Two agents run with one worker id: give each its own --worker-id.",
        )
    return worker


def _holds(job: JobRecord, worker_id: str, lease: Lease) -> bool:
    return job.open and job.worker_id == worker_id and job.fence == lease.fence


def _verdict(turn: Turn, worker_id: str, lease: Lease) -> LeaseVerdict:
    job = turn.tx.job(lease.job_id)
    if job is None or not _holds(job, worker_id, lease):
        action = LeaseAction.ABANDON
    elif job.state is JobState.CANCELLING:
        action = LeaseAction.CANCEL
    else:
        action = LeaseAction.CONTINUE
    return LeaseVerdict(lease=lease, action=action)
