"""Tells those who wait in this process that something changed."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict, deque
from collections.abc import Iterator

from ytk_controller.jobs.model import JobRecord
from ytk_core.errors import BoardError

# A watcher that reads slowly misses intermediate progress, never the last state.
_KEEP = 256


class ShuttingDownError(BoardError):
    """The controller stops; the call may be tried again."""

    default_code = "shutting_down"


class Subscription:
    """What one watcher has not seen yet."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._changed = asyncio.Event()
        self._jobs: deque[JobRecord] = deque(maxlen=_KEEP)

    def put(self, job: JobRecord | None) -> None:
        """Add a new version of the job, or (None) only wake the watcher."""
        if job is not None:
            self._jobs.append(job)
        self._changed.set()

    async def wait(self, timeout_s: float | None) -> list[JobRecord]:
        """Give what came since the last call, oldest first; empty after a mere wake or after ``timeout_s``.

        Raises:
            ShuttingDownError: The controller stops.
        """
        self._hub.check_open()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        self._hub.check_open()
        self._changed.clear()
        jobs = list(self._jobs)
        self._jobs.clear()
        return jobs


class Hub:
    """Subscriptions by job. All methods run on the loop."""

    def __init__(self) -> None:
        self._subscriptions: defaultdict[str, set[Subscription]] = defaultdict(set)
        self._closed = False

    @contextlib.contextmanager
    def subscribe(self, job_id: str) -> Iterator[Subscription]:
        """Hear of a job's changes and of its log from now on."""
        subscription = Subscription(self)
        self._subscriptions[job_id].add(subscription)
        try:
            yield subscription
        finally:
            watchers = self._subscriptions[job_id]
            watchers.discard(subscription)
            if not watchers:
                del self._subscriptions[job_id]

    def publish(self, job: JobRecord) -> None:
        """Show a new version of a job to its watchers."""
        for subscription in self._subscriptions.get(job.id, ()):
            subscription.put(job)

    def log_grew(self, job_id: str) -> None:
        """Wake those who follow a job's log."""
        for subscription in self._subscriptions.get(job_id, ()):
            subscription.put(None)

    def close(self) -> None:
        """End every wait with ShuttingDownError."""
        self._closed = True
        for watchers in self._subscriptions.values():
            for subscription in watchers:
                subscription.put(None)

    def check_open(self) -> None:
        """Raise ShuttingDownError after :meth:`close`."""
        if self._closed:
            raise ShuttingDownError("the controller shuts down", hint="Try again in a moment.")
