"""Brings waiting jobs and free workers together, whenever either changes."""

from __future__ import annotations

import asyncio
import contextlib

import structlog

from ytk_controller.jobs.turn import Turn
from ytk_controller.jobs.working import dispatch
from ytk_controller.live.desk import Desk
from ytk_controller.scheduling.scheduler import Assigned
from ytk_core.errors import BoardError
from ytk_core.workers import Assignment

# Other controllers on the same database queue jobs without telling us.
_SHARED_POLL_S = 1.0
_AFTER_FAILURE_S = 1.0

_log = structlog.get_logger(__name__)


class Dispatcher:
    """Gives jobs to the agents that are connected to this controller.

    Args:
        desk: The desk; its ``wake`` event says that there is something to do.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def run(self) -> None:
        """Dispatch until cancelled."""
        while True:
            self._desk.wake.clear()
            delay_s: float | None = _AFTER_FAILURE_S
            try:
                delay_s = await self.step()
            except BoardError as err:  # the database may come back
                _log.error("dispatch_failed", code=err.code, reason=err.message)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._desk.wake.wait()

    async def step(self) -> float | None:
        """Give out what can be given out now.

        Returns:
            Seconds after which a backoff ends, or another controller may have queued something; None: never by itself.
        """
        free = [one for one in (session.free() for session in self._desk.sessions) if one.claim_ids]
        if not free:
            return None

        def work(turn: Turn) -> tuple[list[tuple[Assigned, Assignment]], float | None]:
            given = dispatch(turn, free)
            ready_at = turn.tx.next_ready_at()
            return given, None if ready_at is None else max(0.0, ready_at - turn.now)

        given, delay_s = await self._desk.do(work)
        for assigned, assignment in given:
            session = self._desk.sessions.get(assigned.worker_id, assigned.session_id)
            _log.info(
                "job_assigned", job_id=assigned.job_id, worker_id=assigned.worker_id, fence=assignment.lease.fence
            )
            if session is not None:  # else the agent repeats its claim when it is back
                session.assign(assignment)
        if self._desk.store.shared:
            return min(_SHARED_POLL_S, delay_s if delay_s is not None else _SHARED_POLL_S)
        return delay_s
