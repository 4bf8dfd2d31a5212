"""The agent's session with the controller: one stream, kept alive and opened again for as long as the agent runs."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import deque
from typing import Any, Protocol

import grpc
import grpc.aio
import msgspec
import structlog
import tenacity

from ytk_core import convert
from ytk_core.agent.calls import Stubs, once
from ytk_core.errors import BoardError, UserError, YtkError
from ytk_core.jobs import Lease
from ytk_core.rpc_errors import being_cancelled, cancelled_by_peer, from_rpc_error, from_write_error
from ytk_core.together import together
from ytk_core.workers import (
    PROTOCOL_VERSION,
    AgentMessage,
    Assignment,
    Claim,
    ControllerMessage,
    Drain,
    Heartbeat,
    HeartbeatAck,
    Hello,
    LeaseVerdict,
    Welcome,
    WorkerDescription,
)

_log = structlog.get_logger(__name__)

# Trying again changes nothing: an operator has to act.
FATAL = frozenset({"unauthenticated", "permission_denied", "protocol_version", "session_replaced"})
_MIN_HEARTBEAT_S = 0.01


class SessionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Times of the session.

    Attributes:
        first_wait_s: Upper bound of the first wait after a failure; it doubles.
        longest_wait_s: Cap of the waits.
        welcome_within_s: An answer to hello has to come within this.
        silent_intervals: A controller that answers nothing for so many heartbeat intervals is gone.
    """

    first_wait_s: float = 0.5
    longest_wait_s: float = 20.0
    welcome_within_s: float = 10.0
    silent_intervals: float = 3.0


class SessionOwner(Protocol):
    """Who works on the jobs that the session brings."""

    def leases(self) -> tuple[Lease, ...]:
        """Leases that this process works on."""

    def assigned(self, assignment: Assignment) -> None:
        """A claim was answered."""

    def unwanted(self, assignment: Assignment) -> None:
        """A job came that no slot waits for any more."""

    def judged(self, verdict: LeaseVerdict) -> None:
        """The controller's word on a lease."""

    def welcomed(self, welcome: Welcome) -> None:
        """The session is open (again)."""


