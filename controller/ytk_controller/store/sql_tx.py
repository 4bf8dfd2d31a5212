"""Transactions in SQL, the same code for SQLite and PostgreSQL.

Row locks (``FOR UPDATE``, ``SKIP LOCKED``) are what several controllers on one PostgreSQL need; SQLite has one writer
and its dialect leaves them out.
"""

# ruff: noqa: D102 - the abstract class documents the methods

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from ytk_controller.jobs.model import OPEN_STATES, JobRecord, Submission
from ytk_controller.store import tables
from ytk_controller.store.base import QueuePosition, TokenRecord, Tx, WorkerRecord
from ytk_core.jobs import JobKind, JobState, NamedBlob

_R = TypeVar("_R")

_OPEN = sorted(OPEN_STATES)
_JOINABLE = [JobState.QUEUED, JobState.LEASED, JobState.RUNNING]
_TERMINAL = [state for state in JobState if state.terminal]
_encode = msgspec.json.Encoder().encode
_decode_job = msgspec.json.Decoder(JobRecord).decode
_decode_submission = msgspec.json.Decoder(Submission).decode
_decode_worker = msgspec.json.Decoder(WorkerRecord).decode
_decode_token = msgspec.json.Decoder(TokenRecord).decode

_job = tables.job
_record = sa.select(_job.c.seq, _job.c.record)
_bind = sa.bindparam

# Built once: building a statement costs more than SQLite takes to run it. Only rare and varying queries are built anew.
_JOB = _record.where(_job.c.id == _bind("job_id")).with_for_update()
_ADD_JOB = sa.insert(_job).returning(_job.c.seq)
_SAVE_JOB = (
    sa.update(_job)
    .where(_job.c.id == _bind("job_id"))
    .values({column: _bind(column.name) for column in _job.c if column.name not in {"seq", "id"}})
)
_QUEUE_PAGE = (
    _record.where(
        _job.c.state == JobState.QUEUED,
        _job.c.not_before <= _bind("now"),
        _job.c.kind.in_(_bind("kinds", expanding=True)),
    )
    .order_by(_job.c.priority.desc(), _job.c.seq)
    .limit(_bind("count"))
    .with_for_update(skip_locked=True)
)
_QUEUE_NEXT_PAGE = _QUEUE_PAGE.where(
    sa.or_(
        _job.c.priority < _bind("after_priority"),
        sa.and_(_job.c.priority == _bind("after_priority"), _job.c.seq > _bind("after_seq")),
    )
)
_QUEUED_JOBS = _record.where(_job.c.state == JobState.QUEUED).order_by(_job.c.seq)
_NEXT_READY = sa.select(sa.func.min(_job.c.not_before)).where(
    _job.c.state == JobState.QUEUED, _job.c.not_before > _bind("now")
)
_OPEN_JOBS = _record.where(_job.c.state.in_(_OPEN)).order_by(_job.c.seq).with_for_update()
_OPEN_JOBS_OF = _OPEN_JOBS.where(_job.c.worker_id == _bind("worker_id"))
_EXPIRED = (
    _record.where(_job.c.state.in_(_OPEN), _job.c.lease_until <= _bind("now"))
    .order_by(_job.c.seq)
    .with_for_update(skip_locked=True)
)
_HELD_DEVICES = sa.select(_job.c.device_uid).where(_job.c.device_uid != "")
_FAMILY = sa.select(tables.submission.c.job_id).where(tables.submission.c.parent_id == _bind("parent_id"))
_CHILDREN = _record.where(_job.c.id.in_(_FAMILY), _job.c.state.not_in(_TERMINAL)).order_by(_job.c.seq).with_for_update()
_IN_FLIGHT = (
    _record.where(_job.c.cache_key == _bind("key"), _job.c.state.in_(_JOINABLE)).order_by(_job.c.seq).with_for_update()
)
_SUBMISSION = sa.select(tables.submission.c.record).where(
    tables.submission.c.principal == _bind("principal"), tables.submission.c.idempotency_key == _bind("key")
)
_ADD_SUBMISSION = sa.insert(tables.submission)
_CACHED = _record.join(tables.result, tables.result.c.job_id == _job.c.id).where(
    tables.result.c.cache_key == _bind("key")
)
_WORKER = sa.select(tables.worker.c.record).where(tables.worker.c.id == _bind("worker_id")).with_for_update()
_WORKERS = sa.select(tables.worker.c.record).order_by(tables.worker.c.id)


