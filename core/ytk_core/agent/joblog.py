"""Sends a job's log and progress to the controller while the job runs."""

from __future__ import annotations

import asyncio
import functools
from collections import deque

import structlog
import tenacity

from ytk_core import convert
from ytk_core.agent.calls import BACKOFF, CALL_DEADLINE_S, Stubs, once, transient
from ytk_core.errors import YtkError
from ytk_core.jobs import Lease
from ytk_core.rpc_errors import OffsetError
from ytk_core.together import together
from ytk_proto.v1 import agents_pb2 as pb

_log = structlog.get_logger(__name__)

# What may wait while the controller is away. A job that writes more loses the middle, and its log says so.
MAX_PENDING_BYTES = 4 * 1024 * 1024
# What one attempt may send in all: a task that prints in a loop must not fill the controller's disk.
MAX_TOTAL_BYTES = 64 * 1024 * 1024
_CHUNK_BYTES = 256 * 1024
_PROGRESS_EVERY_S = 0.5


def _worth_waiting(err: BaseException) -> bool:
    # A controller without room takes no log, and the commit must not wait for it.
    return transient(err) and not (isinstance(err, YtkError) and err.code == "disk_full")


class JobLog:
    """The log and the progress of one attempt.

    Everything but :meth:`run` and :meth:`flush` only queues and never blocks.

    Args:
        stubs: To the controller.
        lease: Of the attempt.
        max_pending_bytes: What may wait to be sent.
        max_total_bytes: What is sent in all.
    """

    def __init__(
        self,
        stubs: Stubs,
        lease: Lease,
        *,
        max_pending_bytes: int = MAX_PENDING_BYTES,
        max_total_bytes: int = MAX_TOTAL_BYTES,
    ) -> None:
        self._stubs = stubs
        self._lease = convert.lease_to_pb(lease)
        self._max_pending_bytes = max_pending_bytes
        self._max_total_bytes = max_total_bytes
        self._pending: deque[bytes] = deque()
        self._pending_bytes = 0
        self._base = 0
        """Offset of the first pending byte."""
        self._total = 0
        self._dropped = 0
        self._refused = False
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._progress: tuple[float, str] = (0.0, "")
        self._progressed = asyncio.Event()

    def write(self, chunk: bytes) -> None:
        """Queue log bytes."""
        if self._refused or not chunk:
            return
        if self._total >= self._max_total_bytes or self._pending_bytes + len(chunk) > self._max_pending_bytes:
            self._dropped += len(chunk)
            return
        self._say_dropped()
        self._queue(chunk)

    def progress(self, fraction: float, note: str) -> None:
        """Queue progress; only the latest is sent."""
        self._progress = (min(max(fraction, 0.0), 1.0), note)
        self._progressed.set()

    async def run(self) -> None:
        """Send for as long as the attempt lasts; ends only by cancellation."""
        try:
            await together(self._send_log(), self._send_progress())
        finally:
            # Nobody sends any more: nobody may wait for it.
            self._refused = True
            self._idle.set()

    async def finish(self) -> None:
        """Say what is missing at the end, and wait as :meth:`flush` does."""
        self._say_dropped()
        await self.flush()

    async def flush(self) -> None:
        """Wait until everything queued was sent, or the controller refused the log."""
        await self._idle.wait()

    def _say_dropped(self) -> None:
        if self._dropped and not self._refused:
            self._queue(f"\n[{self._dropped} bytes of log were dropped here]\n".encode())
            self._dropped = 0

    def _queue(self, chunk: bytes) -> None:
        for start in range(0, len(chunk), _CHUNK_BYTES):
            self._pending.append(chunk[start : start + _CHUNK_BYTES])
        self._pending_bytes += len(chunk)
        self._total += len(chunk)
        self._idle.clear()
        self._wake.set()

    async def _send_log(self) -> None:
        retrying = tenacity.AsyncRetrying(retry=tenacity.retry_if_exception(_worth_waiting), wait=BACKOFF, reraise=True)
        while True:
            while not self._pending:
                self._idle.set()
                self._wake.clear()
                await self._wake.wait()
            try:
                await retrying(self._send_chunk)
            except OffsetError as err:
                self._continue_at(err.offset)
            except YtkError as err:
                # A stale lease, or a controller that takes no log: the job itself does not depend on it.
                _log.warning("job_log_refused", code=err.code, error=err.message)
                self._refused = True
                self._pending.clear()

    async def _send_chunk(self) -> None:
        data = b"".join(self._take())
        request = pb.AppendLogRequest(lease=self._lease, offset=self._base, data=data)
        answer = await once(lambda: self._stubs.agents.AppendLog(request, timeout=CALL_DEADLINE_S))
        self._drop_to(answer.next_offset)

    def _take(self) -> list[bytes]:
        taken: list[bytes] = []
        size = 0
        for chunk in self._pending:
            if size + len(chunk) > _CHUNK_BYTES:
                break
            taken.append(chunk)
            size += len(chunk)
        return taken

    def _continue_at(self, offset: int) -> None:
        """Go on where the receiver stands: behind us where it lost what it had acknowledged (it crashed)."""
        if offset < self._base:
            _log.warning("job_log_lost", from_offset=offset, to_offset=self._base)
            self._base = offset
        else:
            self._drop_to(offset)

    def _drop_to(self, offset: int) -> None:
        surplus = offset - self._base
        while self._pending and surplus > 0:
            chunk = self._pending.popleft()
            if len(chunk) > surplus:
                self._pending.appendleft(chunk[surplus:])
            used = min(len(chunk), surplus)
            surplus -= used
            self._pending_bytes -= used
        self._base = offset

    async def _send_progress(self) -> None:
        while True:
            await self._progressed.wait()
            self._progressed.clear()
            fraction, note = self._progress
            request = pb.ReportProgressRequest(lease=self._lease, fraction=fraction, note=note)
            try:
                await once(functools.partial(self._stubs.agents.ReportProgress, request, timeout=CALL_DEADLINE_S))
            except YtkError as err:  # the next report, or the job's end, says it anyway
                _log.debug("progress_not_reported", code=err.code)
            await asyncio.sleep(_PROGRESS_EVERY_S)
