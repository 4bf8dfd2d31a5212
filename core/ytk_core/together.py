"""Run coroutines side by side and end them together, without losing a cancellation.

``asyncio.TaskGroup`` (Python 3.11) raises only the failure where a child fails while the parent is being cancelled, and
leaves the parent's count of cancellations raised where a child fails while the group is being left. A loop that goes on
after such a failure could then not be stopped. The daemons' top level uses a TaskGroup; what may fail and go on uses
this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def together(*works: Coroutine[Any, Any, object], first_ends_all: bool = False) -> None:
    """Run all of them to their ends.

    Args:
        works: Each becomes a task.
        first_ends_all: The first that returns ends the others too; otherwise only one that fails does.

    Raises:
        BaseException: The first failure; the others are cancelled and have ended by then.
    """
    tasks = [asyncio.create_task(work, name=getattr(work, "__qualname__", "together")) for work in works]
    if not tasks:
        return
    when = asyncio.FIRST_COMPLETED if first_ends_all else asyncio.FIRST_EXCEPTION
    try:
        done, _ = await asyncio.wait(tasks, return_when=when)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end whatever cancels the caller; the cancellation is raised afterwards.

    For cleaning up, which has to be short: a second cancellation does not interrupt it either.
    """
    task = asyncio.create_task(work, name=getattr(work, "__qualname__", "to-its-end"))
    cancelled = await _outlast(task)
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # retrieved: the cancellation is what the caller gets
        raise cancelled
    return task.result()


async def cancel_and_wait(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait until it has ended, also where the caller is cancelled (again) meanwhile."""
    task.cancel()
    cancelled = await _outlast(task)
    if cancelled is not None:
        raise cancelled


async def _outlast(task: asyncio.Task[Any]) -> asyncio.CancelledError | None:
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as err:
            cancelled = err
    return cancelled
