"""A world around the job machine for hypothesis: agents that die, partition and reconnect, zombies, lost answers.

The rules; what they compare with is in :mod:`fakes.store_account`.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from ytk_controller.jobs import submitting, upkeep, working
from ytk_controller.jobs.machine import StaleLeaseError
from ytk_controller.jobs.submitting import SubmitRequest
from ytk_controller.scheduling.scheduler import FreeWorker
from ytk_core.digests import digest_bytes
from ytk_core.errors import FailureClass, UserError
from ytk_core.jobs import Failure, JobResult, JobSpec, JobState, Lease, NamedBlob
from ytk_core.workers import Assignment, LeaseAction

from fakes.store_account import POLICY, SPECS, WORKERS, Account, Wish

AGENT = st.sampled_from(sorted(WORKERS))
OUTCOME = st.sampled_from(["ok", "ok", "ok", "board", "board", "yours", "stopped"])
PICK = st.integers(0, 30)


def somebody_works(world: World) -> bool:
    """Precondition of rules about held jobs: steps that do nothing find nothing."""
    return hasattr(world, "agents") and any(agent.held for agent in world.agents.values())


class World(Account):
    """The world; subclasses say which store."""

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        try:
            self.everything_ends()
        finally:
            self.store.close()

    # ---- clients ----

    @rule(index=st.integers(0, 6), key=st.integers(0, 5), no_cache=st.booleans())
    def submit(self, index: int, key: int, no_cache: bool) -> None:
        self.submit_as(index, key=f"k{key}" if key < 3 else "", no_cache=no_cache and key > 3)

    @precondition(somebody_works)
    @rule(index=st.integers(0, 6), which=PICK)
    def submit_child(self, index: int, which: int) -> None:
        self.submit_as(index, parent=self.pick_held(which))

    @precondition(somebody_works)
    @rule(which=PICK, word=st.sampled_from(["ok", "yours"]))
    def finish_one_and_ask_again(self, which: int, word: str) -> None:
        worker_id, assignment = self.pick_held(which)
        self.start_as(worker_id, assignment)
        if assignment.lease.job_id in self.agents[worker_id].held:
            self.commit_as(worker_id, assignment, word, upload=True)
            self.submit_as(int(assignment.spec.params["n"]))

    @precondition(somebody_works)
    @rule(which=PICK)
    def submit_an_equal_child(self, which: int) -> None:
        worker_id, parent = self.pick_held(which)
        self.submit_as(int(parent.spec.params["n"]), parent=(worker_id, parent))

    @rule(index=st.integers(0, 6))
    def submit_and_claim(self, index: int) -> None:
        self.submit_as(index)
        self.all_claim()

    def submit_as(
        self, index: int, *, key: str = "", no_cache: bool = False, parent: tuple[str, Assignment] | None = None
    ) -> None:
        spec = SPECS[index]
        if no_cache:
            spec = JobSpec(kind=spec.kind, params=spec.params, measuring=spec.measuring, no_cache=True)
        before = self.jobs()
        lease = parent[1].lease if parent else None
        request = SubmitRequest(
            spec=spec,
            principal="me",
            idempotency_key=key,
            parent_id=lease.job_id if lease else "",
            parent_fence=lease.fence if lease else 0,
        )
        new_id = f"job-{self.number()}"
        sub_id = f"sub-{self.counter}"
        parent_may = (
            parent is None
            or lease is None
            or (
                self.is_current(before, parent[0], lease)
                and before[lease.job_id].state is not JobState.CANCELLING
                and not parent[1].spec.measuring
            )
        )
        try:
            answer = self.turn(
                lambda turn: submitting.submit(turn, request, job_id=lambda: new_id, submission_id=lambda: sub_id)
            )
        except StaleLeaseError:
            assert not parent_may, "a child of a job that is held was refused"
            return
        except UserError as err:
            conflict = err.code == "idempotency_conflict"
            self.agree(self.keys[key][0] != index if conflict else not parent_may, f"refused: {err}")
            return
        assert parent_may, "a child of a job that is not held was accepted"
        if key and key in self.keys:
            assert self.keys[key] == (index, answer.job.id, answer.submission_id), "one key made two submissions"
            return
        if key:
            self.keys[key] = (index, answer.job.id, answer.submission_id)
        self.wishes.append(Wish(answer.submission_id, answer.job.id, lease))
        self.check_answer(before, spec, request, answer)

    @rule(which=PICK)
    def cancel_one_submitter(self, which: int) -> None:
        if self.wishes:
            wish = self.wishes[which % len(self.wishes)]
            self.turn(lambda turn: submitting.cancel(turn, wish.job_id, wish.id))
            wish.detached = True
            self.settle()

    @precondition(somebody_works)
    @rule(which=PICK)
    def cancel_a_running_one(self, which: int) -> None:
        job_id = self.pick_held(which)[1].lease.job_id
        self.cancel_for_all(sorted(self.jobs()).index(job_id))

    @rule(which=PICK)
    def cancel_for_all(self, which: int) -> None:
        jobs = self.jobs()
        if jobs:
            job_id = sorted(jobs)[which % len(jobs)]
            self.turn(lambda turn: submitting.cancel(turn, job_id, ""))
            for wish in self.wishes:
                wish.detached |= wish.job_id == job_id
            if not jobs[job_id].state.terminal:
                self.cancelled.add(job_id)
            self.settle()

    # ---- agents ----

    @rule(worker_id=AGENT, lose_answer=st.booleans())
    def claim(self, worker_id: str, lose_answer: bool) -> None:
        self.dispatch([worker_id], lose_answer=lose_answer)

    @rule()
    def all_claim(self) -> None:
        self.dispatch(sorted(WORKERS))

    def dispatch(self, worker_ids: list[str], *, lose_answer: bool = False) -> None:
        free = [
            FreeWorker(
                worker=WORKERS[worker_id],
                session_id=self.agents[worker_id].session(worker_id),
                claim_ids=(f"c{self.number()}",),
            )
            for worker_id in worker_ids
        ]
        before = self.jobs()
        answers = self.turn(lambda turn: working.dispatch(turn, free))
        for assigned, assignment in answers:
            self.check_assignment(before, assigned, assignment, alone=len(worker_ids) == 1)
            if lose_answer:
                again = self.turn(
                    lambda turn, a=assigned: working.repeated_claim(turn, a.worker_id, a.session_id, a.claim_id)
                )
                assert again == assignment, "a repeated claim gave something else"
            self.agents[assigned.worker_id].held[assigned.job_id] = assignment

    @precondition(somebody_works)
    @rule(which=PICK)
    def start(self, which: int) -> None:
        self.start_as(*self.pick_held(which))

    def start_as(self, worker_id: str, assignment: Assignment) -> None:
        jobs = self.jobs()
        current = self.is_current(jobs, worker_id, assignment.lease)
        try:
            proceed = self.turn(lambda turn: working.start(turn, worker_id, assignment.lease))
        except StaleLeaseError:
            assert not current, "the holder may not start"
            self.let_go(worker_id, assignment)
            return
        assert current, "a stale lease was started"
        assert proceed == (jobs[assignment.lease.job_id].state is not JobState.CANCELLING)
        if jobs[assignment.lease.job_id].state is JobState.LEASED:
            self.renewed[assignment.lease.job_id, assignment.lease.fence] = self.now

    @precondition(somebody_works)
    @rule(worker_id=AGENT)
    def heartbeat(self, worker_id: str) -> None:
        agent = self.agents[worker_id]
        jobs = self.jobs()
        leases = [assignment.lease for assignment in agent.held.values()]
        self.heard[worker_id] = self.now
        verdicts = self.turn(lambda turn: working.heartbeat(turn, worker_id, agent.session(worker_id), leases))
        self.heed(worker_id, jobs, verdicts)

    def heed(self, worker_id: str, jobs, verdicts) -> None:
        for verdict in verdicts:
            current = self.is_current(jobs, worker_id, verdict.lease)
            cancelling = jobs[verdict.lease.job_id].state is JobState.CANCELLING
            wanted = LeaseAction.ABANDON if not current else LeaseAction.CANCEL if cancelling else LeaseAction.CONTINUE
            assert verdict.action is wanted, f"{verdict} should be {wanted}"
            if wanted is LeaseAction.CONTINUE:
                self.renewed[verdict.lease.job_id, verdict.lease.fence] = self.now
            if wanted is LeaseAction.ABANDON:
                self.let_go(worker_id, self.agents[worker_id].held[verdict.lease.job_id])

    @precondition(somebody_works)
    @rule(which=PICK, outcome=OUTCOME, upload=st.booleans(), lose_answer=st.booleans())
    def commit(self, which: int, outcome: str, upload: bool, lose_answer: bool) -> None:
        worker_id, assignment = self.pick_held(which)
        self.commit_as(worker_id, assignment, outcome, upload=upload or outcome != "ok", twice=lose_answer)

    @precondition(somebody_works)
    @rule(which=PICK, outcome=OUTCOME, upload=st.booleans())
    def run_to_the_end(self, which: int, outcome: str, upload: bool) -> None:
        worker_id, assignment = self.pick_held(which)
        self.start_as(worker_id, assignment)
        if assignment.lease.job_id in self.agents[worker_id].held:
            self.commit_as(worker_id, assignment, outcome, upload=upload or outcome != "ok")

    def commit_as(
        self, worker_id: str, assignment: Assignment, word: str, *, upload: bool, twice: bool = False
    ) -> None:
        lease = assignment.lease
        outcome = self.outcome(lease, word, upload=upload)
        jobs = self.jobs()
        job = jobs[lease.job_id]
        current = self.is_current(jobs, worker_id, lease)
        repeated = [c for c in self.commits if c[:3] == (worker_id, assignment, outcome)]
        try:
            state = self.turn(lambda turn: working.commit(turn, worker_id, lease, outcome))
        except StaleLeaseError:
            assert not current, "the holder may not commit"
            self.let_go(worker_id, assignment)
            return
        except UserError as err:
            self.agree(err.code == "output_missing" and not upload, f"refused: {err}")
            return
        except Exception as err:
            # A result before the start is the one transition that an agent can get wrong.
            if getattr(err, "code", "") != "invalid_transition":
                raise
            assert word == "ok"
            assert job.state is JobState.LEASED
            return
        if repeated and not current:
            assert state is repeated[-1][3]
            return
        assert current, "a stale lease was committed"
        self.check_commit(job, word, state, upload=upload)
        self.commits.append((worker_id, assignment, outcome, state))
        self.over(job.id, requeued=state is JobState.QUEUED, attempts=job.attempts)
        if twice:
            again = self.turn(lambda turn: working.commit(turn, worker_id, lease, outcome))
            assert again is state, "a repeated commit was answered otherwise"
        self.agents[worker_id].held.pop(job.id, None)

    def outcome(self, lease: Lease, word: str, *, upload: bool) -> JobResult | Failure | None:
        if word == "stopped":
            return None
        if word != "ok":
            cls = FailureClass.BOARDS if word == "board" else FailureClass.YOURS
            return Failure(failure_class=cls, code=word, message=word)
        digest = digest_bytes(f"{lease.job_id}/{lease.fence}/{upload}".encode())
        blob = NamedBlob(name="out", digest=digest, size_bytes=1)
        if upload:
            self.store.run(lambda tx: tx.add_blobs([blob]))
        return JobResult(outputs=(blob,))

    @precondition(somebody_works)
    @rule()
    def long_work(self) -> None:
        """Everyone works for longer than a lease and says so in time."""
        for _ in range(2):
            self.now += POLICY.lease_s - 5
            for worker_id in WORKERS:
                self.heartbeat(worker_id)
            self.reap()

    # ---- faults of the world ----

    @precondition(somebody_works)
    @rule(which=PICK)
    def kill_a_holder(self, which: int) -> None:
        self.kill_and_restart(self.pick_held(which)[0])

    @precondition(somebody_works)
    @rule(which=PICK)
    def two_processes_of_one_worker(self, which: int) -> None:
        """A restart that did not end the old process: it commits what the new one may have been given again."""
        worker_id, assignment = self.pick_held(which)
        self.kill_and_restart(worker_id)
        self.now += POLICY.backoff_cap_s
        self.dispatch([worker_id])
        self.commit_as(worker_id, assignment, "yours", upload=True)

    @rule(worker_id=AGENT)
    def kill_and_restart(self, worker_id: str) -> None:
        agent = self.agents[worker_id]
        for assignment in list(agent.held.values()):
            self.let_go(worker_id, assignment)
        agent.number += 1
        before = self.jobs()
        self.hello(worker_id)
        after = self.jobs()
        for job in before.values():
            if job.open and job.worker_id == worker_id:
                assert not after[job.id].open, "a dead process still holds a job"
                self.over(job.id, requeued=after[job.id].state is JobState.QUEUED, attempts=job.attempts)

    @rule(worker_id=AGENT, same_process=st.booleans())
    def reconnect(self, worker_id: str, same_process: bool) -> None:
        agent = self.agents[worker_id]
        if not same_process:
            agent.number += 1
        jobs = self.jobs()
        verdicts = self.hello(worker_id, *(assignment.lease for assignment in agent.held.values()))
        self.heed(worker_id, jobs, verdicts)

    @precondition(somebody_works)
    @rule(again=st.booleans())
    def partition_until_the_lease_is_over(self, again: bool) -> None:
        """Agents hear and say nothing for long; their processes live on and believe that they hold their jobs."""
        self.now += POLICY.lease_s + 1
        self.reap()
        if again:
            self.now += POLICY.backoff_cap_s
            self.all_claim()

    @precondition(lambda self: getattr(self, "zombies", None))
    @rule(which=st.integers(0, 20), outcome=OUTCOME, newest=st.booleans())
    def zombie_commits(self, which: int, outcome: str, newest: bool) -> None:
        index = -1 - which % len(self.zombies) if newest else which % len(self.zombies)
        worker_id, assignment = self.zombies[index]
        self.commit_as(worker_id, assignment, outcome, upload=True)

    @precondition(somebody_works)
    @rule(worker_id=AGENT, which=PICK)
    def impostor_commits(self, worker_id: str, which: int) -> None:
        other, assignment = self.pick_held(which)
        if worker_id == other:
            return
        outcome = self.outcome(assignment.lease, "yours", upload=True)
        try:
            self.turn(lambda turn: working.commit(turn, worker_id, assignment.lease, outcome))
        except StaleLeaseError:
            return
        raise AssertionError("a worker committed another one's job")

    @precondition(lambda self: getattr(self, "commits", None))
    @rule(which=st.integers(0, 20))
    def commit_arrives_again(self, which: int) -> None:
        worker_id, assignment, outcome, state = self.commits[-1 - which % len(self.commits)]
        job = self.jobs()[assignment.lease.job_id]
        try:
            again = self.turn(lambda turn: working.commit(turn, worker_id, assignment.lease, outcome))
        except StaleLeaseError:
            newest = [c for c in self.commits if c[1].lease.job_id == job.id][-1]
            assert newest[1].lease != assignment.lease, "the last commit's repetition was refused"
            return
        assert again is state

    @rule(worker_id=AGENT)
    def old_session_speaks(self, worker_id: str) -> None:
        agent = self.agents[worker_id]
        if agent.number > 1:
            session = agent.session(worker_id, older=1)
            try:
                self.turn(lambda turn: working.heartbeat(turn, worker_id, session, []))
            except working.SessionReplacedError:
                return
            raise AssertionError("an old session was served")

    @rule(worker_id=AGENT, on=st.booleans())
    def drain(self, worker_id: str, on: bool) -> None:
        self.turn(lambda turn: working.drain(turn, worker_id, "test", resume=not on))
        self.agents[worker_id].drained = on

    @rule(seconds=st.sampled_from([1.0, 3.0, 10.0, 29.0, 31.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def reap(self) -> None:
        before = self.jobs()
        self.turn(upkeep.reap)
        after = self.jobs()
        for job in before.values():
            if not job.open:
                continue
            ended = after[job.id].fence != job.fence or not after[job.id].open
            since = self.now - self.renewed[job.id, job.fence]
            if ended and not (job.state is JobState.CANCELLING or after[job.id].state is JobState.CANCELLED):
                assert since >= POLICY.lease_s, "a lease was taken that had been renewed"
            if ended:
                self.over(job.id, requeued=after[job.id].state is JobState.QUEUED, attempts=job.attempts)
            elif since >= POLICY.lease_s and job.state is not JobState.CANCELLING:
                # Only a controller that was away may grant more.
                assert job.lease_until > self.now, "a lease that is over was kept"

    @rule()
    def controller_restarts(self) -> None:
        self.reopen_store()
        self.turn(upkeep.controller_returned)

    # ---- the end ----

    def everything_ends(self) -> None:
        """Faults stop, the agents are healthy: every job comes to an end."""
        for worker_id in WORKERS:
            self.drain(worker_id, on=False)
            self.kill_and_restart(worker_id)
        for _ in range(60):
            self.now += 100.0
            self.all_claim()
            held = [(w, assignment) for w in WORKERS for assignment in list(self.agents[w].held.values())]
            if not held and not any(job.state is JobState.QUEUED for job in self.jobs().values()):
                break
            for worker_id, assignment in held:
                if assignment.lease.job_id in self.agents[worker_id].held:
                    self.turn(lambda turn, w=worker_id, a=assignment: working.start(turn, w, a.lease))
                    self.commit_as(worker_id, assignment, "ok", upload=True)
        left = {job.id: job.state for job in self.jobs().values() if not job.state.terminal}
        assert not left, f"jobs that never end: {left}"