class AgentSession:
    """Holds the stream. One object per process: its session id is kept over reconnects.

    Args:
        stubs: To the controller.
        worker: Said in hello.
        owner: Told what comes.
        policy: Times.
        address: For the log.
    """

    def __init__(
        self,
        stubs: Stubs,
        worker: WorkerDescription,
        owner: SessionOwner,
        *,
        policy: SessionPolicy | None = None,
        address: str = "",
    ) -> None:
        self.session_id = uuid.uuid4().hex
        self._stubs = stubs
        self._worker = worker
        self._owner = owner
        self._policy = policy or SessionPolicy()
        self._address = address
        self._claims: dict[str, asyncio.Future[Assignment]] = {}
        self._answered: deque[str] = deque(maxlen=max(64, 4 * worker.slots))
        self._outbox: asyncio.Queue[AgentMessage] | None = None
        self._may_claim = asyncio.Event()
        self._may_claim.set()
        self._stop = asyncio.Event()
        self._sequence = 0

    def stop(self) -> None:
        """Let :meth:`run` end."""
        self._stop.set()

    async def claim(self) -> Assignment:
        """Offer a slot and wait for its job, over as many streams as that takes. While drained, offers nothing."""
        await self._may_claim.wait()
        claim_id = uuid.uuid4().hex
        future: asyncio.Future[Assignment] = asyncio.get_running_loop().create_future()
        self._claims[claim_id] = future
        try:
            self._send(Claim(claim_id=claim_id))
            return await future
        finally:
            self._claims.pop(claim_id, None)

    async def run(self) -> None:
        """Keep a session until :meth:`stop`.

        Raises:
            YtkError: Of a code in :data:`FATAL`.
        """
        while not self._stop.is_set():
            retrying = tenacity.AsyncRetrying(
                retry=tenacity.retry_if_exception(
                    lambda err: isinstance(err, YtkError) and err.code not in FATAL and not self._stop.is_set()
                ),
                wait=tenacity.wait_random_exponential(
                    multiplier=self._policy.first_wait_s, max=self._policy.longest_wait_s
                ),
                sleep=self._sleep,
                before_sleep=self._say_waiting,
                reraise=True,
            )
            try:
                await retrying(self._one_stream)
            except YtkError:
                if not self._stop.is_set():
                    raise
            # A stream that worked was lost: begin counting anew, but not all agents at the same moment.
            await self._sleep(random.uniform(0, self._policy.first_wait_s))  # noqa: S311  (no secret)

    async def _one_stream(self) -> None:
        """Hold one stream; returns where it worked for a while and was lost, raises where it did not."""
        loop = asyncio.get_running_loop()
        call = self._stubs.agents.Connect()
        try:
            welcome = await self._greet(call)
            since = loop.time()
            try:
                await self._converse(call, welcome)
            except YtkError as err:
                # One that ends at once, again and again, has to be slowed down as a refused one.
                if err.code in FATAL or loop.time() - since < welcome.heartbeat_interval_s:
                    raise
                _log.warning("session_lost", controller=self._address, code=err.code, error=err.message)
        except grpc.RpcError as err:
            raise from_rpc_error(err, peer=f"the controller at {self._address}") from err
        finally:
            self._outbox = None
            call.cancel()

    async def _greet(self, call: Any) -> Welcome:
        hello = Hello(worker=self._worker, session_id=self.session_id, running=self._owner.leases())
        try:
            async with asyncio.timeout(self._policy.welcome_within_s):
                await _write(call, hello)
                first = await _read(call)
        except TimeoutError:
            raise BoardError(
                f"the controller did not answer hello within {self._policy.welcome_within_s:g} s", code="deadline"
            ) from None
        if not isinstance(first, Welcome):
            raise BoardError("the controller answered hello with something else", code="unavailable")
        if first.version.protocol not in {0, PROTOCOL_VERSION}:
            raise UserError(
                f"the controller speaks protocol {first.version.protocol}, this agent {PROTOCOL_VERSION}",
                code="protocol_version",
                hint="Install the same version of yasp-toolkit on both sides.",
            )
        return first

    async def _converse(self, call: Any, welcome: Welcome) -> None:
        _log.info("session_open", controller=self._address, session_id=self.session_id)
        outbox = self._outbox = asyncio.Queue()
        self._may_claim.set()
        self._owner.welcomed(welcome)
        for verdict in welcome.verdicts:
            self._owner.judged(verdict)
        for claim_id in self._claims:  # not answered yet, or the answer was lost: the same id gives the same job
            outbox.put_nowait(Claim(claim_id=claim_id))
        heart = _Heart(max(welcome.heartbeat_interval_s, _MIN_HEARTBEAT_S), self._policy.silent_intervals)
        await together(
            self._write_all(call, outbox),
            self._beat(outbox, heart),
            self._read_all(call, heart),
            self._until_stopped(),
        )

    async def _write_all(self, call: Any, outbox: asyncio.Queue[AgentMessage]) -> None:
        while True:
            await _write(call, await outbox.get())

    async def _beat(self, outbox: asyncio.Queue[AgentMessage], heart: _Heart) -> None:
        while True:
            self._sequence += 1
            outbox.put_nowait(Heartbeat(sequence=self._sequence, leases=self._owner.leases()))
            await asyncio.sleep(heart.interval_s)
            heart.check()

    async def _read_all(self, call: Any, heart: _Heart) -> None:
        while True:
            message = await _read(call)
            heart.heard()
            match message:
                case HeartbeatAck():
                    for verdict in message.verdicts:
                        self._owner.judged(verdict)
                case LeaseVerdict():
                    self._owner.judged(message)
                case Assignment():
                    self._take(message)
                case Drain():
                    _log.info("drained", reason=message.reason)
                    self._may_claim.clear()
                case Welcome() | None:
                    pass  # a newer controller's message

    async def _until_stopped(self) -> None:
        await self._stop.wait()
        raise _StoppedError("the agent stops", code="shutting_down")

    def _take(self, assignment: Assignment) -> None:
        future = self._claims.pop(assignment.claim_id, None)
        if future is not None and not future.done():
            self._answered.append(assignment.claim_id)
            self._owner.assigned(assignment)
            future.set_result(assignment)
        elif assignment.claim_id not in self._answered:
            self._owner.unwanted(assignment)

    def _send(self, message: AgentMessage) -> None:
        if self._outbox is not None:
            self._outbox.put_nowait(message)

    async def _sleep(self, seconds: float) -> None:
        """Sleep, but not longer than the agent runs."""
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        except TimeoutError:
            pass

    def _say_waiting(self, state: tenacity.RetryCallState) -> None:
        err = state.outcome.exception() if state.outcome else None
        _log.warning(
            "controller_unreachable",
            controller=self._address,
            attempt=state.attempt_number,
            next_try_s=round(state.next_action.sleep, 2) if state.next_action else None,
            error=str(err),
            hint="Still trying. Start a controller there, or restart this agent with another --controller.",
        )


class _StoppedError(BoardError):
    pass


class _Heart:
    """Watches that the controller answers."""

    def __init__(self, interval_s: float, silent_intervals: float) -> None:
        self.interval_s = interval_s
        self._limit_s = interval_s * silent_intervals
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()

    def heard(self) -> None:
        self._heard_at = self._loop.time()

    def check(self) -> None:
        silent_s = self._loop.time() - self._heard_at
        if silent_s > self._limit_s:
            raise BoardError(f"the controller has not answered for {silent_s:.1f} s", code="deadline")


async def _write(call: Any, message: AgentMessage) -> None:
    try:
        await call.write(convert.agent_message_to_pb(message))
    except asyncio.CancelledError as err:
        if being_cancelled():
            raise
        raise cancelled_by_peer() from err
    except asyncio.InvalidStateError:
        raise await _ended(call) from None
    except grpc.RpcError as err:
        raise from_write_error(err) from err


async def _read(call: Any) -> ControllerMessage | None:
    answer = await once(call.read)
    if answer is grpc.aio.EOF:
        raise await _ended(call)
    return convert.controller_message_from_pb(answer)


async def _ended(call: Any) -> YtkError:
    """Give the error that a stream ended with, also where it ended without one."""
    code = await call.code()
    if code is grpc.StatusCode.OK:
        return BoardError("the controller ended the session", code="unavailable")
    err = grpc.aio.AioRpcError(
        code, await call.initial_metadata(), await call.trailing_metadata(), details=await call.details()
    )
    return from_rpc_error(err)
