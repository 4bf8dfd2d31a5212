from __future__ import annotations

import asyncio

import pytest

from ytk_core.together import cancel_and_wait, to_its_end, together


async def test_all_run_to_their_ends() -> None:
    seen: list[int] = []

    async def work(number: int) -> None:
        await asyncio.sleep(0)
        seen.append(number)

    await together(*(work(number) for number in range(3)))
    await together()
    assert sorted(seen) == [0, 1, 2]


async def test_a_failure_ends_the_others() -> None:
    ended = asyncio.Event()

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def fail() -> None:
        await asyncio.sleep(0)
        raise KeyError("x")

    with pytest.raises(KeyError):
        await together(wait(), fail())
    assert ended.is_set()


async def test_the_first_ends_all_if_told() -> None:
    async def quick() -> None:
        await asyncio.sleep(0)

    await asyncio.wait_for(together(quick(), asyncio.Event().wait(), first_ends_all=True), 240)


async def test_a_cancellation_that_meets_a_failure_wins() -> None:
    """What asyncio.TaskGroup of Python 3.11 gets wrong: a retry loop around it could not be stopped."""
    slow_to_end = asyncio.Event()

    async def reluctant() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await slow_to_end.wait()

    async def fail() -> None:
        raise KeyError("x")

    async def loop_that_goes_on() -> None:
        while True:
            try:
                await together(reluctant(), fail())
            except KeyError:
                continue

    task = asyncio.create_task(loop_that_goes_on())
    for _ in range(5):
        await asyncio.sleep(0)
    task.cancel()
    slow_to_end.set()
    await asyncio.wait({task}, timeout=240)
    assert task.cancelled()


async def test_cleaning_up_outlasts_repeated_cancellations() -> None:
    go, done = asyncio.Event(), asyncio.Event()

    async def clean() -> str:
        await go.wait()
        done.set()
        return "clean"

    assert await to_its_end(asyncio.sleep(0, "value")) == "value"
    task = asyncio.create_task(to_its_end(clean()))
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    go.set()
    await asyncio.wait({task})
    assert task.cancelled()
    assert done.is_set()


async def test_cancel_and_wait_outlasts_its_own_cancellation() -> None:
    go = asyncio.Event()

    async def reluctant() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await go.wait()

    inner = asyncio.create_task(reluctant())
    await asyncio.sleep(0)
    outer = asyncio.create_task(cancel_and_wait(inner))
    for _ in range(3):
        await asyncio.sleep(0)
        outer.cancel()
    await asyncio.sleep(0)
    assert not outer.done()
    go.set()
    await asyncio.wait({outer})
    assert outer.cancelled()
    assert inner.cancelled()
