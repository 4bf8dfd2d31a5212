"""First tables: jobs, submissions, result cache, workers, blobs, tokens."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_QUEUED = "state = 'QUEUED'"
_OPEN = "state IN ('LEASED', 'RUNNING', 'CANCELLING')"
_JOINABLE = "state IN ('QUEUED', 'LEASED', 'RUNNING')"
_HOLDING = "device_uid != ''"


def _index(name: str, columns: list[str | sa.TextClause], where: str, *, unique: bool = False) -> None:
    clause = sa.text(where)
    op.create_index(name, "job", columns, unique=unique, sqlite_where=clause, postgresql_where=clause)


def upgrade() -> None:
    op.create_table(
        "job",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("not_before", sa.Double, nullable=False),
        sa.Column("lease_until", sa.Double, nullable=False),
        sa.Column("worker_id", sa.Text, nullable=False),
        sa.Column("device_uid", sa.Text, nullable=False),
        sa.Column("cache_key", sa.Text, nullable=False),
        sa.Column("record", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_job"),
        sa.UniqueConstraint("id", name="uq_job_id"),
        sqlite_autoincrement=True,
    )
    _index("ix_job_queue", [sa.text("priority DESC"), "seq"], _QUEUED)
    _index("ix_job_open", ["worker_id"], _OPEN)
    _index("ix_job_in_flight", ["cache_key"], _JOINABLE)
    _index("uq_job_device", ["device_uid"], _HOLDING, unique=True)
    op.create_table(
        "submission",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("principal", sa.Text, nullable=False),
        sa.Column("idempotency_key", sa.Text),
        sa.Column("parent_id", sa.Text, nullable=False),
        sa.Column("record", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_submission"),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name="fk_submission_job_id"),
        sa.UniqueConstraint("principal", "idempotency_key", name="uq_submission_principal_idempotency_key"),
    )
    op.create_index("ix_submission_parent_id", "submission", ["parent_id"])
    op.create_table(
        "result",
        sa.Column("cache_key", sa.Text, nullable=False),
        sa.Column("job_id", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("cache_key", name="pk_result"),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name="fk_result_job_id"),
    )
    for name, key, *columns in (
        ("worker", "id", sa.Column("record", sa.LargeBinary, nullable=False)),
        ("blob", "digest", sa.Column("size_bytes", sa.BigInteger, nullable=False)),
        ("token", "name", sa.Column("record", sa.LargeBinary, nullable=False)),
    ):
        op.create_table(
            name,
            sa.Column(key, sa.Text, nullable=False),
            *columns,
            sa.PrimaryKeyConstraint(key, name=f"pk_{name}"),
        )


def downgrade() -> None:
    for name in ("token", "blob", "worker", "result", "submission", "job"):
        op.drop_table(name)
