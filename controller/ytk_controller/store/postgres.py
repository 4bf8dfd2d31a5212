"""PostgreSQL: several controllers on one database."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import sqlalchemy as sa
import tenacity

from ytk_controller.store.base import Store, Tx
from ytk_controller.store.migrate import upgrade
from ytk_controller.store.sql_tx import SqlTx
from ytk_core.errors import BoardError, NotAvailableError

T = TypeVar("T")

# As many transactions at once as a small server answers well; more controllers multiply it.
_CONNECTIONS = 8
# Deadlocks and lost races for a unique key end after one or two more tries.
_TRIES = 5
_MIGRATION_LOCK = 0x59544B  # "YTK": two controllers that start at once upgrade one after the other
_CONFLICTS = frozenset({"40001", "40P01", "23505"})  # serialization_failure, deadlock_detected, unique_violation


class PostgresStore(Store):
    """A store in PostgreSQL.

    Args:
        url: ``postgresql+psycopg://user@host/database``.
        clock: Gives seconds since the epoch; the database's own clock where left out.

    Raises:
        NotAvailableError: The driver is not installed.
        BoardError: The database does not answer or cannot be upgraded.
    """

    shared = True

    def __init__(self, url: str, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock
        try:
            self._engine = sa.create_engine(url, pool_size=_CONNECTIONS, pool_pre_ping=True)
        except ModuleNotFoundError as err:
            raise NotAvailableError(
                f"the database driver for {sa.make_url(url).drivername} is not installed: {err}",
                hint="pip install 'yasp-toolkit[postgres]', and write the URL as postgresql+psycopg://...",
            ) from err
        try:
            with self._engine.begin() as connection:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
                upgrade(connection)
        except sa.exc.SQLAlchemyError as err:
            self._engine.dispose()
            raise BoardError(
                f"cannot use the database {sa.make_url(url).render_as_string()}: {err}",
                code="database",
                hint="Check that PostgreSQL runs and that the user may create tables.",
            ) from err
        self._pool = ThreadPoolExecutor(_CONNECTIONS, thread_name_prefix="postgres")

    def submit(self, function: Callable[[Tx], T]) -> Future[T]:
        """Run the function in a transaction on a thread of the pool; see :meth:`Store.submit`."""
        return self._pool.submit(self._transact, function)

    def close(self) -> None:
        """Finish what was submitted and close the connections."""
        self._pool.shutdown()
        self._engine.dispose()

    def _transact(self, function: Callable[[Tx], T]) -> T:
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(_is_conflict),
            stop=tenacity.stop_after_attempt(_TRIES),
            wait=tenacity.wait_random(0, 0.05),
            sleep=time.sleep,
            reraise=True,
        )
        try:
            value: T = retrying(self._once, function)
        except sa.exc.SQLAlchemyError as err:
            raise BoardError(
                f"the database failed: {err}", code="database", hint="Check that PostgreSQL runs; then try again."
            ) from err
        return value

    def _once(self, function: Callable[[Tx], T]) -> T:
        with self._engine.begin() as connection:
            return function(SqlTx(connection, self._clock or _clock_of(connection)))


def _clock_of(connection: sa.Connection) -> Callable[[], float]:
    epoch = sa.select(sa.cast(sa.func.extract("epoch", sa.func.clock_timestamp()), sa.Double))
    return lambda: connection.execute(epoch).scalar_one()


def _is_conflict(err: BaseException) -> bool:
    return isinstance(err, sa.exc.DBAPIError) and getattr(err.orig, "sqlstate", None) in _CONFLICTS
