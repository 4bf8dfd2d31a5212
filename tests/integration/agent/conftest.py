from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ytk_core.agent.runtime import AgentRuntime
from ytk_core.agent.session import SessionPolicy
from ytk_core.channels import aio_channel
from ytk_core.jobs import JobKind
from ytk_core.workers import WorkerDescription

from fakes.controller import WAIT_S, FakeController

TESTS = Path(__file__).parents[2]
# The fake beats every 50 ms; a controller that is silent for three beats is no news on a busy machine.
FAST = SessionPolicy(first_wait_s=0.02, longest_wait_s=0.1, welcome_within_s=WAIT_S, silent_intervals=WAIT_S / 0.05)


class Agent:
    """A runtime in the test's loop."""

    def __init__(self, runtime: AgentRuntime, task: asyncio.Task[None], state_dir: Path) -> None:
        self.runtime = runtime
        self.task = task
        self.state_dir = state_dir
        self.ready = asyncio.Event()
        self.awaited = False

    async def ended(self) -> None:
        self.awaited = True
        async with asyncio.timeout(WAIT_S):
            await self.task


StartAgent = Callable[..., Any]


@pytest.fixture
async def fake() -> AsyncIterator[FakeController]:
    async with FakeController() as controller:
        yield controller


@pytest.fixture
def start_agent(fake: FakeController, tmp_path: Path) -> StartAgent:
    @asynccontextmanager
    async def start(
        *handlers: Any,
        worker_id: str = "w1",
        slots: int = 1,
        device_uid: str = "",
        address: str | None = None,
        token: str | None = None,
        policy: SessionPolicy = FAST,
        sandbox_mode: Any = "required",
    ) -> AsyncIterator[Agent]:
        state_dir = tmp_path / worker_id
        state_dir.mkdir(exist_ok=True)
        kinds: tuple[JobKind, ...] = tuple(kind for handler in handlers for kind in handler.kinds)
        worker = WorkerDescription(worker_id=worker_id, role="test", kinds=kinds, slots=slots, device_uid=device_uid)
        async with aio_channel(address or fake.address, token) as channel:
            ready = asyncio.Event()
            runtime = AgentRuntime(
                channel,
                worker,
                handlers,
                state_dir=state_dir,
                sandbox_mode=sandbox_mode,
                policy=policy,
                lock_dir=tmp_path,
                on_ready=ready.set,
                address=address or fake.address,
            )
            agent = Agent(runtime, asyncio.create_task(runtime.run(), name=f"agent-{worker_id}"), state_dir)
            agent.ready = ready
            try:
                yield agent
            finally:
                agent.task.cancel()
                with contextlib.suppress(asyncio.CancelledError, *([Exception] if agent.awaited else [])):
                    await agent.task

    return start
