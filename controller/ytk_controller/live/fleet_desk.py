"""Workers as clients and operators see them."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime

from ytk_controller.jobs.turn import Turn
from ytk_controller.jobs.working import drain
from ytk_controller.live.desk import Desk
from ytk_controller.live.hub import ShuttingDownError
from ytk_controller.store.base import WorkerRecord
from ytk_core.workers import Drain, WorkerState, WorkerView


class FleetDesk:
    """The fleet.

    Args:
        desk: The desk.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def list(self, *, role: str, include_lost: bool) -> list[WorkerView]:
        """List workers by id; an empty role does not filter."""

        def work(turn: Turn) -> list[WorkerView]:
            held: defaultdict[str, list[str]] = defaultdict(list)
            for job in turn.tx.open_jobs():
                held[job.worker_id].append(job.id)
            return [_view(turn, worker, held[worker.id]) for worker in turn.tx.workers()]

        views = await self._desk.do(work)
        return [
            view
            for view in views
            if role in {"", view.description.role} and (include_lost or view.state is not WorkerState.LOST)
        ]

    async def drain(self, worker_id: str, reason: str, *, resume: bool) -> WorkerView:
        """Give a worker no new jobs, or serve it again.

        Raises:
            UserError: There is no such worker (code ``not_found``).
        """

        def work(turn: Turn) -> WorkerView:
            worker = drain(turn, worker_id, reason, resume=resume)
            return _view(turn, worker, [job.id for job in turn.tx.open_jobs(worker_id)])

        session = self._desk.sessions.get(worker_id)
        if resume and session is not None and self._desk.sessions.drop(session):
            # An agent that was told to stop claiming begins again with a new stream. Dropped before the transaction:
            # no job may be given to a claim of the stream that ends.
            session.end(ShuttingDownError(f"worker {worker_id} was resumed", hint="Connect again."))
        view = await self._desk.do(work)
        if not resume and session is not None:
            session.send(Drain(reason=reason))
        return view


def _view(turn: Turn, worker: WorkerRecord, job_ids: list[str]) -> WorkerView:
    if not worker.live(turn.now, turn.policy.lease_s):
        state = WorkerState.LOST
    elif worker.draining:
        state = WorkerState.DRAINING
    else:
        state = WorkerState.BUSY if job_ids else WorkerState.IDLE
    return WorkerView(
        description=worker.description,
        state=state,
        last_seen_at=datetime.fromtimestamp(worker.last_seen, UTC),
        job_ids=tuple(sorted(job_ids)),
    )