class SqlTx(Tx):
    """One SQL transaction.

    Args:
        connection: In a transaction, which the caller ends.
        clock: Gives the store's time; called once.
    """

    def __init__(self, connection: sa.Connection, clock: Callable[[], float]) -> None:
        self._connection = connection
        self._clock = clock
        self._now: float | None = None
        self._postgres = connection.dialect.name == "postgresql"

    def now(self) -> float:
        if self._now is None:
            self._now = self._clock()
        return self._now

    # ---- jobs ----

    def add_job(self, job: JobRecord) -> JobRecord:
        seq = self._connection.execute(_ADD_JOB, {"id": job.id, **_columns(job)}).scalar_one()
        return msgspec.structs.replace(job, seq=seq)

    def save_job(self, job: JobRecord) -> None:
        self._connection.execute(_SAVE_JOB, {"job_id": job.id, **_columns(job)})

    def job(self, job_id: str) -> JobRecord | None:
        found = self._jobs(_JOB, job_id=job_id)
        return found[0] if found else None

    def list_jobs(self, *, states: Collection[JobState], parent_id: str, limit: int, before_id: str) -> list[JobRecord]:
        query = _record.order_by(_job.c.seq.desc()).limit(limit)
        if states:
            query = query.where(_job.c.state.in_(sorted(states)))
        if parent_id:
            query = query.where(_job.c.id.in_(_FAMILY.params(parent_id=parent_id)))
        if before_id:
            before = sa.select(_job.c.seq).where(_job.c.id == before_id).scalar_subquery()
            query = query.where(_job.c.seq < sa.func.coalesce(before, sa.literal(2**62)))
        return self._jobs(query)

    def queue_page(self, *, kinds: Collection[JobKind], after: QueuePosition | None, limit: int) -> list[JobRecord]:
        values = {"now": self.now(), "kinds": sorted(kinds), "count": limit}
        if after is None:
            return self._jobs(_QUEUE_PAGE, **values)
        return self._jobs(_QUEUE_NEXT_PAGE, after_priority=after.priority, after_seq=after.seq, **values)

    def queued_jobs(self) -> list[JobRecord]:
        return self._jobs(_QUEUED_JOBS)

    def next_ready_at(self) -> float | None:
        earliest: float | None = self._connection.execute(_NEXT_READY, {"now": self.now()}).scalar_one()
        return earliest

    def open_jobs(self, worker_id: str | None = None) -> list[JobRecord]:
        return self._jobs(_OPEN_JOBS) if worker_id is None else self._jobs(_OPEN_JOBS_OF, worker_id=worker_id)

    def expired_jobs(self) -> list[JobRecord]:
        return self._jobs(_EXPIRED, now=self.now())

    def held_devices(self) -> frozenset[str]:
        return frozenset(self._connection.execute(_HELD_DEVICES).scalars())

    def children(self, parent_id: str) -> list[JobRecord]:
        return self._jobs(_CHILDREN, parent_id=parent_id)

    def in_flight(self, cache_key: str) -> list[JobRecord]:
        if self._postgres:
            # Two controllers that get equal jobs at once have to see each other's.
            lock = sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(cache_key, 0)))
            self._connection.execute(lock)
        return self._jobs(_IN_FLIGHT, key=cache_key)

    # ---- submissions and the result cache ----

    def submission(self, principal: str, idempotency_key: str) -> Submission | None:
        return self._one(_SUBMISSION, _decode_submission, principal=principal, key=idempotency_key)

    def add_submission(self, submission: Submission) -> None:
        self._connection.execute(
            _ADD_SUBMISSION,
            {
                "id": submission.id,
                "job_id": submission.job_id,
                "principal": submission.principal,
                "idempotency_key": submission.idempotency_key or None,
                "parent_id": submission.parent_id,
                "record": _encode(submission),
            },
        )

    def cached(self, cache_key: str) -> JobRecord | None:
        found = self._jobs(_CACHED, key=cache_key)
        return found[0] if found else None

    def remember_result(self, cache_key: str, job_id: str) -> None:
        self._upsert(tables.result, "cache_key", {"cache_key": cache_key, "job_id": job_id})

    # ---- workers, blobs, tokens ----

    def worker(self, worker_id: str) -> WorkerRecord | None:
        return self._one(_WORKER, _decode_worker, worker_id=worker_id)

    def save_worker(self, worker: WorkerRecord) -> None:
        self._upsert(tables.worker, "id", {"id": worker.id, "record": _encode(worker)})

    def workers(self) -> list[WorkerRecord]:
        return [_decode_worker(row) for row in self._connection.execute(_WORKERS).scalars()]

    def add_blobs(self, blobs: Collection[NamedBlob]) -> None:
        for blob in blobs:
            self._upsert(tables.blob, "digest", {"digest": blob.digest, "size_bytes": blob.size_bytes})

    def drop_blobs(self, digests: Collection[str]) -> None:
        self._connection.execute(sa.delete(tables.blob).where(tables.blob.c.digest.in_(sorted(digests))))

    def missing_blobs(self, digests: Collection[str]) -> frozenset[str]:
        wanted = frozenset(digests)
        if not wanted:
            return wanted
        query = sa.select(tables.blob.c.digest).where(tables.blob.c.digest.in_(sorted(wanted)))
        return wanted - frozenset(self._connection.execute(query).scalars())

    def save_token(self, token: TokenRecord) -> None:
        self._upsert(tables.token, "name", {"name": token.name, "record": _encode(token)})

    def tokens(self) -> list[TokenRecord]:
        query = sa.select(tables.token.c.record).order_by(tables.token.c.name)
        return [_decode_token(row) for row in self._connection.execute(query).scalars()]

    # ---- shared ----

    def _jobs(self, query: sa.Select[Any], **values: Any) -> list[JobRecord]:
        rows = self._connection.execute(query, values)
        return [msgspec.structs.replace(_decode_job(row.record), seq=row.seq) for row in rows]

    def _one(self, query: sa.Select[Any], decode: Callable[[bytes], _R], **values: Any) -> _R | None:
        row = self._connection.execute(query, values).scalar_one_or_none()
        return None if row is None else decode(row)

    def _upsert(self, table: sa.Table, key: str, values: dict[str, Any]) -> None:
        dialect = postgresql if self._postgres else sqlite
        insert = dialect.insert(table).values(**values)
        rest = {name: value for name, value in values.items() if name != key}
        self._connection.execute(insert.on_conflict_do_update(index_elements=[key], set_=rest))


def _columns(job: JobRecord) -> dict[str, Any]:
    return {
        "state": job.state,
        "kind": job.spec.kind,
        "priority": job.spec.priority,
        "not_before": job.not_before,
        "lease_until": job.lease_until,
        "worker_id": job.worker_id,
        "device_uid": job.device_uid,
        "cache_key": job.cache_key,
        "record": _encode(job),
    }
