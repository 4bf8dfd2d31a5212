"""Ends what time has ended: leases that ran out, jobs that nobody can take any more."""

from __future__ import annotations

import asyncio

import structlog

from ytk_controller.jobs.upkeep import give_up, reap
from ytk_controller.live.desk import Desk
from ytk_core.errors import BoardError

_log = structlog.get_logger(__name__)


class Reaper:
    """Looks after leases.

    Args:
        desk: The desk; time comes from its store.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        # A lost agent is noticed at most a tenth of a lease late.
        self._interval_s = min(5.0, max(0.02, desk.rules.policy.lease_s / 10))
        # Jobs nobody can take wait for minutes by definition, and looking for them reads the whole queue.
        self._rounds_between = max(1, int(desk.rules.policy.worker_memory_s / 10 / self._interval_s))
        self._round = 0

    async def run(self) -> None:
        """Reap until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self.step()
            except BoardError as err:  # the database may come back; the next round tries again
                _log.error("reap_failed", code=err.code, reason=err.message)

    async def step(self) -> None:
        """Reap once."""
        expired = await self._desk.do(reap)
        self._round = (self._round + 1) % self._rounds_between
        given_up = await self._desk.do(give_up) if self._round == 0 else 0
        if expired or given_up:
            _log.info("reaped", expired=expired, given_up=given_up)
