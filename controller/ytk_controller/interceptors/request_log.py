"""A request id and one log line per call."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import re
import secrets
import time
from collections.abc import AsyncIterator

import structlog

from ytk_controller.interceptors.around import Around, CallInfo, Context

REQUEST_ID_KEY = "ytk-request-id"
REQUEST_ID: contextvars.ContextVar[str] = contextvars.ContextVar("ytk_request_id")

# The id goes into logs and histories: nothing that could forge a line of them.
_SAFE = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")

_log = structlog.get_logger(__name__)


class RequestLogInterceptor(Around):
    """Takes the caller's request id or makes one, binds it to the log, and logs how the call ended."""

    @contextlib.asynccontextmanager
    async def around(self, call: CallInfo, context: Context) -> AsyncIterator[None]:
        """Bind and log."""
        given = call.metadata.get(REQUEST_ID_KEY, "")
        request_id = given if isinstance(given, str) and _SAFE.match(given) else secrets.token_hex(6)
        bound = REQUEST_ID.set(request_id)
        # Asked now: a stream that is thrown away may be closed after its call is gone, and gRPC then reads freed memory.
        peer = context.peer()
        began = time.perf_counter()
        ended = "ok"
        try:
            with structlog.contextvars.bound_contextvars(request_id=request_id):
                yield
        except asyncio.CancelledError:
            ended = "cancelled"
            raise
        except BaseException:
            ended = "error"
            raise
        finally:
            # A stream that is thrown away may be closed in another context.
            with contextlib.suppress(ValueError):
                REQUEST_ID.reset(bound)
            write = _log.debug if ended == "ok" else _log.info
            write(
                "call",
                method=call.method,
                peer=peer,
                ended=ended,
                details=context.details() if ended == "error" else None,
                ms=round((time.perf_counter() - began) * 1e3, 2),
                request_id=request_id,
            )
