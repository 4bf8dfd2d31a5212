"""A real controller in process on port 0, and the two kinds of peers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from ytk_controller.config import Config
from ytk_controller.jobs.model import Policy
from ytk_controller.server import running
from ytk_controller.tokens import TokenRecord, hash_token

from fakes.store_agents import AGENT_TOKEN, CLIENT_TOKEN, Peers

TOKENS = (
    TokenRecord(name="alice", scope="client", sha256=hash_token(CLIENT_TOKEN)),
    TokenRecord(name="board", scope="agent", sha256=hash_token(AGENT_TOKEN)),
)

Controllers = Callable[..., AbstractAsyncContextManager[Peers]]


@pytest.fixture
def controllers(tmp_path: Path) -> Controllers:
    """Start controllers on one state directory, one after the other."""

    @asynccontextmanager
    async def start(policy: Policy | None = None, listen: str = "127.0.0.1:0") -> AsyncIterator[Peers]:
        config = Config(
            state_dir=tmp_path / "state",
            listen=listen,
            tokens=TOKENS,
            policy=policy or Policy(lease_s=30, heartbeat_s=5),
            grace_s=1.0,
        )
        async with running(config) as controller, Peers.connect(controller.address) as peers:
            peers.controller = controller
            yield peers

    return start


@pytest.fixture
async def peers(controllers: Controllers) -> AsyncIterator[Peers]:
    """A running controller with a client's and an agent's channel to it."""
    async with controllers() as one:
        yield one
