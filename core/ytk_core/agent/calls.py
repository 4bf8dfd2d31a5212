"""The agent's calls to the controller: deadlines, and patience for as long as the lease lives."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import grpc
import grpc.aio
import structlog
import tenacity

from ytk_core.errors import FailureClass, YtkError
from ytk_core.rpc_errors import being_cancelled, cancelled_by_peer, from_rpc_error
from ytk_proto.v1 import agents_pb2_grpc, jobs_pb2_grpc

T = TypeVar("T")

CALL_DEADLINE_S = 30.0
STALE_LEASE = "stale_lease"
BACKOFF = tenacity.wait_random_exponential(multiplier=0.5, max=15.0)

_log = structlog.get_logger(__name__)


class Stubs:
    """The services that an agent calls, over one channel."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.agents: agents_pb2_grpc.AgentServiceAsyncStub = agents_pb2_grpc.AgentServiceStub(channel)
        self.jobs: jobs_pb2_grpc.JobServiceAsyncStub = jobs_pb2_grpc.JobServiceStub(channel)


def transient(err: BaseException) -> bool:
    """Whether the same call may work later: whatever is wrong with the controller's machine, also a full disk.

    The job is the controller's to give up, not ours: its verdict (abandon) ends the waiting.
    """
    return isinstance(err, YtkError) and err.failure_class is FailureClass.BOARDS


async def once(call: Callable[[], Awaitable[T]]) -> T:
    """Make a call; a failure is raised as the YtkError that it carries."""
    try:
        return await call()
    except asyncio.CancelledError as err:
        if being_cancelled():
            raise
        raise cancelled_by_peer() from err
    except grpc.RpcError as err:
        raise from_rpc_error(err) from err


async def until_answered(what: str, call: Callable[[], Awaitable[T]]) -> T:
    """Make an idempotent call again and again until it is answered.

    Args:
        what: For the log.
        call: Makes it, with a deadline of its own.

    Raises:
        YtkError: The answer, where it is an error that another try does not change.
    """

    def say(state: tenacity.RetryCallState) -> None:
        err = state.outcome.exception() if state.outcome else None
        _log.warning("call_repeated", call=what, attempt=state.attempt_number, error=str(err))

    retrying = tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception(transient), wait=BACKOFF, before_sleep=say, reraise=True
    )
    return await retrying(once, call)
