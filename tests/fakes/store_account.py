"""The account that the world of the stateful test keeps, and what has to hold by it.

It knows nothing of how the machine works: who was given what, who asked for what, and what was promised.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant

from ytk_controller.jobs import working
from ytk_controller.jobs.machine import JobMachine
from ytk_controller.jobs.model import JobRecord, Policy
from ytk_controller.jobs.submitting import SubmitRequest
from ytk_controller.jobs.turn import Rules, Turn
from ytk_controller.scheduling.scheduler import matches
from ytk_controller.store.base import Store, Tx
from ytk_core.jobs import JobKind, JobSpec, JobState, Lease
from ytk_core.workers import Assignment, Hello, WorkerDescription

# Workers are never forgotten: the world's partitions last for as long as they like.
POLICY = Policy(
    worker_memory_s=1e9, lease_s=30, heartbeat_s=5, max_attempts=4, poison_workers=2, backoff_s=2, backoff_cap_s=60
)
GENERATE, EVALUATE, BUILD = JobKind.KERNEL_GENERATE, JobKind.KERNEL_EVALUATE, JobKind.PLUGIN_BUILD
PROFILE = JobKind.ENGINE_PROFILE

# a1 and a2 are two agents of one machine: they share its device. Only a0 profiles: what it loses comes back to it.
WORKERS = {
    "a0": WorkerDescription(worker_id="a0", role="gaia", kinds=(GENERATE, BUILD, PROFILE), slots=2),
    "a1": WorkerDescription(worker_id="a1", role="gaia", kinds=(EVALUATE, BUILD, GENERATE), device_uid="d", slots=1),
    "a2": WorkerDescription(worker_id="a2", role="gaia", kinds=(EVALUATE, BUILD), device_uid="d", slots=2),
}
SPECS = (
    JobSpec(kind=BUILD, params={"n": 0}),
    JobSpec(kind=BUILD, params={"n": 1}, priority=1),
    JobSpec(kind=EVALUATE, params={"n": 2}, measuring=True),
    JobSpec(kind=EVALUATE, params={"n": 3}, measuring=True),
    JobSpec(kind=GENERATE, params={"n": 4}),
    JobSpec(kind=GENERATE, params={"n": 5}),
    JobSpec(kind=PROFILE, params={"n": 6}),
)
# The world's own table: what may follow what.
FOLLOWS = {
    JobState.QUEUED: {JobState.LEASED, JobState.CANCELLED},
    JobState.LEASED: {JobState.RUNNING, JobState.CANCELLING, JobState.QUEUED, JobState.FAILED, JobState.POISONED},
    JobState.RUNNING: {JobState.CANCELLING, JobState.QUEUED, JobState.SUCCEEDED, JobState.FAILED, JobState.POISONED},
    JobState.CANCELLING: {JobState.CANCELLED},
}


@dataclass
class Agent:
    """One agent process, as it sees itself."""

    number: int = 1
    held: dict[str, Assignment] = field(default_factory=dict)
    drained: bool = False

    def session(self, worker_id: str, *, older: int = 0) -> str:
        return f"{worker_id}-{self.number - older}"


@dataclass
class Wish:
    """One submission that was made."""

    id: str
    job_id: str
    parent: Lease | None
    detached: bool = False


class Account(RuleBasedStateMachine):
    """State and checks; the rules come from the world, the store from its subclasses."""

    machine: type[JobMachine] = JobMachine

    def make_store(self, clock: Callable[[], float]) -> Store:
        raise NotImplementedError

    def reopen_store(self) -> None:
        """Open the store anew, as after a restart; stores that live in memory stay."""

    @initialize()
    def set_up(self) -> None:
        self.now = 1000.0
        self.store = self.make_store(lambda: self.now)
        self.rules_ = Rules(policy=POLICY, toolchain="test", machine=self.machine)
        self.agents = {worker_id: Agent() for worker_id in WORKERS}
        self.heard: dict[str, float] = {}
        self.zombies: list[tuple[str, Assignment]] = []
        self.wishes: list[Wish] = []
        self.keys: dict[str, tuple[int, str, str]] = {}
        self.given: dict[tuple[str, int], str] = {}  # lease -> worker
        self.renewed: dict[tuple[str, int], float] = {}
        self.cancelled: set[str] = set()
        self.waits: dict[str, float] = {}  # job -> earliest time of its next attempt
        self.commits: list[tuple[str, Assignment, object, JobState]] = []
        self.counter = 0
        for worker_id in WORKERS:
            self.hello(worker_id)

    @staticmethod
    def agree(holds: bool, what: str) -> None:
        assert holds, what

    def turn(self, function: Callable[[Turn], object]):
        return self.store.run(lambda tx: function(Turn(tx, self.rules_, "test")))

    def jobs(self) -> dict[str, JobRecord]:
        def read(tx: Tx) -> list[JobRecord]:
            return tx.list_jobs(states=(), parent_id="", limit=10_000, before_id="")

        return {job.id: job for job in self.store.run(read)}

    def number(self) -> int:
        self.counter += 1
        return self.counter

    def hello(self, worker_id: str, *running: Lease):
        agent = self.agents[worker_id]
        self.heard[worker_id] = self.now
        message = Hello(worker=WORKERS[worker_id], session_id=agent.session(worker_id), running=running)
        return self.turn(lambda turn: working.hello(turn, message))

    def pick_held(self, which: int) -> tuple[str, Assignment]:
        held = [(w, assignment) for w, agent in self.agents.items() for assignment in agent.held.values()]
        return held[which % len(held)]

    def is_current(self, jobs: dict[str, JobRecord], worker_id: str, lease: Lease) -> bool:
        """By the world's account: given to this worker, to nobody after it, and the job is still held."""
        later = [fence for (job_id, fence) in self.given if job_id == lease.job_id and fence > lease.fence]
        job = jobs[lease.job_id]
        return job.open and not later and self.given.get((lease.job_id, lease.fence)) == worker_id

    def over(self, job_id: str, *, requeued: bool, attempts: int) -> None:
        """An attempt ended: whoever waited for it as its child's submitter is gone."""
        for wish in self.wishes:
            wish.detached |= wish.parent is not None and wish.parent.job_id == job_id
        self.settle()
        if requeued:
            self.waits[job_id] = self.now + min(60.0, 2.0 * 2.0 ** (attempts - 1))

    def settle(self) -> None:
        """A job that nobody wants wants nothing itself, and so on down the tree."""
        while True:
            wanted = {wish.job_id for wish in self.wishes if not wish.detached}
            orphans = [w for w in self.wishes if not w.detached and w.parent and w.parent.job_id not in wanted]
            if not orphans:
                return
            for wish in orphans:
                wish.detached = True

    def let_go(self, worker_id: str, assignment: Assignment) -> None:
        if self.agents[worker_id].held.get(assignment.lease.job_id) == assignment:
            del self.agents[worker_id].held[assignment.lease.job_id]
        self.zombies.append((worker_id, assignment))

    # ---- answers ----

    def check_answer(self, before: dict[str, JobRecord], spec: JobSpec, request: SubmitRequest, answer) -> None:
        equal = [job for job in before.values() if (job.spec.kind, job.spec.params) == (spec.kind, spec.params)]
        family = self.ancestors(request.parent_id)
        assert answer.job.id not in family, "a job waits for itself"
        joinable = [job for job in equal if job.state in {"QUEUED", "LEASED", "RUNNING"} and job.id not in family]
        succeeded = [job for job in equal if job.state is JobState.SUCCEEDED]
        if spec.no_cache:
            assert not answer.joined
            assert not answer.job.from_cache
        elif joinable:
            assert answer.joined, "an equal job in flight was not joined"
            assert answer.job.id in {job.id for job in joinable}
        elif succeeded:
            assert answer.job.from_cache, "an equal job was not answered from the cache"
            assert answer.job.result in [job.result for job in succeeded]
        else:
            assert answer.job.state is JobState.QUEUED

    def ancestors(self, job_id: str) -> set[str]:
        found: set[str] = set()
        todo = {job_id} - {""}
        while todo:
            found |= todo
            waiting = [wish for wish in self.wishes if wish.job_id in todo and not wish.detached]
            todo = {wish.parent.job_id for wish in waiting if wish.parent} - found
        return found

    def check_assignment(self, before, assigned, assignment: Assignment, *, alone: bool) -> None:
        job = before[assigned.job_id]
        worker_id = assigned.worker_id
        lease = assignment.lease
        assert not self.agents[worker_id].drained, "a drained worker got work"
        assert job.state is JobState.QUEUED
        assert self.now >= self.waits.get(job.id, 0.0), "the backoff was not kept"
        assert (lease.job_id, lease.fence) not in self.given, "a fence was given twice"
        fences = [fence for (job_id, fence) in self.given if job_id == job.id]
        assert lease.fence > max(fences, default=0), "a fence did not grow"
        assert matches(WORKERS[worker_id], job.spec)
        if worker_id in job.excluded_workers:
            heard = [w for w in WORKERS if self.now - self.heard[w] <= POLICY.lease_s and not self.agents[w].drained]
            others = [w for w in heard if w not in job.excluded_workers]
            assert not any(matches(WORKERS[w], job.spec) for w in others), "tried again on the worker that failed"
        if alone:
            ready = [
                other
                for other in before.values()
                if other.state is JobState.QUEUED
                and other.not_before <= self.now
                and other.spec.kind in WORKERS[worker_id].kinds
                and not other.spec.measuring
                and not other.excluded_workers
            ]
            assert job.spec.priority >= max((other.spec.priority for other in ready), default=-99), (
                "not the most urgent"
            )
        self.given[lease.job_id, lease.fence] = worker_id
        self.renewed[lease.job_id, lease.fence] = self.now

    def check_commit(self, job: JobRecord, word: str, state: JobState, *, upload: bool) -> None:
        if job.state is JobState.CANCELLING:
            assert state is JobState.CANCELLED, "a cancelled job ended otherwise"
        elif word == "ok":
            assert upload, "a result without its outputs was accepted"
            assert state is JobState.SUCCEEDED
        elif word == "yours" or job.attempts >= POLICY.max_attempts:
            assert state is JobState.FAILED, "a failure that is not the board's was tried again"
        else:
            assert state is JobState.QUEUED

    # ---- what has to hold ----

    @invariant()
    def everything_adds_up(self) -> None:
        if hasattr(self, "store"):
            jobs = self.jobs()
            present = self.store.run(lambda tx: tx.held_devices())
            for job in jobs.values():
                self.check_history(job)
                self.check_end(job)
                self.check_submitters(job)
            self.check_exclusive(jobs, present)

    def check_history(self, job: JobRecord) -> None:
        states = [step.new for step in job.history]
        assert states[-1] is job.state, "the history does not end in the state"
        for old, new in itertools.pairwise(states):
            assert new in FOLLOWS.get(old, set()), f"{old} -> {new}"
        given = [fence for (job_id, fence) in self.given if job_id == job.id]
        assert job.fence == max(given, default=0)
        assert job.attempts == len(given) <= POLICY.max_attempts
        assert states.count(JobState.LEASED) == job.attempts

    def check_end(self, job: JobRecord) -> None:
        distinct = set(job.lost_workers)
        assert len(distinct) == len(job.lost_workers), "a worker was counted twice"
        if job.state is JobState.POISONED:
            assert len(distinct) >= POLICY.poison_workers, "poisoned by fewer than two workers"
        elif job.state is not JobState.CANCELLED:
            assert len(distinct) < POLICY.poison_workers, "two workers were lost and a third is tried"
        if job.state is JobState.SUCCEEDED:
            assert job.result is not None
            assert job.id not in self.cancelled, "a job succeeded after its cancel was acknowledged"
            digests = [blob.digest for blob in job.result.outputs]
            assert not self.store.run(lambda tx: tx.missing_blobs(digests)), "a result without its outputs"
        elif job.state.terminal:
            assert job.failure is not None

    def check_submitters(self, job: JobRecord) -> None:
        wanting = {wish.id for wish in self.wishes if wish.job_id == job.id and not wish.detached}
        if job.state in {JobState.CANCELLED, JobState.CANCELLING}:
            assert not wanting, "a job was cancelled that somebody wants"
        elif not job.state.terminal:
            assert {one.id for one in job.submissions} == wanting, "the submitters are not those who want the job"
            assert wanting, "nobody wants the job, and it goes on"

    def check_exclusive(self, jobs: dict[str, JobRecord], held: frozenset[str]) -> None:
        measuring = [
            job for job in jobs.values() if job.open and job.spec.measuring and WORKERS[job.worker_id].device_uid
        ]
        devices = [WORKERS[job.worker_id].device_uid for job in measuring]
        assert len(devices) == len(set(devices)), "two jobs measure on one device"
        assert held == set(devices)
        for worker_id, worker in WORKERS.items():
            busy = [job for job in jobs.values() if job.open and job.worker_id == worker_id]
            assert len(busy) <= worker.slots, "more jobs than slots"
