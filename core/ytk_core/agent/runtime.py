"""The agent: slots that claim jobs and work on them, beside a session that stays alive whatever the jobs do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import grpc.aio
import structlog

from ytk_core import sandbox
from ytk_core.agent import processes
from ytk_core.agent.attempt import Attempt, Place, hand_back, remove_tree
from ytk_core.agent.calls import Stubs
from ytk_core.agent.handler import JobHandler
from ytk_core.agent.session import AgentSession, SessionPolicy
from ytk_core.artifacts import ArtifactClient
from ytk_core.errors import ToolkitError
from ytk_core.jobs import JobKind, Lease
from ytk_core.sandbox import SandboxMode
from ytk_core.workers import Assignment, LeaseAction, LeaseVerdict, Welcome, WorkerDescription

_log = structlog.get_logger(__name__)


class AgentRuntime:
    """One agent in the running loop.

    Args:
        channel: To the controller, made in this loop.
        worker: What the agent is; its kinds have to be those of the handlers.
        handlers: Do the jobs.
        state_dir: Existing directory of this agent alone.
        sandbox_mode: What the operator allows.
        policy: Times of the session.
        lock_dir: Where device locks are; the user's runtime directory by default.
        on_ready: Called once, at the first welcome.
        address: For the log.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        worker: WorkerDescription,
        handlers: Sequence[JobHandler],
        *,
        state_dir: Path,
        sandbox_mode: SandboxMode = "required",
        policy: SessionPolicy | None = None,
        lock_dir: Path | None = None,
        on_ready: Callable[[], None] | None = None,
        address: str = "",
    ) -> None:
        stubs = Stubs(channel)
        self._place = Place(
            worker=worker,
            handlers=_by_kind(worker, handlers),
            stubs=stubs,
            artifacts=ArtifactClient(channel),
            work_root=state_dir / "work",
            lock_dir=lock_dir,
            sandbox_mode=sandbox_mode,
        )
        self._attempts: dict[Lease, Attempt] = {}
        self._group: asyncio.TaskGroup | None = None
        self._on_ready = on_ready
        self._draining = asyncio.Event()
        self._session = AgentSession(stubs, worker, self, policy=policy, address=address)

    @property
    def session_id(self) -> str:
        """The session id of this process."""
        return self._session.session_id

    def drain(self) -> None:
        """Claim nothing more; :meth:`run` returns when the running jobs are committed. To stop at once, cancel it."""
        if not self._draining.is_set():
            _log.info("draining", jobs=[lease.job_id for lease in self._attempts])
        self._draining.set()

    async def run(self) -> None:
        """Work until drained.

        Raises:
            YtkError: The controller refuses this agent for good (:data:`ytk_core.agent.session.FATAL`).
            asyncio.CancelledError: Told to stop at once; the children are dead, nothing was committed.
        """
        await asyncio.to_thread(self._sweep)
        await asyncio.to_thread(sandbox.detect)  # once, off the loop: the first job asks it on the loop
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                group.create_task(self._session.run(), name="session")
                slots = [
                    group.create_task(self._slot(), name=f"slot-{number}") for number in range(self._place.worker.slots)
                ]
                group.create_task(self._end_with(slots), name="end")
        except BaseExceptionGroup as several:
            # One failed; the others were cancelled for it.
            raise several.exceptions[0] from several

    # ---- what the session asks and tells -----------------------------------------------------------------------------

    def leases(self) -> tuple[Lease, ...]:
        """Leases that this process works on."""
        return tuple(self._attempts)

    def assigned(self, assignment: Assignment) -> None:
        """Hold the lease from this moment on: the next heartbeat names it."""
        self._attempts[assignment.lease] = Attempt(assignment, self._place)

    def unwanted(self, assignment: Assignment) -> None:
        """Hand back a job that came after its slot had closed, so that another worker gets it at once."""
        _log.info("assignment_unwanted", job_id=assignment.lease.job_id)
        if self._group is not None:
            self._group.create_task(hand_back(assignment, self._place), name=f"hand-back-{assignment.lease.job_id}")

    def judged(self, verdict: LeaseVerdict) -> None:
        """Carry out the controller's word on a lease."""
        attempt = self._attempts.get(verdict.lease)
        if attempt is None or verdict.action is LeaseAction.CONTINUE:
            return
        _log.info("lease_verdict", job_id=verdict.lease.job_id, action=str(verdict.action))
        if verdict.action is LeaseAction.CANCEL:
            attempt.cancel()
        else:
            attempt.abandon()

    def welcomed(self, welcome: Welcome) -> None:
        """Note that the controller knows this agent."""
        del welcome
        if self._on_ready is not None:
            self._on_ready()
            self._on_ready = None

    # ---- the loops ---------------------------------------------------------------------------------------------------

    async def _slot(self) -> None:
        while (assignment := await self._next_assignment()) is not None:
            attempt = self._attempts[assignment.lease]
            try:
                await attempt.run()
            finally:
                del self._attempts[assignment.lease]

    async def _next_assignment(self) -> Assignment | None:
        if self._draining.is_set():
            return None
        claim = asyncio.create_task(self._session.claim(), name="claim")
        drained = asyncio.create_task(self._draining.wait(), name="drained")
        try:
            await asyncio.wait({claim, drained}, return_when=asyncio.FIRST_COMPLETED)
            return claim.result() if claim.done() else None
        finally:
            claim.cancel()
            drained.cancel()
            await asyncio.wait({claim, drained})

    async def _end_with(self, slots: Sequence[asyncio.Task[None]]) -> None:
        await asyncio.wait(slots)
        self._session.stop()

    def _sweep(self) -> None:
        """Remove what a killed predecessor left."""
        root = self._place.work_root
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        processes.kill_all(lambda: processes.strays_below(root.resolve()))
        for leftover in root.iterdir():
            remove_tree(leftover)


def _by_kind(worker: WorkerDescription, handlers: Sequence[JobHandler]) -> dict[JobKind, JobHandler]:
    table: dict[JobKind, JobHandler] = {}
    for handler in handlers:
        for kind in handler.kinds:
            if kind in table:
                raise ToolkitError(f"two handlers take {kind}")
            table[kind] = handler
    if set(table) != set(worker.kinds):
        raise ToolkitError(f"the worker advertises {sorted(worker.kinds)} and its handlers take {sorted(table)}")
    return table
