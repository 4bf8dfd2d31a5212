"""The agents that are connected to this controller now."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

from ytk_controller.scheduling.scheduler import FreeWorker
from ytk_core.errors import YtkError
from ytk_core.workers import Assignment, ControllerMessage, Hello, WorkerDescription


class Session:
    """One stream of one agent. All methods run on the loop."""

    def __init__(self, hello: Hello, *, resumed: bool) -> None:
        self.worker: WorkerDescription = hello.worker
        self.id = hello.session_id
        self.resumed = resumed
        """The same process was connected before: its claims may have been answered then."""
        self.given: dict[str, Assignment] = {}
        self._claims: dict[str, None] = {}
        self._outbox: asyncio.Queue[ControllerMessage | YtkError | None] = asyncio.Queue()

    def claim(self, claim_id: str) -> None:
        """Note that the agent has a free slot."""
        self._claims[claim_id] = None

    def free(self) -> FreeWorker:
        """Give what the scheduler needs to know."""
        return FreeWorker(worker=self.worker, session_id=self.id, claim_ids=tuple(self._claims))

    def assign(self, assignment: Assignment) -> None:
        """Send a job for a claim."""
        self._claims.pop(assignment.claim_id, None)
        self.given[assignment.claim_id] = assignment
        # Only the newest can be claimed again: an agent repeats a claim that was not answered.
        while len(self.given) > max(1, self.worker.slots):
            del self.given[next(iter(self.given))]
        self.send(assignment)

    def send(self, message: ControllerMessage) -> None:
        """Queue a message to the agent."""
        self._outbox.put_nowait(message)

    def end(self, error: YtkError | None) -> None:
        """End the stream after what is queued: with an error, or (None) as the agent did."""
        self._outbox.put_nowait(error)

    async def messages(self) -> AsyncIterator[ControllerMessage]:
        """Give the messages to the agent until the session ends.

        Raises:
            YtkError: What :meth:`end` was given.
        """
        while True:
            message = await self._outbox.get()
            if message is None:
                return
            if isinstance(message, YtkError):
                raise message
            yield message


class Sessions:
    """The newest session of each worker."""

    def __init__(self) -> None:
        self._by_worker: dict[str, Session] = {}

    def __iter__(self) -> Iterator[Session]:
        return iter(tuple(self._by_worker.values()))

    def put(self, session: Session) -> Session | None:
        """Register a session; gives the one that it replaces."""
        replaced = self._by_worker.get(session.worker.worker_id)
        self._by_worker[session.worker.worker_id] = session
        return replaced

    def get(self, worker_id: str, session_id: str | None = None) -> Session | None:
        """Give a worker's session; with ``session_id`` only that one."""
        session = self._by_worker.get(worker_id)
        return session if session is not None and session_id in {None, session.id} else None

    def drop(self, session: Session) -> bool:
        """Forget a session; tells whether it was its worker's newest."""
        if self._by_worker.get(session.worker.worker_id) is not session:
            return False
        del self._by_worker[session.worker.worker_id]
        return True
