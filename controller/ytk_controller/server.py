"""The composition root: builds the controller, serves until told to stop, takes it down in order."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import sqlalchemy as sa
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from ytk_controller.artifacts.blobs import open_blobs
from ytk_controller.artifacts.parts import Parts
from ytk_controller.artifacts.store import ArtifactStore
from ytk_controller.config import Config
from ytk_controller.interceptors.auth import AuthInterceptor
from ytk_controller.interceptors.deadline import DeadlineInterceptor
from ytk_controller.interceptors.errors import ErrorInterceptor
from ytk_controller.interceptors.request_log import RequestLogInterceptor
from ytk_controller.jobs.turn import Rules
from ytk_controller.jobs.upkeep import controller_returned
from ytk_controller.live.agent_desk import AgentDesk, own_version
from ytk_controller.live.desk import Desk
from ytk_controller.live.dispatcher import Dispatcher
from ytk_controller.live.fleet_desk import FleetDesk
from ytk_controller.live.hub import ShuttingDownError
from ytk_controller.live.job_desk import JobDesk
from ytk_controller.live.logs import JobLogs
from ytk_controller.live.reaper import Reaper
from ytk_controller.services.agents import AgentServicer
from ytk_controller.services.artifacts import ArtifactServicer
from ytk_controller.services.fleet import FleetServicer
from ytk_controller.services.jobs import JobServicer
from ytk_controller.store.base import Store, TokenRecord, Tx
from ytk_controller.store.postgres import PostgresStore
from ytk_controller.store.sqlite import SqliteStore
from ytk_controller.tokens import Tokens
from ytk_core.channels import aio_server_options, is_loopback
from ytk_core.errors import BoardError, UserError
from ytk_proto.v1 import (
    agents_pb2,
    agents_pb2_grpc,
    artifacts_pb2,
    artifacts_pb2_grpc,
    fleet_pb2,
    fleet_pb2_grpc,
    jobs_pb2,
    jobs_pb2_grpc,
)

DATABASE_FILE = "controller.db"

_SERVICES = tuple(
    module.DESCRIPTOR.services_by_name[name].full_name
    for module, name in (
        (jobs_pb2, "JobService"),
        (artifacts_pb2, "ArtifactService"),
        (agents_pb2, "AgentService"),
        (fleet_pb2, "FleetService"),
    )
)

_log = structlog.get_logger(__name__)


class AddressError(UserError):
    """The address cannot be listened on."""

    default_code = "address"


class StateDirError(UserError):
    """The state directory cannot be used."""

    default_code = "state_dir"


@dataclass(frozen=True, kw_only=True)
class Running:
    """A controller that serves. ``address`` is what it bound; ``failed`` is done when a background task died."""

    address: str
    desk: Desk
    failed: asyncio.Future[None]


@contextlib.asynccontextmanager
async def running(config: Config) -> AsyncIterator[Running]:
    """Run a controller for the time of the block.

    On leaving: takes no new calls, ends streams so that agents reconnect elsewhere or later, waits ``grace_s`` for
    calls in progress, closes the store.

    Raises:
        StateDirError: The state directory cannot be used.
        DatabaseLockedError: Another controller has the SQLite file.
        AddressError: The address is taken or wrong.
        BoardError: The database cannot be opened.
    """
    make_state_dir(config.state_dir)
    store = await asyncio.to_thread(open_store, config)
    try:
        async with _serving(config, store) as controller:
            yield controller
    finally:
        await asyncio.to_thread(store.close)


async def serve(config: Config, stop: asyncio.Event, ready: Callable[[str], None]) -> None:
    """Serve until ``stop`` is set.

    Args:
        config: Configuration.
        stop: Set by signals.
        ready: Called with the bound address once calls are served.
    """
    async with running(config) as controller:
        ready(controller.address)
        _log.info("ready", address=controller.address, version=own_version().software)
        stopped = asyncio.create_task(stop.wait(), name="stop")
        either: set[asyncio.Future[Any]] = {stopped, controller.failed}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        _log.info("stopping")
        if controller.failed.done():
            controller.failed.result()  # raises what ended the background task


def open_store(config: Config) -> Store:
    """Open the store that the configuration names.

    Raises:
        UserError: The URL names no database that we can use.
        BoardError: The database cannot be opened.
    """
    if not config.database:
        return SqliteStore(config.state_dir / DATABASE_FILE)
    try:
        url = sa.make_url(config.database)
    except sa.exc.ArgumentError as err:
        raise UserError(
            f"not a database URL: {config.database!r}",
            code="database_url",
            hint="Write sqlite:////path/to/file or postgresql+psycopg://user@host/database.",
        ) from err
    if url.get_backend_name() == "sqlite" and url.database:
        return SqliteStore(Path(url.database))
    if url.get_backend_name() == "postgresql":
        return PostgresStore(config.database)
    raise UserError(
        f"a {url.get_backend_name()} database is not supported",
        code="database_url",
        hint="Use SQLite (the default) or PostgreSQL.",
    )


def make_state_dir(path: Path) -> None:
    """Make the state directory, readable for nobody else.

    Raises:
        StateDirError: It cannot be made or changed.
    """
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.chmod(0o700)
    except OSError as err:
        raise StateDirError(
            f"cannot use the state directory {path}: {err}", hint="Give a directory of your own with --state-dir."
        ) from err


@contextlib.asynccontextmanager
async def _serving(config: Config, store: Store) -> AsyncIterator[Running]:
    desk = Desk(store, Rules(policy=config.policy, toolchain=own_version().software))
    tokens = await store.arun(lambda tx: _save_tokens(tx, config))
    held = await desk.do(controller_returned)
    _log.info("store_open", held_jobs=held, tokens=len(tokens))
    parts = Parts(config.state_dir / "parts")
    artifacts = ArtifactStore(open_blobs(config.artifacts, config.state_dir / "artifacts"), parts, store)
    logs = JobLogs(config.state_dir / "logs")
    server = grpc.aio.server(
        interceptors=(
            RequestLogInterceptor(),
            ErrorInterceptor(),
            DeadlineInterceptor(),
            AuthInterceptor(Tokens(tokens)),
        ),
        options=aio_server_options(),
    )
    jobs_pb2_grpc.add_JobServiceServicer_to_server(JobServicer(JobDesk(desk, artifacts, logs)), server)
    artifacts_pb2_grpc.add_ArtifactServiceServicer_to_server(ArtifactServicer(artifacts), server)
    agents_pb2_grpc.add_AgentServiceServicer_to_server(AgentServicer(AgentDesk(desk, artifacts, logs)), server)
    fleet_pb2_grpc.add_FleetServiceServicer_to_server(FleetServicer(FleetDesk(desk)), server)
    healthy = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
    reflection.enable_server_reflection((*_SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    address = _bind(server, config.listen)
    await server.start()
    for name in ("", *_SERVICES):
        await healthy.set(name, health_pb2.HealthCheckResponse.SERVING)
    failed = asyncio.get_running_loop().create_future()
    background = asyncio.create_task(_background(desk), name="background")
    background.add_done_callback(lambda task: _report(task, failed))
    try:
        yield Running(address=address, desk=desk, failed=failed)
    finally:
        await healthy.enter_graceful_shutdown()
        desk.hub.close()
        for session in desk.sessions:
            session.end(ShuttingDownError("the controller shuts down", hint="Connect again in a moment."))
        await server.stop(config.grace_s)
        background.cancel()
        await asyncio.wait({background})
        if failed.done():
            failed.exception()  # seen: a caller that did not look must not be told of it by the loop


async def _background(desk: Desk) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(Dispatcher(desk).run(), name="dispatcher")
        group.create_task(Reaper(desk).run(), name="reaper")


def _report(task: asyncio.Task[None], failed: asyncio.Future[None]) -> None:
    if not task.cancelled() and task.exception() is not None and not failed.done():
        failed.set_exception(task.exception() or BoardError("a background task ended"))


def _save_tokens(tx: Tx, config: Config) -> list[TokenRecord]:
    for token in config.tokens:
        tx.save_token(token)
    return tx.tokens()


def _bind(server: grpc.aio.Server, listen: str) -> str:
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal():
        raise AddressError(f"not an address: {listen!r}", hint="Write HOST:PORT; port 0 takes a free one.")
    if not is_loopback(listen):
        _log.warning("listening_without_tls", address=listen, hint="Put it behind TLS, or listen on 127.0.0.1.")
    try:
        bound = server.add_insecure_port(listen)
    except RuntimeError as err:
        raise AddressError(f"cannot listen on {listen}: {err}", hint="Is another controller running there?") from err
    return f"{host}:{bound}"
