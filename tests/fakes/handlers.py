"""Handlers for tests of the runtime."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from ytk_core.jobs import JobKind, JobResult

CHILD_ENV = {"PYTHONPATH": str(Path(__file__).parents[1])}


class Handler:
    """Does what a function says."""

    def __init__(self, work: Callable[[Any], Awaitable[JobResult]], *kinds: JobKind) -> None:
        self.kinds = frozenset(kinds or (JobKind.PLUGIN_BUILD,))
        self.run = work
        self.contexts: list[Any] = []


class Gate:
    """A handler that waits to be told; counts how many run at once."""

    def __init__(self, *kinds: JobKind) -> None:
        self.kinds = frozenset(kinds or (JobKind.PLUGIN_BUILD,))
        self.open = asyncio.Event()
        self.running = 0
        self.most = 0
        self.cancelled = 0
        self.entered = asyncio.Event()
        self.left = asyncio.Event()

    async def run(self, ctx: Any) -> JobResult:
        self.running += 1
        self.most = max(self.most, self.running)
        self.entered.set()
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
            self.left.set()
        return JobResult(summary={"job": ctx.lease.job_id})


async def child(ctx: Any, name: str, task: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """Run one of the tasks of :mod:`fakes.child_tasks`."""
    options.setdefault("sandbox", None)
    result: dict[str, Any] = await ctx.run_task(f"fakes.child_tasks:{name}", task or {}, env=CHILD_ENV, **options)
    return result
