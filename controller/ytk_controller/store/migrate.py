"""Brings a database to the schema of this version."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

MIGRATIONS = Path(__file__).parents[1] / "migrations"


def upgrade(connection: sa.Connection) -> None:
    """Run the migrations that a database lacks, in the caller's transaction.

    Raises:
        sqlalchemy.exc.SQLAlchemyError: The database refused one.
    """
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
