"""Runs turns against the store, and afterwards tells watchers, agents and the dispatcher what follows from them."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from ytk_controller.jobs.events import Command, NotifyWatchers, TellWorker, WakeScheduler
from ytk_controller.jobs.turn import Rules, Turn
from ytk_controller.live.hub import Hub
from ytk_controller.live.sessions import Sessions
from ytk_controller.store.base import Store, Tx
from ytk_core.workers import LeaseVerdict

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Who makes a call: the token's name and scope, and the id of the request."""

    name: str
    scope: str
    request_id: str = ""


CALLER: contextvars.ContextVar[Caller] = contextvars.ContextVar("ytk_caller")
"""Set by the authentication interceptor for the time of a call."""


def cause() -> str:
    """Name what caused an event: the caller and its request."""
    caller = CALLER.get(None)
    return "controller" if caller is None else f"{caller.name}/{caller.request_id}"


class Desk:
    """The one way from services to the store.

    Args:
        store: The store.
        rules: Policy and toolchain.
    """

    def __init__(self, store: Store, rules: Rules) -> None:
        self.store = store
        self.rules = rules
        self.hub = Hub()
        self.sessions = Sessions()
        self.wake = asyncio.Event()

    async def do(self, function: Callable[[Turn], T]) -> T:
        """Run a function in one transaction; give its value once that is durable and everyone concerned was told.

        What the function raises undoes all it did.
        """
        cause_id = cause()

        def turn(tx: Tx) -> tuple[T, list[Command]]:
            one = Turn(tx, self.rules, cause_id)
            return function(one), one.outbox

        value, commands = await self.store.arun(turn)
        self._tell(commands)
        return value

    def _tell(self, commands: Iterable[Command]) -> None:
        for command in commands:
            match command:
                case NotifyWatchers(job=job):
                    self.hub.publish(job)
                case TellWorker(worker_id=worker_id, session_id=session_id, lease=lease, action=action):
                    session = self.sessions.get(worker_id, session_id)
                    if session is not None:  # else the next heartbeat or hello tells it
                        session.send(LeaseVerdict(lease=lease, action=action))
                case WakeScheduler():
                    self.wake.set()
