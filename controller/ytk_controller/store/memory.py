"""The store in memory: for tests, and the model that the SQL store is held to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any, TypeVar

import msgspec

from ytk_controller.jobs.model import JobRecord, Submission
from ytk_controller.scheduling.scheduler import queue_order
from ytk_controller.store.base import QueuePosition, Store, TokenRecord, Tx, WorkerRecord
from ytk_core.jobs import JobKind, JobState, NamedBlob

T = TypeVar("T")

_ABSENT = object()
_JOINABLE = (JobState.QUEUED, JobState.LEASED, JobState.RUNNING)


class _Tables:
    def __init__(self) -> None:
        self.jobs: dict[str, JobRecord] = {}
        self.submissions: dict[str, Submission] = {}
        self.keys: dict[tuple[str, str], Submission] = {}
        self.results: dict[str, str] = {}
        self.workers: dict[str, WorkerRecord] = {}
        self.blobs: dict[str, int] = {}
        self.tokens: dict[str, TokenRecord] = {}
        self.seq = 0


class MemoryStore(Store):
    """A store in memory; transactions run at once, one after the other.

    Args:
        clock: Gives seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._tables = _Tables()
        self._lock = threading.Lock()

    def submit(self, function: Callable[[Tx], T]) -> Future[T]:
        """Run the function now; see :meth:`Store.submit`."""
        future: Future[T] = Future()
        with self._lock:
            tx = _MemoryTx(self._tables, self._clock())
            try:
                future.set_result(function(tx))
            except Exception as err:  # noqa: BLE001 - whatever the function raises belongs to its caller
                tx.undo()
                future.set_exception(err)
        return future

    def close(self) -> None:
        """Do nothing: memory goes with the object."""


class _MemoryTx(Tx):
    def __init__(self, tables: _Tables, now: float) -> None:
        self._tables = tables
        self._now = now
        self._undo: list[tuple[dict[Any, Any], Any, Any]] = []

    def _put(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        self._undo.append((table, key, table.get(key, _ABSENT)))
        table[key] = value

    def undo(self) -> None:
        for table, key, old in reversed(self._undo):
            if old is _ABSENT:
                del table[key]
            else:
                table[key] = old

    def now(self) -> float:
        return self._now

    def add_job(self, job: JobRecord) -> JobRecord:
        self._tables.seq += 1  # a gap after an undone transaction does no harm
        job = msgspec.structs.replace(job, seq=self._tables.seq)
        self._put(self._tables.jobs, job.id, job)
        return job

    def save_job(self, job: JobRecord) -> None:
        self._put(self._tables.jobs, job.id, job)

    def job(self, job_id: str) -> JobRecord | None:
        return self._tables.jobs.get(job_id)

    def list_jobs(self, *, states: Collection[JobState], parent_id: str, limit: int, before_id: str) -> list[JobRecord]:
        before = self.job(before_id)
        family = {one.job_id for one in self._tables.submissions.values() if one.parent_id == parent_id}
        found = [
            job
            for job in self._tables.jobs.values()
            if (not states or job.state in states)
            and (not parent_id or job.id in family)
            and (before is None or job.seq < before.seq)
        ]
        return sorted(found, key=lambda job: -job.seq)[:limit]

    def queue_page(self, *, kinds: Collection[JobKind], after: QueuePosition | None, limit: int) -> list[JobRecord]:
        ready = [job for job in self.queued_jobs() if job.not_before <= self._now and job.spec.kind in kinds]
        if after is not None:
            ready = [job for job in ready if (-job.spec.priority, job.seq) > (-after.priority, after.seq)]
        return sorted(ready, key=queue_order)[:limit]

    def queued_jobs(self) -> list[JobRecord]:
        return [job for job in self._tables.jobs.values() if job.state is JobState.QUEUED]

    def next_ready_at(self) -> float | None:
        return min((job.not_before for job in self.queued_jobs() if job.not_before > self._now), default=None)

    def open_jobs(self, worker_id: str | None = None) -> list[JobRecord]:
        return [
            job for job in self._tables.jobs.values() if job.open and (worker_id is None or job.worker_id == worker_id)
        ]

    def expired_jobs(self) -> list[JobRecord]:
        return [job for job in self.open_jobs() if job.lease_until <= self._now]

    def held_devices(self) -> frozenset[str]:
        return frozenset(job.device_uid for job in self.open_jobs() if job.device_uid)

    def children(self, parent_id: str) -> list[JobRecord]:
        ids = {one.job_id for one in self._tables.submissions.values() if one.parent_id == parent_id}
        return [job for job in self._tables.jobs.values() if job.id in ids and not job.state.terminal]

    def in_flight(self, cache_key: str) -> list[JobRecord]:
        return [job for job in self._tables.jobs.values() if job.cache_key == cache_key and job.state in _JOINABLE]

    def submission(self, principal: str, idempotency_key: str) -> Submission | None:
        return self._tables.keys.get((principal, idempotency_key))

    def add_submission(self, submission: Submission) -> None:
        self._put(self._tables.submissions, submission.id, submission)
        if submission.idempotency_key:
            self._put(self._tables.keys, (submission.principal, submission.idempotency_key), submission)

    def cached(self, cache_key: str) -> JobRecord | None:
        return self._tables.jobs.get(self._tables.results.get(cache_key, ""))

    def remember_result(self, cache_key: str, job_id: str) -> None:
        self._put(self._tables.results, cache_key, job_id)

    def worker(self, worker_id: str) -> WorkerRecord | None:
        return self._tables.workers.get(worker_id)

    def save_worker(self, worker: WorkerRecord) -> None:
        self._put(self._tables.workers, worker.id, worker)

    def workers(self) -> list[WorkerRecord]:
        return [self._tables.workers[key] for key in sorted(self._tables.workers)]

    def add_blobs(self, blobs: Collection[NamedBlob]) -> None:
        for blob in blobs:
            self._put(self._tables.blobs, blob.digest, blob.size_bytes)

    def drop_blobs(self, digests: Collection[str]) -> None:
        for digest in digests:
            if digest in self._tables.blobs:
                self._undo.append((self._tables.blobs, digest, self._tables.blobs.pop(digest)))

    def missing_blobs(self, digests: Collection[str]) -> frozenset[str]:
        return frozenset(digests) - self._tables.blobs.keys()

    def save_token(self, token: TokenRecord) -> None:
        self._put(self._tables.tokens, token.name, token)

    def tokens(self) -> list[TokenRecord]:
        return [self._tables.tokens[key] for key in sorted(self._tables.tokens)]
