"""What clients ask of jobs: submit, look, watch, read the log, cancel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection

from ytk_controller.artifacts.store import ArtifactStore
from ytk_controller.jobs.model import JobRecord, cache_key
from ytk_controller.jobs.submitting import SubmitAnswer, SubmitRequest, cancel, submit
from ytk_controller.live.desk import Desk
from ytk_controller.live.logs import JobLogs
from ytk_core.jobs import JobState

MAX_LISTED = 1000
_DEFAULT_LISTED = 100
# A change made by another controller on the same database is seen this late.
_SHARED_POLL_S = 2.0


class JobDesk:
    """Jobs as clients use them.

    Args:
        desk: The desk.
        artifacts: Asked whether cached results are still there.
        logs: The log files.
    """

    def __init__(self, desk: Desk, artifacts: ArtifactStore, logs: JobLogs) -> None:
        self._desk = desk
        self._artifacts = artifacts
        self._logs = logs
        self._poll_s = _SHARED_POLL_S if desk.store.shared else None

    async def submit(self, request: SubmitRequest) -> SubmitAnswer:
        """Submit a job; see :func:`ytk_controller.jobs.submitting.submit`."""
        if not request.spec.no_cache:
            await self._check_cached(request)
        return await self._desk.do(lambda turn: submit(turn, request))

    async def get(self, job_id: str) -> JobRecord:
        """Give a job.

        Raises:
            UserError: There is none (code ``not_found``).
        """
        return await self._desk.do(lambda turn: turn.job(job_id))

    async def list(
        self, *, states: Collection[JobState], parent_id: str, limit: int, before_id: str
    ) -> list[JobRecord]:
        """List jobs, newest first; a limit of 0 means 100."""
        limit = min(limit or _DEFAULT_LISTED, MAX_LISTED)
        return await self._desk.do(
            lambda turn: turn.tx.list_jobs(states=states, parent_id=parent_id, limit=limit, before_id=before_id)
        )

    async def cancel(self, job_id: str, submission_id: str) -> JobRecord:
        """Detach one submitter or cancel for all; see :func:`ytk_controller.jobs.submitting.cancel`."""
        return await self._desk.do(lambda turn: cancel(turn, job_id, submission_id))

    async def watch(self, job_id: str) -> AsyncIterator[JobRecord]:
        """Give the job now and after every change; ends after the terminal state.

        Raises:
            UserError: There is no such job (code ``not_found``).
            ShuttingDownError: The controller stops.
        """
        with self._desk.hub.subscribe(job_id) as subscription:
            shown = await self.get(job_id)
            yield shown
            while not shown.state.terminal:
                news = await subscription.wait(self._poll_s)
                if not news and self._desk.store.shared:
                    news = [await self.get(job_id)]
                for job in news:
                    if _is_newer(job, shown):
                        shown = job
                        yield shown

    async def read_log(self, job_id: str, offset: int, *, follow: bool) -> AsyncIterator[tuple[int, bytes]]:
        """Give log bytes with their offset; with ``follow``, until the job is terminal and everything was given.

        Raises:
            UserError: There is no such job (code ``not_found``).
            ShuttingDownError: The controller stops.
        """
        with self._desk.hub.subscribe(job_id) as subscription:
            while True:
                # Read the state first: what is in the log after a terminal state was seen is all there will be.
                over = not follow or (await self.get(job_id)).state.terminal
                while data := await asyncio.to_thread(self._logs.read, job_id, offset):
                    yield offset, data
                    offset += len(data)
                if over:
                    return
                await subscription.wait(self._poll_s)

    async def _check_cached(self, request: SubmitRequest) -> None:
        key = cache_key(request.spec, self._desk.rules.toolchain)
        cached = await self._desk.do(lambda turn: turn.tx.cached(key))
        if cached is not None and cached.result is not None:
            # Brings the record of blobs up to date, which the submitting transaction goes by.
            await self._artifacts.missing([blob.digest for blob in cached.result.outputs])


def _is_newer(job: JobRecord, shown: JobRecord) -> bool:
    return job != shown and (len(job.history), job.updated_at) >= (len(shown.history), shown.updated_at)
