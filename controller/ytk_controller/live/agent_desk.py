"""What agents ask: a session, and for each job start, log, progress, commit."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from importlib import metadata

import structlog

from ytk_controller.artifacts.store import ArtifactStore
from ytk_controller.jobs.turn import Turn
from ytk_controller.jobs.working import (
    SessionReplacedError,
    check_lease,
    commit,
    goodbye,
    heartbeat,
    hello,
    progress,
    repeated_claim,
    start,
)
from ytk_controller.live.desk import Desk
from ytk_controller.live.logs import JobLogs
from ytk_controller.live.sessions import Session
from ytk_core.errors import BoardError, UserError, YtkError
from ytk_core.jobs import Failure, JobResult, JobState, Lease
from ytk_core.workers import (
    PROTOCOL_VERSION,
    AgentMessage,
    Claim,
    ControllerMessage,
    Drain,
    Heartbeat,
    HeartbeatAck,
    Hello,
    PeerVersion,
    Welcome,
)

_HELLO_WITHIN_S = 10.0
MAX_LOG_CHUNK_BYTES = 1 << 20

_log = structlog.get_logger(__name__)


def own_version() -> PeerVersion:
    """Give the version of the protocol and of the distribution that runs here."""
    return PeerVersion(protocol=PROTOCOL_VERSION, software=metadata.version("yasp-toolkit"))


def check_protocol(version: PeerVersion) -> None:
    """Refuse a peer that speaks another protocol; one that names none (0) is taken at its word.

    Raises:
        UserError: It does (code ``protocol_version``).
    """
    if version.protocol not in {0, PROTOCOL_VERSION}:
        raise UserError(
            f"the peer speaks protocol {version.protocol} (software {version.software}), this controller "
            f"{PROTOCOL_VERSION}",
            code="protocol_version",
            hint="Install the same version of yasp-toolkit on both sides.",
        )


class AgentDesk:
    """Jobs as agents work on them.

    Args:
        desk: The desk.
        artifacts: Asked whether outputs are there.
        logs: The log files.
    """

    def __init__(self, desk: Desk, artifacts: ArtifactStore, logs: JobLogs) -> None:
        self._desk = desk
        self._artifacts = artifacts
        self._logs = logs

    async def connect(self, messages: AsyncIterator[AgentMessage]) -> AsyncIterator[ControllerMessage]:
        """Hold a session: answers and pushes to the agent, until it leaves or falls silent for a lease's time.

        Raises:
            UserError: The first message is no hello, or speaks another protocol.
            SessionReplacedError: A newer process of the same worker came.
            ShuttingDownError: The controller stops.
            BoardError: The agent fell silent (code ``deadline``).
        """
        first = await _next_message(messages, _HELLO_WITHIN_S)
        if not isinstance(first, Hello):
            raise UserError("a session begins with hello", code="bad_message", hint="Send hello first.")
        check_protocol(first.worker.version)
        session, welcome, draining = await self._open(first)
        log = _log.bind(worker_id=first.worker.worker_id, session_id=first.session_id)
        log.info("agent_connected", role=first.worker.role, software=first.worker.version.software)
        reader = asyncio.create_task(self._listen(session, messages), name=f"listen-{first.worker.worker_id}")
        try:
            yield welcome
            if draining is not None:
                yield draining
            async for message in session.messages():
                yield message
        finally:
            reader.cancel()
            await asyncio.wait({reader})
            if self._desk.sessions.drop(session):
                with contextlib.suppress(BoardError):  # the store is closed: the next hello puts it right
                    await self._desk.do(lambda turn: goodbye(turn, session.worker.worker_id, session.id))
            log.info("agent_disconnected")

    async def start(self, worker_id: str, lease: Lease) -> bool:
        """Begin a job; see :func:`ytk_controller.jobs.working.start`."""
        return await self._desk.do(lambda turn: start(turn, worker_id, lease))

    async def append_log(self, lease: Lease, offset: int, data: bytes) -> int:
        """Append to the log of the attempt; see :meth:`JobLogs.append`.

        Raises:
            StaleLeaseError: The lease is not the current one.
        """
        if len(data) > MAX_LOG_CHUNK_BYTES:
            raise UserError(f"a log chunk of {len(data)} bytes", code="too_large", hint="Send at most 1 MiB at once.")
        await self._desk.do(lambda turn: check_lease(turn, lease))
        length = await asyncio.to_thread(self._logs.append, lease.job_id, lease.fence, offset, data)
        self._desk.hub.log_grew(lease.job_id)
        return length

    async def report_progress(self, lease: Lease, fraction: float, note: str) -> None:
        """Note how far a job came; see :func:`ytk_controller.jobs.working.progress`."""
        await self._desk.do(lambda turn: progress(turn, lease, fraction, note))

    async def commit(self, worker_id: str, lease: Lease, outcome: JobResult | Failure | None) -> JobState:
        """End an attempt; see :func:`ytk_controller.jobs.working.commit`."""
        if isinstance(outcome, JobResult):
            # Brings the record of blobs up to date, which the committing transaction goes by.
            await self._artifacts.missing([blob.digest for blob in outcome.outputs])
        state = await self._desk.do(lambda turn: commit(turn, worker_id, lease, outcome))
        _log.info("job_committed", job_id=lease.job_id, fence=lease.fence, worker_id=worker_id, state=str(state))
        return state

    async def _open(self, first: Hello) -> tuple[Session, Welcome, Drain | None]:
        worker_id = first.worker.worker_id

        def work(turn: Turn) -> tuple[bool, Welcome, Drain | None]:
            before = turn.tx.worker(worker_id)
            welcome = Welcome(
                heartbeat_interval_s=turn.policy.heartbeat_s,
                lease_duration_s=turn.policy.lease_s,
                version=own_version(),
                verdicts=hello(turn, first),
            )
            draining = Drain(reason=before.drain_reason) if before is not None and before.draining else None
            return before is not None and before.session_id == first.session_id, welcome, draining

        resumed, welcome, draining = await self._desk.do(work)
        session = Session(first, resumed=resumed)
        replaced = self._desk.sessions.put(session)
        if replaced is not None:
            replaced.end(
                SessionReplacedError(
                    f"worker {worker_id} connected again with session {first.session_id}",
                    hint="Two agents run with one worker id: give each its own --worker-id.",
                )
            )
        return session, welcome, draining

    async def _listen(self, session: Session, messages: AsyncIterator[AgentMessage]) -> None:
        silent_after_s = max(self._desk.rules.policy.lease_s, 2 * self._desk.rules.policy.heartbeat_s)
        try:
            while (message := await _next_message(messages, silent_after_s)) is not None:
                await self._answer(session, message)
            session.end(None)
        except YtkError as err:
            session.end(err)
        except Exception:  # noqa: BLE001 - a bug of ours, logged; the stream must not hang because its reader died
            _log.exception("agent_reader_failed", worker_id=session.worker.worker_id)
            session.end(BoardError("the controller could not read the session", hint="Connect again."))

    async def _answer(self, session: Session, message: AgentMessage) -> None:
        worker_id, session_id = session.worker.worker_id, session.id
        match message:
            case Heartbeat(sequence=sequence, leases=leases):
                verdicts = await self._desk.do(lambda turn: heartbeat(turn, worker_id, session_id, leases))
                session.send(HeartbeatAck(sequence=sequence, verdicts=verdicts))
            case Claim(claim_id=claim_id):
                if session.resumed or claim_id in session.given:
                    again = await self._desk.do(lambda turn: repeated_claim(turn, worker_id, session_id, claim_id))
                    if again is not None:
                        session.assign(again)
                        return
                session.claim(claim_id)
                self._desk.wake.set()
            case Hello():
                raise UserError("a second hello in one session", code="bad_message", hint="Open a new stream.")


async def _next_message(messages: AsyncIterator[AgentMessage], within_s: float) -> AgentMessage | None:
    try:
        async with asyncio.timeout(within_s):
            return await anext(messages, None)
    except TimeoutError:
        raise BoardError(
            f"the agent sent nothing for {within_s:.0f} s", code="deadline", hint="Connect again."
        ) from None
