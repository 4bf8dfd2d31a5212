"""SQLite: one writer thread, group commit.

Many small transactions, each with its own fsync, would wait in a row. Here one thread owns the only connection, runs
what has queued up inside savepoints of one transaction, and answers everyone after the one commit.
"""

from __future__ import annotations

import fcntl
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy.pool import StaticPool

from ytk_controller.store.base import Store, Tx
from ytk_controller.store.migrate import upgrade
from ytk_controller.store.sql_tx import SqlTx
from ytk_core.errors import BoardError, UserError

T = TypeVar("T")

# More in one commit would only make the first ones wait longer.
_GROUP = 64


class DatabaseLockedError(UserError):
    """Another controller runs on this SQLite file."""

    default_code = "database_locked"


class _Work(NamedTuple):
    function: Callable[[Tx], Any]
    future: Future[Any]


class SqliteStore(Store):
    """A store in one SQLite file.

    Args:
        path: The file; made, with its tables, where it does not exist. None: in memory, for tests.
        clock: Gives seconds since the epoch.

    Raises:
        DatabaseLockedError: Another controller has the file.
        BoardError: The file cannot be opened or upgraded.
    """

    def __init__(self, path: Path | None, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock_fd = None if path is None else _take_lock(path)
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        try:
            self._engine = _engine(path)
            with self._engine.begin() as connection:
                upgrade(connection)
        except (sa.exc.SQLAlchemyError, sqlite3.Error) as err:
            self._release()
            raise BoardError(
                f"cannot open the database {path}: {err}", code="database", hint="Check the file and its disk."
            ) from err
        self._writer = threading.Thread(target=self._write, name="sqlite-writer", daemon=True)
        self._writer.start()

    def submit(self, function: Callable[[Tx], T]) -> Future[T]:
        """Queue the function for the writer; see :meth:`Store.submit`."""
        future: Future[T] = Future()
        if self._closed.is_set():
            future.set_exception(BoardError("the store is closed", code="shutting_down", hint="Try again."))
        else:
            self._work.put(_Work(function, future))
        return future

    def close(self) -> None:
        """Finish what was submitted, close the file, release its lock."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._work.put(None)
        self._writer.join()
        self._engine.dispose()
        self._release()

    def _release(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def _write(self) -> None:
        with self._engine.connect() as connection:
            while True:
                work = self._work.get()
                if work is None:
                    return
                group, last = self._group(work)
                self._commit(connection, group)
                if last:
                    return

    def _group(self, first: _Work) -> tuple[list[_Work], bool]:
        group = [first]
        while len(group) < _GROUP:
            try:
                work = self._work.get_nowait()
            except queue.Empty:
                break
            if work is None:
                return group, True
            group.append(work)
        return group, False

    def _commit(self, connection: sa.Connection, group: list[_Work]) -> None:
        running = [work for work in group if work.future.set_running_or_notify_cancel()]
        answers: list[tuple[Any, BaseException | None]]
        try:
            with connection.begin():
                answers = [self._run(connection, work) for work in running]
        except Exception as err:  # noqa: BLE001 - nobody would ever hear from a writer that died
            # Nothing of the group happened. Each caller hears so and may try again.
            _roll_back(connection)
            failure = BoardError(
                f"the database did not commit: {err}", code="database", hint="Check the disk of the state directory."
            )
            failure.__cause__ = err
            answers = [(None, failure)] * len(running)
        for work, (value, error) in zip(running, answers, strict=True):
            if error is None:
                work.future.set_result(value)
            else:
                work.future.set_exception(error)

    def _run(self, connection: sa.Connection, work: _Work) -> tuple[Any, BaseException | None]:
        # Straight to the driver: SQLAlchemy's nested transactions cost more than the statements of most functions.
        driver = _driver(connection)
        driver.execute("SAVEPOINT one")
        try:
            value = work.function(SqlTx(connection, self._clock))
        except Exception as err:  # noqa: BLE001 - whatever the function raises belongs to its caller
            driver.execute("ROLLBACK TO one")
            driver.execute("RELEASE one")
            return None, err
        driver.execute("RELEASE one")
        return value, None


def _engine(path: Path | None) -> sa.Engine:
    url = sa.URL.create("sqlite", database=None if path is None else str(path))
    # The writer thread owns the connection; it was made by another thread only to upgrade the schema.
    engine = sa.create_engine(url, poolclass=StaticPool, connect_args={"check_same_thread": False})

    @sa.event.listens_for(engine, "connect")
    def _configure(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # the driver's own BEGIN comes too late for savepoints
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=10000"):
            connection.execute(f"PRAGMA {pragma}")

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _driver(connection: sa.Connection) -> sqlite3.Connection:
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)  # the engine is ours
    return driver


def _roll_back(connection: sa.Connection) -> None:
    # After a COMMIT that failed (a full disk), SQLite's transaction is still open, and SQLAlchemy's is not.
    driver = _driver(connection)
    if driver.in_transaction:
        driver.rollback()


def _take_lock(path: Path) -> int:
    lock_path = path.with_name(path.name + ".lock")
    try:
        lock_fd = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as err:
        raise BoardError(f"cannot open {lock_path}: {err}", code="database", hint="Check --state-dir.") from err
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock_fd)
        raise DatabaseLockedError(
            f"another controller runs on {path}",
            hint="Stop it, choose another --state-dir, or use PostgreSQL (--database) for several controllers.",
        ) from None
    return lock_fd
