"""Ends what time has ended: leases that ran out, jobs that nobody can take any more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog

from ytk_controller.jobs.upkeep import controller_returned, give_up, reap
from ytk_controller.live.desk import Desk
from ytk_core.errors import BoardError

_log = structlog.get_logger(__name__)


class Reaper:
    """Looks after leases.

    Args:
        desk: The desk; a lease's time comes from its store.
        clock: Gives seconds that go on while the machine sleeps.
    """

    def __init__(self, desk: Desk, clock: Callable[[], float] = time.time) -> None:
        self._desk = desk
        self._clock = clock
        # A lost agent is noticed at most a tenth of a lease late.
        self._interval_s = min(5.0, max(0.02, desk.rules.policy.lease_s / 10))
        # Jobs nobody can take wait for minutes by definition, and looking for them reads the whole queue.
        self._rounds_between = max(1, int(desk.rules.policy.worker_memory_s / 10 / self._interval_s))
        self._round = 0

    async def run(self) -> None:
        """Reap until cancelled."""
        woken, late_s = self._clock(), 0.0
        while True:
            await asyncio.sleep(self._interval_s)
            before, woken = woken, self._clock()
            late_s = max(late_s, woken - before - self._interval_s)
            try:
                await self.account_for(late_s)
                late_s = 0.0  # Only now: while the database is away, what was slept through stays to be accounted for.
                await self.step()
            except BoardError as err:  # the database may come back; the next round tries again
                _log.error("reap_failed", code=err.code, reason=err.message)

    async def account_for(self, late_s: float) -> None:
        """Blame no agent for what this controller slept through: a suspended machine, a paused or starved one.

        Heartbeats of that time wait unread, or were never sent because the agents' machine was the one that slept.

        Args:
            late_s: How much later than planned the controller woke.
        """
        if late_s <= self._desk.rules.policy.heartbeat_s:
            return
        held = await self._desk.do(controller_returned)
        _log.warning("controller_slept", seconds=round(late_s, 1), held=held)

    async def step(self) -> None:
        """Reap once."""
        expired = await self._desk.do(reap)
        self._round = (self._round + 1) % self._rounds_between
        given_up = await self._desk.do(give_up) if self._round == 0 else 0
        if expired or given_up:
            _log.info("reaped", expired=expired, given_up=given_up)
