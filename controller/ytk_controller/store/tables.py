"""The SQL schema. Columns are what queries need; ``record`` is the whole value as JSON."""

from __future__ import annotations

import sqlalchemy as sa

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    }
)

# SQLite gives out row ids only for a column of exactly the type INTEGER.
_BigId = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

job = sa.Table(
    "job",
    metadata,
    sa.Column("seq", _BigId, primary_key=True, autoincrement=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("priority", sa.Integer, nullable=False),
    sa.Column("not_before", sa.Double, nullable=False),
    sa.Column("lease_until", sa.Double, nullable=False),
    sa.Column("worker_id", sa.Text, nullable=False),
    sa.Column("device_uid", sa.Text, nullable=False),
    sa.Column("cache_key", sa.Text, nullable=False),
    sa.Column("record", sa.LargeBinary, nullable=False),
    sqlite_autoincrement=True,
)

_queued = job.c.state == "QUEUED"
sa.Index(
    "ix_job_queue",
    job.c.priority.desc(),
    job.c.seq,
    sqlite_where=_queued,
    postgresql_where=_queued,
)
_open = job.c.state.in_(["LEASED", "RUNNING", "CANCELLING"])
sa.Index("ix_job_open", job.c.worker_id, sqlite_where=_open, postgresql_where=_open)
_joinable = job.c.state.in_(["QUEUED", "LEASED", "RUNNING"])
sa.Index("ix_job_in_flight", job.c.cache_key, sqlite_where=_joinable, postgresql_where=_joinable)
# One measuring job per device is a constraint, not a habit of the scheduler: two controllers cannot both give it away.
_holding = job.c.device_uid != ""
sa.Index("uq_job_device", job.c.device_uid, unique=True, sqlite_where=_holding, postgresql_where=_holding)

submission = sa.Table(
    "submission",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("job_id", sa.Text, sa.ForeignKey("job.id"), nullable=False),
    sa.Column("principal", sa.Text, nullable=False),
    # NULL where the caller sent none: NULLs do not collide.
    sa.Column("idempotency_key", sa.Text),
    sa.Column("parent_id", sa.Text, nullable=False, index=True),
    sa.Column("record", sa.LargeBinary, nullable=False),
    sa.UniqueConstraint("principal", "idempotency_key"),
)

result = sa.Table(
    "result",
    metadata,
    sa.Column("cache_key", sa.Text, primary_key=True),
    sa.Column("job_id", sa.Text, sa.ForeignKey("job.id"), nullable=False),
)

worker = sa.Table(
    "worker",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("record", sa.LargeBinary, nullable=False),
)

blob = sa.Table(
    "blob",
    metadata,
    sa.Column("digest", sa.Text, primary_key=True),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
)

token = sa.Table(
    "token",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("record", sa.LargeBinary, nullable=False),
)
