"""No unary call takes longer than its deadline, or ours where the caller set none."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from ytk_controller.interceptors.around import Around, CallInfo, Context
from ytk_core.errors import BoardError

# Every unary call is one transaction and a few file operations; a minute means that the disk hangs.
LIMIT_S = 60.0


class DeadlineInterceptor(Around):
    """Ends unary calls that take too long. Streams have idle limits of their own."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s

    @contextlib.asynccontextmanager
    async def around(self, call: CallInfo, context: Context) -> AsyncIterator[None]:
        """Bound the call."""
        if call.request_streaming or call.response_streaming:
            yield
            return
        remaining = context.time_remaining()
        limit_s = self._limit_s if remaining is None else min(remaining, self._limit_s)
        try:
            async with asyncio.timeout(limit_s):
                yield
        except TimeoutError:
            raise BoardError(
                f"{call.rpc} took longer than {limit_s:.0f} s", code="deadline", hint="Try again; look at the disk."
            ) from None
