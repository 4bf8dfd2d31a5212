"""What clients (and agents, for their child jobs) do with jobs."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from ytk_controller.jobs.events import CancelRequested, Detached, Joined, NotifyWatchers
from ytk_controller.jobs.machine import StaleLeaseError, answered_from_cache, queued
from ytk_controller.jobs.model import JobRecord, Submission, cache_key, spec_digest
from ytk_controller.jobs.turn import Turn
from ytk_controller.scheduling.satisfiable import explain_unsatisfiable
from ytk_core.errors import UserError
from ytk_core.jobs import JobKind, JobSpec, JobState
from ytk_core.workers import WorkerDescription


@dataclass(frozen=True, kw_only=True)
class SubmitRequest:
    """A job to submit. ``parent_id`` and ``parent_fence`` are set where an agent submits a child of its job."""

    spec: JobSpec
    principal: str
    idempotency_key: str = ""
    parent_id: str = ""
    parent_fence: int = 0


@dataclass(frozen=True, kw_only=True)
class SubmitAnswer:
    """The job, the name of this submitter's interest in it, and whether others had asked for it before."""

    job: JobRecord
    submission_id: str
    joined: bool


def new_job_id() -> str:
    """Make a job id."""
    return f"job-{secrets.token_hex(6)}"


def new_submission_id() -> str:
    """Make a submission id."""
    return f"sub-{secrets.token_hex(8)}"


def submit(
    turn: Turn,
    request: SubmitRequest,
    *,
    job_id: Callable[[], str] = new_job_id,
    submission_id: Callable[[], str] = new_submission_id,
) -> SubmitAnswer:
    """Put a job in the queue, join an equal one in flight, or answer it from the result cache.

    Raises:
        UserError: Wrong spec; the idempotency key was used for another spec; an input is not in the store; no worker
            could ever take it.
        StaleLeaseError: The parent does not hold its job any more.
    """
    spec = request.spec
    digest = spec_digest(spec)
    before = _submitted_before(turn, request, digest)
    if before is not None:
        return SubmitAnswer(job=turn.job(before.job_id), submission_id=before.id, joined=before.joined)
    _check_spec(spec)
    _check_parent(turn, request)
    _check_inputs(turn, spec)
    key = cache_key(spec, turn.rules.toolchain)
    submission = Submission(
        id=submission_id(),
        job_id="",
        principal=request.principal,
        idempotency_key=request.idempotency_key,
        parent_id=request.parent_id,
        spec_digest=digest,
    )
    if not spec.no_cache:
        joined = _join(turn, key, spec, submission)
        if joined is not None:
            return joined
    submission = msgspec.structs.replace(submission, job_id=job_id())
    job, commands = queued(
        job_id=submission.job_id, spec=spec, key=key, submission=submission, now=turn.now, cause_id=turn.cause_id
    )
    cached = None if spec.no_cache else usable_cached(turn, key)
    if cached is not None and cached.result is not None:
        job = answered_from_cache(job, cached.result)
    else:
        _check_satisfiable(turn, spec)
        for command in commands:
            turn.carry_out(command)
    job = turn.tx.add_job(job)
    turn.tx.add_submission(submission)
    turn.carry_out(NotifyWatchers(job=job))
    return SubmitAnswer(job=job, submission_id=submission.id, joined=False)


def usable_cached(turn: Turn, key: str) -> JobRecord | None:
    """Give the job whose result answers equal jobs, if all its outputs are still in the artifact store."""
    cached = turn.tx.cached(key)
    if cached is None or cached.result is None:
        return None
    return None if turn.tx.missing_blobs({blob.digest for blob in cached.result.outputs}) else cached


def cancel(turn: Turn, job_id: str, submission_id: str) -> JobRecord:
    """Detach one submitter, or (empty ``submission_id``) cancel for all; a job that ended stays as it is.

    Raises:
        UserError: There is no such job (code ``not_found``).
    """
    job = turn.job(job_id)
    if submission_id:
        event = Detached(now=turn.now, cause_id=turn.cause_id, submission_id=submission_id)
        return turn.apply(job, event)
    return turn.apply(job, CancelRequested(now=turn.now, cause_id=turn.cause_id))


