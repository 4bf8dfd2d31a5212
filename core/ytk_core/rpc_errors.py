"""Carry a YtkError over gRPC: status code for machines that know only gRPC, and all four fields in trailing metadata.

Peers branch on ``code`` from the metadata, never on the message. The details text repeats the message for other tools.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import grpc
import msgspec

from ytk_core.errors import BoardError, FailureClass, RemoteError, ToolkitError, UserError, YtkError

METADATA_KEY = "ytk-error-bin"

# Metadata as a whole is limited to 8 KiB by default; longer texts belong into the job's log.
_MAX_MESSAGE_CHARS = 1500
_MAX_HINT_CHARS = 600

STATUS_OF_CODE: dict[str, grpc.StatusCode] = {
    # who and whether
    "unauthenticated": grpc.StatusCode.UNAUTHENTICATED,
    "permission_denied": grpc.StatusCode.PERMISSION_DENIED,
    # requests
    "bad_message": grpc.StatusCode.INVALID_ARGUMENT,
    "bad_arch_spec": grpc.StatusCode.INVALID_ARGUMENT,
    "bad_digest": grpc.StatusCode.INVALID_ARGUMENT,
    "invalid_input": grpc.StatusCode.INVALID_ARGUMENT,
    "invalid_format": grpc.StatusCode.INVALID_ARGUMENT,
    "unknown_kind": grpc.StatusCode.INVALID_ARGUMENT,
    "not_found": grpc.StatusCode.NOT_FOUND,
    "already_exists": grpc.StatusCode.ALREADY_EXISTS,
    "idempotency_conflict": grpc.StatusCode.ALREADY_EXISTS,
    "protocol_version": grpc.StatusCode.FAILED_PRECONDITION,
    # jobs and leases
    "unsatisfiable": grpc.StatusCode.FAILED_PRECONDITION,
    "input_missing": grpc.StatusCode.FAILED_PRECONDITION,
    "output_missing": grpc.StatusCode.FAILED_PRECONDITION,
    "stale_lease": grpc.StatusCode.FAILED_PRECONDITION,
    "invalid_transition": grpc.StatusCode.FAILED_PRECONDITION,
    "not_available": grpc.StatusCode.FAILED_PRECONDITION,
    "session_replaced": grpc.StatusCode.ABORTED,
    # bytes
    "write_offset": grpc.StatusCode.OUT_OF_RANGE,
    "log_gap": grpc.StatusCode.OUT_OF_RANGE,
    "digest_mismatch": grpc.StatusCode.DATA_LOSS,
    "too_large": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "disk_full": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "queue_full": grpc.StatusCode.RESOURCE_EXHAUSTED,
    # servers
    "infrastructure": grpc.StatusCode.UNAVAILABLE,
    "database": grpc.StatusCode.UNAVAILABLE,
    "disk": grpc.StatusCode.UNAVAILABLE,
    "object_store": grpc.StatusCode.UNAVAILABLE,
    "unavailable": grpc.StatusCode.UNAVAILABLE,
    "shutting_down": grpc.StatusCode.UNAVAILABLE,
    "deadline": grpc.StatusCode.DEADLINE_EXCEEDED,
    "internal": grpc.StatusCode.INTERNAL,
}
"""The one table. A code that is not listed gets the status of its failure class."""

STATUS_OF_CLASS: dict[FailureClass, grpc.StatusCode] = {
    FailureClass.YOURS: grpc.StatusCode.INVALID_ARGUMENT,
    FailureClass.CANDIDATES: grpc.StatusCode.FAILED_PRECONDITION,
    FailureClass.BOARDS: grpc.StatusCode.UNAVAILABLE,
    FailureClass.OURS: grpc.StatusCode.INTERNAL,
}

RETRYABLE: frozenset[grpc.StatusCode] = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
)
"""Statuses after which an idempotent call may be tried again: the peer may not have seen it."""


class _Wire(msgspec.Struct, kw_only=True):
    failure_class: FailureClass
    code: str
    message: str
    hint: str = ""
    offset: int | None = None


class Status(NamedTuple):
    """What a servicer's ``context.abort`` takes."""

    code: grpc.StatusCode
    details: str
    trailing: tuple[tuple[str, bytes], ...]


