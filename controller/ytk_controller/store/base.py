"""The one store interface.

A store runs functions of a :class:`Tx`; each is atomic: it happens as a whole, or, where it raises, not at all. Time
comes from the store, so that several controllers on one database agree.
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import NamedTuple, TypeVar

import msgspec

from ytk_controller.jobs.model import JobRecord, Submission
from ytk_core.jobs import JobKind, JobState, NamedBlob
from ytk_core.workers import WorkerDescription

T = TypeVar("T")


class _Frozen(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class WorkerRecord(_Frozen, frozen=True, kw_only=True):
    """A worker as the store keeps it. ``last_seen`` is in seconds since the epoch, by the store's clock."""

    description: WorkerDescription
    session_id: str
    connected: bool
    last_seen: float
    draining: bool = False
    drain_reason: str = ""

    @property
    def id(self) -> str:
        """The worker's id."""
        return self.description.worker_id

    def live(self, now: float, lease_s: float) -> bool:
        """Whether it is connected and was heard of within a lease's time (its controller may have died)."""
        return self.connected and self.last_seen + lease_s >= now


class TokenRecord(_Frozen, frozen=True, kw_only=True):
    """A token: its hash, never the token. ``expires_at`` 0 means never."""

    name: str
    scope: str
    sha256: str
    expires_at: float = 0.0


class QueuePosition(NamedTuple):
    """Where a page of the queue ended: the sort key of its last job."""

    priority: int
    seq: int


class Tx(abc.ABC):
    """What can be done inside one transaction."""

    @abc.abstractmethod
    def now(self) -> float:
        """Give the store's time in seconds since the epoch; constant within the transaction."""

    # ---- jobs ----

    @abc.abstractmethod
    def add_job(self, job: JobRecord) -> JobRecord:
        """Insert a job and give it back with its ``seq``, which grows with each job."""

    @abc.abstractmethod
    def save_job(self, job: JobRecord) -> None:
        """Replace a job that :meth:`job` gave."""

    @abc.abstractmethod
    def job(self, job_id: str) -> JobRecord | None:
        """Give a job, locked against other controllers until the transaction ends; None if there is none."""

    @abc.abstractmethod
    def list_jobs(self, *, states: Collection[JobState], parent_id: str, limit: int, before_id: str) -> list[JobRecord]:
        """List jobs, newest first. Empty ``states``, ``parent_id`` and ``before_id`` do not filter."""

    @abc.abstractmethod
    def queue_page(self, *, kinds: Collection[JobKind], after: QueuePosition | None, limit: int) -> list[JobRecord]:
        """Give queued jobs whose backoff is over in queue order, skipping those another controller handles now."""

    @abc.abstractmethod
    def queued_jobs(self) -> list[JobRecord]:
        """Give every job in QUEUED, also those whose backoff runs."""

    @abc.abstractmethod
    def next_ready_at(self) -> float | None:
        """Give the earliest time in the future at which a queued job's backoff ends; None if there is none."""

    @abc.abstractmethod
    def open_jobs(self, worker_id: str | None = None) -> list[JobRecord]:
        """Give the jobs that workers hold (of one worker), locked."""

    @abc.abstractmethod
    def expired_jobs(self) -> list[JobRecord]:
        """Give held jobs whose lease is over, skipping those another controller handles now."""

    @abc.abstractmethod
    def held_devices(self) -> frozenset[str]:
        """Give ``device_uid`` of every device that a job holds."""

    @abc.abstractmethod
    def children(self, parent_id: str) -> list[JobRecord]:
        """Give the jobs that a job submitted and that are not terminal, locked."""

    @abc.abstractmethod
    def in_flight(self, cache_key: str) -> list[JobRecord]:
        """Give equal jobs that are QUEUED, LEASED or RUNNING, oldest first, locked."""

    # ---- submissions and the result cache ----

    @abc.abstractmethod
    def submission(self, principal: str, idempotency_key: str) -> Submission | None:
        """Give what a principal submitted under a key; None if nothing."""

    @abc.abstractmethod
    def add_submission(self, submission: Submission) -> None:
        """Insert a submission."""

    @abc.abstractmethod
    def cached(self, cache_key: str) -> JobRecord | None:
        """Give the job whose result answers equal jobs; None if there is none."""

    @abc.abstractmethod
    def remember_result(self, cache_key: str, job_id: str) -> None:
        """Let a job's result answer equal jobs from now on."""

    # ---- workers, blobs, tokens ----

    @abc.abstractmethod
    def worker(self, worker_id: str) -> WorkerRecord | None:
        """Give a worker, locked; None if it never said hello."""

    @abc.abstractmethod
    def save_worker(self, worker: WorkerRecord) -> None:
        """Insert or replace a worker."""

    @abc.abstractmethod
    def workers(self) -> list[WorkerRecord]:
        """Give all workers, by id."""

    @abc.abstractmethod
    def add_blobs(self, blobs: Collection[NamedBlob]) -> None:
        """Record that blobs are complete in the artifact store (names do not matter)."""

    @abc.abstractmethod
    def drop_blobs(self, digests: Collection[str]) -> None:
        """Record that blobs are gone from the artifact store."""

    @abc.abstractmethod
    def missing_blobs(self, digests: Collection[str]) -> frozenset[str]:
        """Give those digests that are not recorded as complete."""

    @abc.abstractmethod
    def save_token(self, token: TokenRecord) -> None:
        """Insert a token or replace the one of that name."""

    @abc.abstractmethod
    def tokens(self) -> list[TokenRecord]:
        """Give all tokens, by name."""


class Store(abc.ABC):
    """Runs transactions."""

    shared = False
    """Whether other controllers may change the same store, unseen by this process."""

    @abc.abstractmethod
    def submit(self, function: Callable[[Tx], T]) -> Future[T]:
        """Run a function in a transaction of its own, some time soon.

        The future is done when the transaction is durable. The function may run more than once (after a conflict with
        another controller), so it changes nothing but the transaction. What it raises undoes all it did.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Finish what was submitted and let go of the database."""

    def run(self, function: Callable[[Tx], T]) -> T:
        """Run a function in a transaction and wait for it."""
        return self.submit(function).result()

    async def arun(self, function: Callable[[Tx], T]) -> T:
        """Run a function in a transaction; the loop goes on meanwhile."""
        return await asyncio.wrap_future(self.submit(function))
