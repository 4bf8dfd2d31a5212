"""Who gets which job: a pure function, the same answer for any order of its inputs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from ytk_controller.jobs.model import JobRecord, holds_device
from ytk_core.jobs import JobKind, JobSpec
from ytk_core.workers import TARGET_VERIFIED, WorkerDescription


@dataclass(frozen=True, kw_only=True)
class FreeWorker:
    """A worker that asks for work, with one claim per free slot, oldest first."""

    worker: WorkerDescription
    session_id: str
    claim_ids: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Assigned:
    """One job for one claim. ``device_uid`` is empty where the job holds no device."""

    job_id: str
    worker_id: str
    session_id: str
    claim_id: str
    device_uid: str


@dataclass(kw_only=True)
class Round:
    """One pass over the queue, page by page: what is still free, and what was given.

    Giving jobs in queue order makes the pages' answers add up to the answer for the whole queue.
    """

    free: dict[str, FreeWorker]
    live: tuple[WorkerDescription, ...]
    busy_devices: set[str]
    assigned: list[Assigned] = field(default_factory=list)

    @classmethod
    def begin(
        cls, free: Iterable[FreeWorker], live: Iterable[WorkerDescription], busy_devices: Collection[str]
    ) -> Round:
        """Start a round; ``live`` are all connected workers, also the busy ones."""
        workers = {one.worker.worker_id: one for one in free if one.claim_ids}
        return cls(
            free=dict(sorted(workers.items())),
            live=tuple(sorted(live, key=lambda worker: worker.worker_id)),
            busy_devices=set(busy_devices),
        )

    @property
    def full(self) -> bool:
        """Whether nobody asks for work any more."""
        return not self.free

    def give(self, jobs: Iterable[JobRecord]) -> None:
        """Assign what can be assigned of the next jobs, most urgent first."""
        for job in sorted(jobs, key=queue_order):
            if self.full:
                return
            taker = self._taker(job)
            if taker is not None:
                self._assign(job, taker)

    def _taker(self, job: JobRecord) -> FreeWorker | None:
        candidates = [one for one in self.free.values() if self._may_take(one.worker, job)]
        # Specialists first, so that a worker that can do more stays free for a job that needs it; but a plugin that is
        # verified for its target is better than a marked one, whoever builds it.
        return min(
            candidates,
            key=lambda one: (
                not verifies(one.worker, job.spec),
                _versatility(one.worker),
                -len(one.claim_ids),
                one.worker.worker_id,
            ),
            default=None,
        )

    def _may_take(self, worker: WorkerDescription, job: JobRecord) -> bool:
        if not matches(worker, job.spec):
            return False
        if holds_device(job.spec) and worker.device_uid and worker.device_uid in self.busy_devices:
            return False
        again = worker.worker_id in job.excluded_workers
        marked = _may_not_be_marked(job.spec) and not verifies(worker, job.spec)
        if not again and not marked:
            return True
        others = [each for each in self.live if each.worker_id not in job.excluded_workers and matches(each, job.spec)]
        # The same worker again only where nobody else could ever take it; one that would refuse what another can build only where
        # no such other lives.
        return not (again and others) and not (marked and any(verifies(each, job.spec) for each in others))

    def _assign(self, job: JobRecord, taker: FreeWorker) -> None:
        worker_id = taker.worker.worker_id
        device = taker.worker.device_uid if holds_device(job.spec) else ""
        claim_id, *rest = taker.claim_ids
        self.assigned.append(
            Assigned(
                job_id=job.id,
                worker_id=worker_id,
                session_id=taker.session_id,
                claim_id=claim_id,
                device_uid=device,
            )
        )
        if device:
            self.busy_devices.add(device)
        if rest:
            self.free[worker_id] = FreeWorker(worker=taker.worker, session_id=taker.session_id, claim_ids=tuple(rest))
        else:
            del self.free[worker_id]


def schedule(
    free: Iterable[FreeWorker],
    jobs: Iterable[JobRecord],
    busy_devices: Collection[str],
    live: Iterable[WorkerDescription] | None = None,
) -> list[Assigned]:
    """Give waiting jobs to free workers.

    Args:
        free: Workers that ask for work.
        jobs: Jobs that wait and whose backoff is over, in any order.
        busy_devices: ``device_uid`` of each device that a measuring job holds.
        live: All connected workers; the free ones where left out.

    Returns:
        One entry per assignment, in queue order. A device appears at most once.
    """
    free = list(free)
    turn = Round.begin(free, [one.worker for one in free] if live is None else live, busy_devices)
    turn.give(jobs)
    return turn.assigned


def queue_order(job: JobRecord) -> tuple[int, int, str]:
    """Sort key of the queue: priority, then order of submission."""
    return (-job.spec.priority, job.seq, job.id)


def matches(worker: WorkerDescription, spec: JobSpec) -> bool:
    """Tell whether a worker could serve a job at all."""
    return (
        spec.kind in worker.kinds
        and (not spec.arch_spec or spec.arch_spec in worker.arch_specs)
        and set(spec.requirements) <= set(worker.capabilities)
    )


def verifies(worker: WorkerDescription, spec: JobSpec) -> bool:
    """Tell whether a worker builds a plugin so that it is verified for its target; True of jobs that build none."""
    if spec.kind is not JobKind.PLUGIN_BUILD:
        return True
    return f"{TARGET_VERIFIED}=={spec.arch_spec}" in worker.capabilities


def _may_not_be_marked(spec: JobSpec) -> bool:
    """Tell whether the submitter did not ask for a plugin against a declared interface."""
    return spec.kind is JobKind.PLUGIN_BUILD and not spec.params.get("declared_abi", False)


def _versatility(worker: WorkerDescription) -> tuple[int, int, int]:
    return (len(worker.kinds), len(worker.arch_specs), len(worker.capabilities))