def to_status(err: YtkError) -> Status:
    """Give the status that carries an error.

    An ``offset`` attribute of the error (codes ``write_offset`` and ``log_gap``) travels with it.
    """
    code = STATUS_OF_CODE.get(err.code) or STATUS_OF_CLASS[err.failure_class]
    message = _clip(err.message, _MAX_MESSAGE_CHARS)
    wire = _Wire(
        failure_class=err.failure_class,
        code=err.code,
        message=message,
        hint=_clip(err.hint, _MAX_HINT_CHARS),
        offset=getattr(err, "offset", None),
    )
    return Status(code, message, ((METADATA_KEY, msgspec.msgpack.encode(wire)),))


class OffsetError(UserError):
    """A write or an append did not begin where the receiver stands; ``offset`` is where it stands.

    Code ``write_offset`` for artifacts, ``log_gap`` for logs.
    """

    def __init__(self, message: str, *, code: str, offset: int, hint: str = "") -> None:
        super().__init__(message, code=code, hint=hint)
        self.offset = offset


def from_rpc_error(err: grpc.RpcError, *, peer: str = "the controller") -> YtkError:
    """Give the error that a failed call carried.

    Args:
        err: From a synchronous or an aio stub.
        peer: Who was called, for the message where nobody answered.

    Returns:
        RemoteError with the peer's own class, code and hint (OffsetError where it names an offset). Where the status
        came from gRPC itself: BoardError ``unavailable`` or ``deadline``, UserError ``unauthenticated``,
        ``permission_denied`` or ``protocol_version``, else ToolkitError.
    """
    wire = _wire_of(err)
    if wire is not None and wire.offset is not None:
        return OffsetError(wire.message, code=wire.code, offset=wire.offset, hint=wire.hint)
    if wire is not None:
        return RemoteError(wire.message, code=wire.code, hint=wire.hint, failure_class=wire.failure_class)
    status, details = _status_of(err), _details_of(err)
    match status:
        case grpc.StatusCode.UNAVAILABLE:
            return BoardError(
                f"{peer} does not answer: {details}",
                code="unavailable",
                hint="Start one with `ytk up`, or name a running one with --controller HOST:PORT.",
            )
        case grpc.StatusCode.DEADLINE_EXCEEDED | grpc.StatusCode.CANCELLED:
            return BoardError(f"{peer} did not answer in time: {details}", code="deadline", hint="Try again.")
        case grpc.StatusCode.UNAUTHENTICATED:
            return UserError(f"{peer} refused the key: {details}", code="unauthenticated", hint="Check the API key.")
        case grpc.StatusCode.PERMISSION_DENIED:
            return UserError(f"{peer} does not allow this: {details}", code="permission_denied")
        case grpc.StatusCode.UNIMPLEMENTED:
            return UserError(
                f"{peer} does not know this call: {details}",
                code="protocol_version",
                hint="It is older than this software, or no yasp-toolkit controller at all.",
            )
        case _:
            return ToolkitError(f"{peer} failed with {status.name}: {details}")


def from_write_error(err: grpc.RpcError) -> YtkError:
    """Give the error of a failed write to a stream.

    Where the peer ends a stream while grpc.aio writes to it, the peer's status is lost and INTERNAL is reported: that is
    a broken stream and no bug of the peer.
    """
    if _wire_of(err) is None and _status_of(err) is grpc.StatusCode.INTERNAL:
        return BoardError("the stream broke while it was written to", code="unavailable", hint="Try again.")
    return from_rpc_error(err)


def being_cancelled() -> bool:
    """Whether the current task was told to stop.

    grpc.aio raises ``asyncio.CancelledError`` also where the *peer* ended the call with CANCELLED (a server that stops
    does): who catches it has to ask.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def cancelled_by_peer() -> BoardError:
    """Give the error for a call that ended with CancelledError while nobody cancelled us."""
    return BoardError("the controller cancelled the call", code="unavailable", hint="It may be restarting: try again.")


def _wire_of(err: grpc.RpcError) -> _Wire | None:
    trailing: Any = err.trailing_metadata() if isinstance(err, grpc.Call | grpc.aio.AioRpcError) else None
    for key, value in trailing or ():
        if key == METADATA_KEY:
            try:
                return msgspec.msgpack.decode(value, type=_Wire)
            except msgspec.MsgspecError:
                return None  # a proxy's or a newer peer's: the status says enough
    return None


def _status_of(err: grpc.RpcError) -> grpc.StatusCode:
    return err.code() if isinstance(err, grpc.Call | grpc.aio.AioRpcError) else grpc.StatusCode.UNKNOWN


def _details_of(err: grpc.RpcError) -> str:
    details = err.details() if isinstance(err, grpc.Call | grpc.aio.AioRpcError) else str(err)
    return details or "no details"


def _clip(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
