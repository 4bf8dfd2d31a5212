"""One contract for every store. YTK_TEST_POSTGRES_URL adds PostgreSQL."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa

from ytk_controller.jobs.model import JobRecord, Submission
from ytk_controller.store import tables
from ytk_controller.store.base import QueuePosition, Store, TokenRecord, Tx, WorkerRecord
from ytk_controller.store.memory import MemoryStore
from ytk_controller.store.sqlite import DatabaseLockedError, SqliteStore
from ytk_core.errors import BoardError, UserError
from ytk_core.jobs import JobKind, JobResult, JobSpec, JobState, NamedBlob
from ytk_core.workers import WorkerDescription

S = JobState
POSTGRES_URL = os.environ.get("YTK_TEST_POSTGRES_URL", "")


def record(
    job_id: str, state: JobState = S.QUEUED, *, kind: JobKind = JobKind.PLUGIN_BUILD, priority: int = 0, **fields
):
    spec = JobSpec(kind=kind, priority=priority, params={"id": job_id})
    return JobRecord(id=job_id, spec=spec, cache_key=fields.pop("cache_key", job_id), state=state, **fields)


class Contract:
    """What every store keeps to; ``clock`` is set by the tests."""

    clock: float

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        self.clock = 100.0
        store = self.make(tmp_path)
        yield store
        store.close()

    def make(self, tmp_path: Path) -> Store:
        raise NotImplementedError

    @staticmethod
    def add(store: Store, *jobs: JobRecord) -> list[JobRecord]:
        return store.run(lambda tx: [tx.add_job(job) for job in jobs])

    def test_a_job_is_found_as_it_was_saved(self, store: Store) -> None:
        result = JobResult(outputs=(NamedBlob(name="o", digest="d", size_bytes=3),), summary={"ms": 1.5})
        (job,) = self.add(store, record("j", result=result, lost_workers=("w",), not_before=1.25))
        assert job.seq > 0
        assert store.run(lambda tx: tx.job("j")) == job
        changed = msgspec.structs.replace(job, state=S.LEASED, worker_id="w", device_uid="d")
        store.run(lambda tx: tx.save_job(changed))
        assert store.run(lambda tx: tx.job("j")) == changed
        assert store.run(lambda tx: tx.job("other")) is None

    def test_what_raises_undoes_all_it_did_and_nothing_else(self, store: Store) -> None:
        self.add(store, record("kept", worker_id="before"))

        def fails(tx: Tx) -> None:
            tx.add_job(record("gone"))
            tx.add_submission(Submission(id="s", job_id="gone", principal="p"))
            kept = tx.job("kept")
            assert kept is not None
            tx.save_job(msgspec.structs.replace(kept, worker_id="after"))
            tx.add_blobs([NamedBlob(name="", digest="b", size_bytes=1)])
            raise UserError("no")

        with pytest.raises(UserError, match="no"):
            store.run(fails)
        kept = store.run(lambda tx: tx.job("kept"))
        assert kept is not None
        assert kept.worker_id == "before"
        assert store.run(lambda tx: tx.job("gone")) is None
        assert store.run(lambda tx: tx.missing_blobs(["b"])) == {"b"}

    def test_a_transaction_sees_its_own_changes(self, store: Store) -> None:
        def work(tx: Tx) -> list[str]:
            tx.add_job(record("a"))
            return [job.id for job in tx.queue_page(kinds=[JobKind.PLUGIN_BUILD], after=None, limit=9)]

        assert store.run(work) == ["a"]

    def test_the_queue_comes_in_order_and_in_pages(self, store: Store) -> None:
        self.add(
            store,
            record("a"),
            record("b", priority=2),
            record("c", priority=1),
            record("d", priority=2),
            record("later", priority=9, not_before=100.5),
            record("other", priority=9, kind=JobKind.ENGINE_BUILD),
            record("held", S.LEASED, priority=9, worker_id="w", lease_until=200.0),
        )

        def pages(tx: Tx) -> list[list[str]]:
            found, after = [], None
            while page := tx.queue_page(kinds=[JobKind.PLUGIN_BUILD], after=after, limit=2):
                found.append([job.id for job in page])
                after = QueuePosition(page[-1].spec.priority, page[-1].seq)
            return found

        assert store.run(pages) == [["b", "d"], ["c", "a"]]
        assert store.run(lambda tx: tx.next_ready_at()) == 100.5
        assert store.run(lambda tx: tx.queue_page(kinds=[], after=None, limit=2)) == []
        self.clock = 101.0
        assert store.run(pages)[0] == ["later", "b"]
        assert store.run(lambda tx: tx.next_ready_at()) is None
        assert {job.id for job in store.run(lambda tx: tx.queued_jobs())} == {"a", "b", "c", "d", "later", "other"}

    def test_held_and_expired_jobs_and_devices(self, store: Store) -> None:
        self.add(
            store,
            record("a", S.LEASED, worker_id="w1", lease_until=99.0, device_uid="d1"),
            record("b", S.RUNNING, worker_id="w1", lease_until=101.0),
            record("c", S.CANCELLING, worker_id="w2", lease_until=100.0, device_uid="d2"),
            record("d", S.SUCCEEDED, worker_id="w1", lease_until=0.0),
            record("e"),
        )
        assert [job.id for job in store.run(lambda tx: tx.open_jobs())] == ["a", "b", "c"]
        assert [job.id for job in store.run(lambda tx: tx.open_jobs("w1"))] == ["a", "b"]
        assert [job.id for job in store.run(lambda tx: tx.expired_jobs())] == ["a", "c"]
        assert store.run(lambda tx: tx.held_devices()) == {"d1", "d2"}

    def test_children_are_those_a_job_submitted_and_that_go_on(self, store: Store) -> None:
        self.add(store, record("p"), record("a"), record("b", S.SUCCEEDED), record("c"))

        def submissions(tx: Tx) -> None:
            for number, (job_id, parent) in enumerate([("a", "p"), ("b", "p"), ("c", ""), ("a", "other")]):
                tx.add_submission(Submission(id=f"s{number}", job_id=job_id, principal="x", parent_id=parent))

        store.run(submissions)
        assert [job.id for job in store.run(lambda tx: tx.children("p"))] == ["a"]
        assert [job.id for job in store.run(lambda tx: tx.children("other"))] == ["a"]

        def listed(**filters) -> list[str]:
            fields = {"states": (), "parent_id": "", "limit": 10, "before_id": ""} | filters
            return [job.id for job in store.run(lambda tx: tx.list_jobs(**fields))]

        assert listed() == ["c", "b", "a", "p"]
        assert listed(parent_id="p") == ["b", "a"]
        assert listed(states=[S.SUCCEEDED, S.FAILED]) == ["b"]
        assert listed(limit=2) == ["c", "b"]
        assert listed(before_id="b") == ["a", "p"]
        assert listed(before_id="unknown") == ["c", "b", "a", "p"]

    def test_equal_jobs_in_flight_and_the_result_cache(self, store: Store) -> None:
        self.add(
            store,
            record("a", S.SUCCEEDED, cache_key="k"),
            record("b", S.RUNNING, cache_key="k", worker_id="w"),
            record("c", S.CANCELLING, cache_key="k", worker_id="w"),
            record("d", cache_key="k"),
            record("e", cache_key="other"),
        )
        assert [job.id for job in store.run(lambda tx: tx.in_flight("k"))] == ["b", "d"]
        assert store.run(lambda tx: tx.cached("k")) is None
        for job_id in ("a", "b"):
            store.run(lambda tx, job_id=job_id: tx.remember_result("k", job_id))
            found = store.run(lambda tx: tx.cached("k"))
            assert found is not None
            assert found.id == job_id

    def test_submissions_by_key_and_principal(self, store: Store) -> None:
        self.add(store, record("a"))
        one = Submission(id="s1", job_id="a", principal="alice", idempotency_key="k", spec_digest="x", joined=True)
        store.run(lambda tx: tx.add_submission(one))
        for number in range(2):  # no key: no collision
            bare = Submission(id=f"n{number}", job_id="a", principal="alice")
            store.run(lambda tx, bare=bare: tx.add_submission(bare))
        assert store.run(lambda tx: tx.submission("alice", "k")) == one
        assert store.run(lambda tx: tx.submission("bob", "k")) is None

    def test_workers_and_tokens_are_replaced_by_id(self, store: Store) -> None:
        for number in (1, 2):
            for worker_id in ("w2", "w1"):
                worker = WorkerRecord(
                    description=WorkerDescription(worker_id=worker_id, role="r", slots=number),
                    session_id="s",
                    connected=True,
                    last_seen=float(number),
                )
                store.run(lambda tx, worker=worker: tx.save_worker(worker))
            token = TokenRecord(name="n", scope="client", sha256=f"hash{number}")
            store.run(lambda tx, token=token: tx.save_token(token))
        assert [(w.id, w.last_seen) for w in store.run(lambda tx: tx.workers())] == [("w1", 2.0), ("w2", 2.0)]
        found = store.run(lambda tx: tx.worker("w1"))
        assert found is not None
        assert found.description.slots == 2
        assert store.run(lambda tx: tx.worker("w3")) is None
        assert [t.sha256 for t in store.run(lambda tx: tx.tokens())] == ["hash2"]

    def test_blobs_come_and_go(self, store: Store) -> None:
        blobs = [NamedBlob(name="x", digest=digest, size_bytes=1 << 40) for digest in ("a", "b")]
        store.run(lambda tx: tx.add_blobs(blobs))
        store.run(lambda tx: tx.add_blobs(blobs[:1]))
        assert store.run(lambda tx: tx.missing_blobs(["a", "b", "c"])) == {"c"}
        store.run(lambda tx: tx.drop_blobs(["b", "c"]))
        assert store.run(lambda tx: tx.missing_blobs(["a", "b"])) == {"b"}
        assert store.run(lambda tx: tx.missing_blobs([])) == frozenset()

    def test_time_stands_still_within_a_transaction(self, store: Store) -> None:
        def work(tx: Tx) -> tuple[float, float]:
            first = tx.now()
            self.clock += 5
            return first, tx.now()

        assert store.run(work) == (100.0, 100.0)
        assert store.run(lambda tx: tx.now()) == 105.0

    async def test_the_loop_can_wait_for_a_transaction(self, store: Store) -> None:
        assert await store.arun(lambda tx: tx.now()) == 100.0
        with pytest.raises(ZeroDivisionError):
            await store.arun(lambda _tx: 1 / 0)

    def test_many_threads_add_up(self, store: Store) -> None:
        self.add(store, record("count", attempts=0))

        def bump(tx: Tx) -> None:
            job = tx.job("count")
            assert job is not None
            tx.save_job(msgspec.structs.replace(job, attempts=job.attempts + 1))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: store.run(bump), range(60)))
        job = store.run(lambda tx: tx.job("count"))
        assert job is not None
        assert job.attempts == 60


class TestMemory(Contract):
    def make(self, tmp_path: Path) -> Store:
        return MemoryStore(lambda: self.clock)


class TestSqlite(Contract):
    def make(self, tmp_path: Path) -> Store:
        return SqliteStore(tmp_path / "jobs.db", lambda: self.clock)

    def test_everything_is_there_after_a_restart(self, store: Store, tmp_path: Path) -> None:
        self.add(store, record("a"), record("b"))
        store.close()
        again = self.make(tmp_path)
        assert [job.id for job in again.run(lambda tx: tx.queued_jobs())] == ["a", "b"]
        (third,) = self.add(again, record("c"))
        assert third.seq == 3
        again.close()

    def test_a_second_controller_on_the_file_is_refused(self, store: Store, tmp_path: Path) -> None:
        del store
        with pytest.raises(DatabaseLockedError, match=r"jobs\.db"):
            self.make(tmp_path)

    def test_what_was_submitted_before_close_is_done_and_nothing_after(self, store: Store) -> None:
        futures = [store.submit(lambda tx, n=n: tx.add_job(record(f"j{n}"))) for n in range(100)]
        store.close()
        assert [future.result().id for future in futures] == [f"j{n}" for n in range(100)]
        with pytest.raises(BoardError, match="closed"):
            store.run(lambda tx: tx.now())

    def test_transactions_are_committed_in_groups(self, store: SqliteStore) -> None:
        commits = []
        sa.event.listen(store._engine, "commit", commits.append)
        hold, held = threading.Event(), threading.Event()

        def first(tx: Tx) -> None:
            held.set()
            hold.wait(10)

        opening = store.submit(first)
        held.wait(10)
        futures = [store.submit(lambda tx, n=n: tx.add_job(record(f"j{n}"))) for n in range(50)]
        hold.set()
        for future in (opening, *futures):
            future.result(10)
        assert len(commits) == 2

    def test_a_commit_that_fails_is_heard_by_everyone_of_the_group(self, store: SqliteStore) -> None:
        def full(_connection) -> None:
            raise sa.exc.OperationalError("COMMIT", {}, Exception("database or disk is full"))

        sa.event.listen(store._engine, "commit", full)
        hold, held = threading.Event(), threading.Event()

        def first(tx: Tx) -> None:
            held.set()
            hold.wait(10)
            tx.add_job(record("first"))

        futures = [store.submit(first), store.submit(lambda tx: tx.add_job(record("second")))]
        held.wait(10)
        hold.set()
        for future in futures:
            with pytest.raises(BoardError, match="disk is full"):
                future.result(10)
        sa.event.remove(store._engine, "commit", full)
        assert store.run(lambda tx: tx.queued_jobs()) == []
        self.add(store, record("after"))

    def test_two_jobs_cannot_hold_one_device_whatever_the_scheduler_says(self, store: Store) -> None:
        with pytest.raises(sa.exc.IntegrityError):
            self.add(store, record("a", S.LEASED, device_uid="d"), record("b", S.LEASED, device_uid="d"))

    def test_a_broken_file_is_a_clear_error_and_leaves_no_lock(self, tmp_path: Path) -> None:
        path = tmp_path / "broken.db"
        path.write_bytes(b"this is no database" * 100)
        for _ in range(2):
            with pytest.raises(BoardError, match=r"cannot open the database .*broken\.db"):
                SqliteStore(path)

    def test_the_migrations_give_the_tables_of_the_code(self, store: SqliteStore) -> None:
        from alembic.autogenerate import compare_metadata
        from alembic.migration import MigrationContext

        with store._engine.connect() as connection:
            assert compare_metadata(MigrationContext.configure(connection), tables.metadata) == []


if POSTGRES_URL:

    class TestPostgres(Contract):
        def make(self, tmp_path: Path) -> Store:
            from ytk_controller.store.postgres import PostgresStore

            store = PostgresStore(POSTGRES_URL, lambda: self.clock)
            with store._engine.begin() as connection:
                for table in reversed(tables.metadata.sorted_tables):
                    connection.execute(sa.delete(table))
            return store

        def test_time_comes_from_the_database(self, store: Store) -> None:
            from ytk_controller.store.postgres import PostgresStore

            other = PostgresStore(POSTGRES_URL)
            assert other.run(lambda tx: tx.now()) > 1_700_000_000
            other.close()

        def test_two_controllers_never_give_one_job_twice(self, store: Store) -> None:
            from ytk_controller.jobs import working
            from ytk_controller.jobs.model import Policy
            from ytk_controller.jobs.turn import Rules, Turn
            from ytk_controller.scheduling.scheduler import FreeWorker
            from ytk_controller.store.postgres import PostgresStore
            from ytk_core.workers import Hello

            other = PostgresStore(POSTGRES_URL, lambda: self.clock)
            rules = Rules(policy=Policy(), toolchain="t")
            self.add(store, *(record(f"j{n}") for n in range(60)))
            workers = [
                WorkerDescription(worker_id=f"w{n}", role="r", kinds=(JobKind.PLUGIN_BUILD,), slots=60)
                for n in range(4)
            ]
            for one in workers:
                hello = Hello(worker=one, session_id="s")
                store.run(lambda tx, hello=hello: working.hello(Turn(tx, rules, "t"), hello))

            def claims(number: int) -> list[str]:
                free = FreeWorker(worker=workers[number % 4], session_id="s", claim_ids=(f"c{number}",))
                answers = (store, other)[number % 2].run(lambda tx: working.dispatch(Turn(tx, rules, "t"), [free]))
                return [given.job_id for given, _ in answers]

            given: list[str] = []
            with ThreadPoolExecutor(8) as pool:
                # A round that finds the head of the queue locked gives nothing; the dispatcher asks again.
                for start in range(0, 800, 80):
                    given += [job_id for found in pool.map(claims, range(start, start + 80)) for job_id in found]
            other.close()
            assert len(given) == len(set(given))
            jobs = store.run(lambda tx: tx.open_jobs())
            assert {job.id for job in jobs} == set(given)
            assert all(job.fence == 1 for job in jobs)
            assert len(given) == 60
