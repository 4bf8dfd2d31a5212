"""What the controller remembers of a job, and the numbers it goes by."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

import msgspec

from ytk_core.jobs import Failure, JobKind, JobResult, JobSpec, JobState, Lease
from ytk_core.workers import JobView

OPEN_STATES = frozenset({JobState.LEASED, JobState.RUNNING, JobState.CANCELLING})
"""States in which a worker holds the job."""


class _Frozen(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Policy(_Frozen, frozen=True, kw_only=True):
    """Times and limits. All times in seconds.

    ``max_attempts`` bounds claims of one job; ``poison_workers`` is how many distinct workers a job may take with it
    before it is POISONED. A lost worker counts for ``worker_memory_s`` as one that may come back.
    """

    lease_s: float = 60.0
    heartbeat_s: float = 15.0
    max_attempts: int = 4
    poison_workers: int = 2
    backoff_s: float = 2.0
    backoff_cap_s: float = 60.0
    worker_memory_s: float = 600.0

    def backoff(self, attempts: int) -> float:
        """Give the pause before attempt ``attempts + 1``: doubles each time, capped."""
        return min(self.backoff_cap_s, self.backoff_s * 2.0 ** max(0, attempts - 1))


class Submission(_Frozen, frozen=True, kw_only=True):
    """One submitter's interest in a job. ``parent_id`` is set where a running parent job submitted it."""

    id: str
    job_id: str
    principal: str
    idempotency_key: str = ""
    parent_id: str = ""
    spec_digest: str = ""
    joined: bool = False


class Transition(_Frozen, frozen=True, kw_only=True):
    """One step of a job's history."""

    at: float
    new: JobState
    fence: int
    cause: str


class LastCommit(_Frozen, frozen=True, kw_only=True):
    """The commit that ended the last attempt, so that its repetition gets the same answer."""

    fence: int
    fingerprint: str
    answer: JobState


class JobRecord(_Frozen, frozen=True, kw_only=True):
    """A job as the store keeps it.

    ``worker_id`` names the holder, or the last one. ``device_uid`` is set while the job holds a device exclusively.
    ``submissions`` are the submitters that still want the job. Times are seconds since the epoch, by the store's clock.
    """

    id: str
    spec: JobSpec
    cache_key: str
    state: JobState
    seq: int = 0
    parent_id: str = ""
    submissions: tuple[Submission, ...] = ()
    fence: int = 0
    worker_id: str = ""
    session_id: str = ""
    claim_id: str = ""
    device_uid: str = ""
    lease_until: float = 0.0
    not_before: float = 0.0
    attempts: int = 0
    lost_workers: tuple[str, ...] = ()
    excluded_workers: tuple[str, ...] = ()
    failure: Failure | None = None
    result: JobResult | None = None
    last_commit: LastCommit | None = None
    submitted_at: float = 0.0
    updated_at: float = 0.0
    from_cache: bool = False
    progress: float = 0.0
    progress_note: str = ""
    history: tuple[Transition, ...] = ()

    @property
    def lease(self) -> Lease:
        """The current lease (also the last one of a job that nobody holds)."""
        return Lease(job_id=self.id, fence=self.fence)

    @property
    def open(self) -> bool:
        """Whether a worker holds the job."""
        return self.state in OPEN_STATES


def holds_device(spec: JobSpec) -> bool:
    """Tell whether a job holds its worker's device: a search never does, it only waits for children that measure."""
    return spec.measuring and spec.kind is not JobKind.KERNEL_GENERATE


_canonical = msgspec.json.Encoder(order="deterministic")


def cache_key(spec: JobSpec, toolchain: str) -> str:
    """Give the key under which equal jobs are joined and answered from the cache.

    Everything that decides the result counts: kind, schema, arch spec, inputs by name and digest, parameters,
    requirements, whether it measures, and the version of this software. Priority and wall limit do not.
    """
    decisive = {
        "kind": spec.kind,
        "schema_version": spec.schema_version,
        "arch_spec": spec.arch_spec,
        "inputs": sorted((blob.name, blob.digest) for blob in spec.inputs),
        "params": spec.params,
        "requirements": sorted(set(spec.requirements)),
        "measuring": spec.measuring,
        "toolchain": toolchain,
    }
    return hashlib.sha256(_canonical.encode(decisive)).hexdigest()


def spec_digest(spec: JobSpec) -> str:
    """Give a digest of the whole spec, for telling whether a repeated submit asks for the same."""
    return hashlib.sha256(_canonical.encode(spec)).hexdigest()


def outcome_fingerprint(outcome: JobResult | Failure | None, worker_id: str) -> str:
    """Give a digest of what an attempt ended with (None: cancelled) and who ended it."""
    return hashlib.sha256(_canonical.encode([type(outcome).__name__, outcome, worker_id])).hexdigest()


def view(job: JobRecord) -> JobView:
    """Give the job as clients see it."""
    return JobView(
        id=job.id,
        spec=job.spec,
        state=job.state,
        failure=job.failure,
        result=job.result,
        parent_id=job.parent_id,
        worker_id=job.worker_id,
        attempts=job.attempts,
        submitted_at=datetime.fromtimestamp(job.submitted_at, UTC),
        updated_at=datetime.fromtimestamp(job.updated_at, UTC),
        submitters=len(job.submissions),
        from_cache=job.from_cache,
        progress=job.progress,
        progress_note=job.progress_note,
    )
