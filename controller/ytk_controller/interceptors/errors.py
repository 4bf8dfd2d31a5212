"""Turns domain errors into statuses, in one place."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import grpc
import structlog

from ytk_controller.interceptors.around import Around, CallInfo, Context
from ytk_core.errors import ToolkitError, YtkError
from ytk_core.rpc_errors import to_status

_log = structlog.get_logger(__name__)


class ErrorInterceptor(Around):
    """Domain errors become their status with the details in trailing metadata; anything else is INTERNAL."""

    @contextlib.asynccontextmanager
    async def around(self, call: CallInfo, context: Context) -> AsyncIterator[None]:
        """Map what the call raises."""
        try:
            yield
        except grpc.aio.AbortError:
            raise  # mapped already
        except YtkError as err:
            status = to_status(err)
            await context.abort(status.code, status.details, status.trailing)
        except Exception:  # noqa: BLE001 - a bug of ours; logged with its traceback, the caller learns no more
            _log.exception("unexpected_error", method=call.method)
            public = ToolkitError("the controller failed on this call", hint="Its log has the traceback; report it.")
            status = to_status(public)
            await context.abort(status.code, status.details, status.trailing)