def _submitted_before(turn: Turn, request: SubmitRequest, digest: str) -> Submission | None:
    if not request.idempotency_key:
        return None
    before = turn.tx.submission(request.principal, request.idempotency_key)
    if before is not None and (before.spec_digest, before.parent_id) != (digest, request.parent_id):
        raise UserError(
            f"the idempotency key {request.idempotency_key!r} was used for another job ({before.job_id})",
            code="idempotency_conflict",
            hint="Choose a new key for each submission.",
        )
    return before


def _check_spec(spec: JobSpec) -> None:
    if spec.measuring and spec.kind is JobKind.KERNEL_GENERATE:
        raise UserError(
            "a kernel.generate job cannot measure: it would hold the device that its own children need",
            hint="Submit it with measuring=false; its kernel.evaluate children measure.",
        )
    names = [blob.name for blob in spec.inputs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(f"inputs with the same name: {', '.join(twice)}", hint="Give each input its own name.")
    if not spec.wall_limit_s > 0:
        raise UserError(f"wall limit of {spec.wall_limit_s} s", hint="Give a job a wall limit above 0 s.")


def _check_parent(turn: Turn, request: SubmitRequest) -> None:
    if not request.parent_id:
        return
    parent = turn.job(request.parent_id)
    if not parent.open or parent.fence != request.parent_fence or parent.state is JobState.CANCELLING:
        raise StaleLeaseError(
            f"parent job {parent.id} is {parent.state} under fence {parent.fence}, not held under "
            f"{request.parent_fence}",
            hint="Stop working on the parent job.",
        )
    if parent.device_uid:
        raise UserError(
            f"job {parent.id} holds device {parent.device_uid} and cannot wait for children",
            hint="A job that measures has no children; let a job that does not measure submit them.",
        )


def _check_inputs(turn: Turn, spec: JobSpec) -> None:
    missing = turn.tx.missing_blobs({blob.digest for blob in spec.inputs})
    if missing:
        names = sorted(f"{blob.name} ({blob.digest})" for blob in spec.inputs if blob.digest in missing)
        raise UserError(
            f"inputs that are not in the artifact store: {', '.join(names)}",
            code="input_missing",
            hint="Upload them first (FindMissing, WriteArtifact).",
        )


def _check_satisfiable(turn: Turn, spec: JobSpec) -> None:
    err = explain_unsatisfiable(spec, remembered_workers(turn))
    if err is not None:
        raise err


def remembered_workers(turn: Turn) -> list[WorkerDescription]:
    """Give the workers that are connected, or gone for so short a time that they may come back."""
    oldest = turn.now - turn.policy.worker_memory_s
    return [worker.description for worker in turn.tx.workers() if worker.last_seen >= oldest]


def _join(turn: Turn, key: str, spec: JobSpec, submission: Submission) -> SubmitAnswer | None:
    waiting_for_us = _ancestors(turn, submission.parent_id)
    for job in turn.tx.in_flight(key):
        # Waiting for one's own ancestor would never end. A shorter wall limit is not what was asked for.
        if job.id in waiting_for_us or job.spec.wall_limit_s < spec.wall_limit_s:
            continue
        submission = msgspec.structs.replace(submission, job_id=job.id, joined=True)
        event = Joined(now=turn.now, cause_id=turn.cause_id, submission=submission, priority=spec.priority)
        joined = turn.apply(job, event)
        turn.tx.add_submission(submission)
        return SubmitAnswer(job=joined, submission_id=submission.id, joined=True)
    return None


def _ancestors(turn: Turn, job_id: str) -> set[str]:
    found: set[str] = set()
    todo = [job_id] if job_id else []
    while todo:
        one = todo.pop()
        if one in found:
            continue
        found.add(one)
        job = turn.tx.job(one)
        todo.extend(sub.parent_id for sub in (job.submissions if job else ()) if sub.parent_id)
    return found
