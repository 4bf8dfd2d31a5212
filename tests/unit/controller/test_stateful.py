"""The job machine in a hostile world, on both stores; and the proof that the world sees a broken machine."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from ytk_controller.jobs import submitting, working
from ytk_controller.jobs.events import CancelRequested, EndChildren, Renewed
from ytk_controller.jobs.machine import JobMachine
from ytk_controller.jobs.model import Policy
from ytk_controller.jobs.turn import Turn
from ytk_controller.scheduling.scheduler import Round, matches
from ytk_controller.store import tables
from ytk_controller.store.base import Store
from ytk_controller.store.memory import MemoryStore
from ytk_controller.store.sqlite import SqliteStore

from fakes.store_world import World

# The nightly sweep: YTK_STATEFUL_EXAMPLES=5000 pytest --timeout 0 -k holds_in (a minute of processor time per 3500).
POSTGRES_URL = os.environ.get("YTK_TEST_POSTGRES_URL", "")
EXAMPLES = int(os.environ.get("YTK_STATEFUL_EXAMPLES", "0"))


def _settings(examples: int, *, shrink: bool = True) -> settings:
    phases = [Phase.generate, Phase.shrink] if shrink else [Phase.generate]
    return settings(
        max_examples=EXAMPLES or examples,
        stateful_step_count=40,
        deadline=None,
        database=None,
        derandomize=not EXAMPLES,
        print_blob=False,
        report_multiple_bugs=False,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )


class MemoryWorld(World):
    def make_store(self, clock: Callable[[], float]) -> MemoryStore:
        return MemoryStore(clock)


class SqliteWorld(World):
    def make_store(self, clock: Callable[[], float]) -> SqliteStore:
        # tmpfs where there is one: what is tested is the code, not the disk.
        shared_memory = Path("/dev/shm")
        self.directory = Path(tempfile.mkdtemp(dir=shared_memory if shared_memory.is_dir() else None))
        return SqliteStore(self.directory / "jobs.db", clock)

    def reopen_store(self) -> None:
        self.store.close()
        self.store = SqliteStore(self.directory / "jobs.db", lambda: self.now)

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "directory"):
            shutil.rmtree(self.directory)


class PostgresWorld(World):
    def make_store(self, clock: Callable[[], float]) -> Store:
        from ytk_controller.store.postgres import PostgresStore

        store = PostgresStore(POSTGRES_URL, clock)
        with store._engine.begin() as connection:
            for table in reversed(tables.metadata.sorted_tables):
                connection.execute(sa.delete(table))
        return store


def test_the_machine_holds_in_memory() -> None:
    run_state_machine_as_test(MemoryWorld, settings=_settings(100))


def test_the_machine_holds_in_sqlite() -> None:
    run_state_machine_as_test(SqliteWorld, settings=_settings(12))


@pytest.mark.skipif(not POSTGRES_URL, reason="YTK_TEST_POSTGRES_URL names no server")
def test_the_machine_holds_in_postgres() -> None:
    run_state_machine_as_test(PostgresWorld, settings=_settings(12))


# ---- seeded faults: each is a bug that somebody could write --------------------------------------------------------


class NoNewFence(JobMachine):
    def _next_fence(self):
        return max(1, self.job.fence)


class NoFenceCheck(JobMachine):
    def _holds(self, worker_id, fence):
        return self.job.open and self.job.worker_id == worker_id


class NoHolderCheck(JobMachine):
    def _holds(self, worker_id, fence):
        return self.job.open and self.job.fence == fence


class NeverPoisoned(JobMachine):
    def _poisoned(self, lost):
        return False


class PoisonedByOneWorker(JobMachine):
    def _poisoned(self, lost):
        return self.job.attempts >= 2


class RetriesEverything(JobMachine):
    def _retryable(self, failure):
        return self.job.attempts < self._policy.max_attempts


class ForgetsItsCommit(JobMachine):
    def handle(self, event):
        commands = super().handle(event)
        self.job = msgspec.structs.replace(
            self.job, last_commit=self.job.last_commit and msgspec.structs.replace(self.job.last_commit, fingerprint="")
        )
        return commands


class CancelIsForgotten(JobMachine):
    def _to(self, event, new, **changes):
        super()._to(event, self.job.state if new == "CANCELLING" else new, **changes)

    def handle(self, event):
        if isinstance(event, CancelRequested) and self.job.open:
            return ()
        return super().handle(event)


class RenewalIsForgotten(JobMachine):
    def handle(self, event):
        return () if isinstance(event, Renewed) else super().handle(event)


class LostParentsChildrenLiveOn(JobMachine):
    def _requeue(self, event, worker_id, **changes):
        commands = super()._requeue(event, worker_id, **changes)
        return tuple(command for command in commands if not isinstance(command, EndChildren))


MACHINES = (
    NoNewFence,
    NoFenceCheck,
    NoHolderCheck,
    NeverPoisoned,
    PoisonedByOneWorker,
    RetriesEverything,
    ForgetsItsCommit,
    CancelIsForgotten,
    RenewalIsForgotten,
    LostParentsChildrenLiveOn,
)


def _dead_process_keeps_jobs(turn, message):
    everything = tuple(job.lease for job in turn.tx.open_jobs(message.worker.worker_id))
    return _hello(turn, msgspec.structs.replace(message, running=everything))[: len(message.running)]


_hello = working.hello

# name -> (object, attribute, what stands in its place)
PATCHES = {
    "no_backoff": (Policy, "backoff", lambda self, attempts: 0.0),
    "no_device_exclusivity": (Round, "begin", classmethod(lambda cls, free, live, busy: _round(free, live))),
    "tries_again_on_the_same_worker": (Round, "_may_take", lambda self, worker, job: matches(worker, job.spec)),
    "more_jobs_than_slots": (working, "_within_slots", lambda free, held: free),
    "drained_workers_serve": (working, "_serves", lambda worker, free: worker is not None),
    "children_live_on": (Turn, "end_children", lambda self, parent_id: None),
    "one_cancel_ends_it_for_all": (
        submitting,
        "cancel",
        lambda turn, job_id, _submission_id: _cancel(turn, job_id, ""),
    ),
    "no_output_check": (working, "_check_outputs", lambda turn, result: None),
    "no_idempotency": (submitting, "_submitted_before", lambda turn, request, digest: None),
    "no_join": (submitting, "_join", lambda turn, key, spec, submission: None),
    "joins_its_ancestor": (submitting, "_ancestors", lambda turn, job_id: set()),
    "claim_is_not_repeatable": (working, "repeated_claim", lambda turn, worker_id, session_id, claim_id: None),
    "old_sessions_are_served": (working, "_session", lambda turn, worker_id, session_id: turn.tx.worker(worker_id)),
    "dead_process_keeps_jobs": (working, "hello", _dead_process_keeps_jobs),
    "no_cache": (submitting, "usable_cached", lambda turn, key: None),
}
_cancel = submitting.cancel
_begin = Round.begin.__func__


def _round(free, live):
    return _begin(Round, free, live, ())


def _is_seen(world: type[World]) -> None:
    with pytest.raises(Exception) as caught:
        run_state_machine_as_test(world, settings=_settings(400, shrink=False))
    assert "Flaky" not in type(caught.value).__name__


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.__name__)
def test_the_world_sees_a_broken_machine(machine) -> None:
    _is_seen(type("Broken", (MemoryWorld,), {"machine": machine}))


@pytest.mark.parametrize("fault", PATCHES)
def test_the_world_sees_a_broken_rule(fault, monkeypatch) -> None:
    owner, name, replacement = PATCHES[fault]
    monkeypatch.setattr(owner, name, replacement)
    _is_seen(MemoryWorld)
