"""The command line that every agent has."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import socket
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import click
import msgspec
import structlog

from ytk_core import sandbox
from ytk_core.agent.handler import JobHandler
from ytk_core.errors import BoardError, UserError, YtkError
from ytk_core.sandbox import SandboxMode
from ytk_core.workers import PeerVersion, WorkerDescription

_log = structlog.get_logger(__name__)


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line said.

    Attributes:
        role: "kronos", "gaia", "forge".
        controller: ``host:port``.
        token: Presented to the controller; None where no token file was given.
        state_dir: Exists and is this agent's alone.
        worker_id: Stable over restarts.
        sandbox_mode: What the operator allows.
        slots: Jobs at once.
        extra: The role's own options by parameter name.
    """

    role: str
    controller: str
    token: str | None
    state_dir: Path
    worker_id: str
    sandbox_mode: SandboxMode
    slots: int
    extra: dict[str, Any] = {}


class WorkerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a role says about itself; see :class:`ytk_core.workers.WorkerDescription`."""

    arch_specs: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    device_uid: str = ""
    device_name: str = ""


def agent_main(
    role: str,
    make_handlers: Callable[[AgentSettings], Sequence[JobHandler]],
    describe: Callable[[AgentSettings], WorkerFacts],
    *,
    options: Sequence[click.Option] = (),
    default_slots: int = 1,
    help_text: str = "",
) -> click.Command:
    """Make an agent's command.

    It prints one JSON line ``{"event": "ready", "worker_id": ...}`` on standard output after the controller's first
    welcome. SIGTERM or SIGINT drains: no new jobs, the running ones are finished. A second one stops at once.

    Args:
        role: Names the agent.
        make_handlers: Gives the handlers; called once, before the connection.
        describe: Gives what the worker can do; may take its time (it runs before the connection too).
        options: The role's own options; their values are in ``AgentSettings.extra``.
        default_slots: Jobs at once.
        help_text: First paragraph of ``--help``.
    """

    def run(**values: Any) -> None:
        common = {name: values.pop(name) for name in ("controller", "token_file", "state_dir", "worker_id", "slots")}
        mode = cast("SandboxMode", values.pop("sandbox_mode"))
        level = values.pop("log_level")
        debug = level == "debug"
        from ytk_core.logs import configure_logs

        configure_logs(level, role=role)
        try:
            with _state_dir(common["state_dir"] or _default_state_dir(role)) as state_dir:
                settings = AgentSettings(
                    role=role,
                    controller=common["controller"],
                    token=_read_token(common["token_file"]),
                    state_dir=state_dir,
                    worker_id=common["worker_id"] or _kept_worker_id(role, state_dir),
                    sandbox_mode=mode,
                    slots=common["slots"],
                    extra=values,
                )
                _serve(settings, make_handlers(settings), describe(settings))
        except YtkError as err:
            if debug:
                raise
            _log.error("agent_failed", code=err.code, error=err.message, hint=err.hint)
            sys.exit(err.exit_code)

    return click.Command(
        name=f"ytk-{role}",
        callback=run,
        params=[*_common_options(default_slots), *options],
        help=help_text or f"Run a {role} agent.",
        context_settings={"show_default": True},
    )


def _common_options(default_slots: int) -> list[click.Parameter]:
    return [
        click.Option(["--controller"], required=True, metavar="HOST:PORT", help="The controller to work for."),
        click.Option(
            ["--token-file"],
            type=click.Path(path_type=Path),
            help="File that holds the agent token.",
        ),
        click.Option(
            ["--state-dir"],
            type=click.Path(path_type=Path, file_okay=False),
            help="Directory of this agent alone: jobs' files, caches, its worker id.",
        ),
        click.Option(["--worker-id"], help="Stable name of this worker; made once and kept by default."),
        click.Option(
            ["--sandbox", "sandbox_mode"],
            type=click.Choice(["required", "optional"]),
            default="required",
            help="Without a working sandbox: refuse untrusted code, or run it all the same.",
        ),
        click.Option(["--slots"], type=click.IntRange(1, 64), default=default_slots, help="Jobs at once."),
        click.Option(
            ["--log-level"], type=click.Choice(["debug", "info", "warning", "error"]), default="info", help="Of stderr."
        ),
    ]


def _serve(settings: AgentSettings, handlers: Sequence[JobHandler], facts: WorkerFacts) -> None:
    status = sandbox.detect()
    if status.kind == "none":
        _log.warning("no_sandbox", mode=settings.sandbox_mode, reason=status.reason)
    worker = WorkerDescription(
        worker_id=settings.worker_id,
        role=settings.role,
        kinds=tuple(sorted(kind for handler in handlers for kind in handler.kinds)),
        arch_specs=facts.arch_specs,
        capabilities=facts.capabilities,
        device_uid=facts.device_uid,
        device_name=facts.device_name,
        slots=settings.slots,
        hostname=socket.gethostname(),
        version=PeerVersion(software=metadata.version("yasp-toolkit")),
        sandbox=status.kind,
    )
    structlog.contextvars.bind_contextvars(worker_id=settings.worker_id)
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(serve_agent(settings, worker, handlers))
    _log.info("agent_stopped")


async def serve_agent(settings: AgentSettings, worker: WorkerDescription, handlers: Sequence[JobHandler]) -> None:
    """Run the agent in this loop until it is told to stop.

    Raises:
        YtkError: The controller refuses it for good.
        asyncio.CancelledError: It was told to stop at once.
    """
    from ytk_core.agent.runtime import AgentRuntime
    from ytk_core.channels import aio_channel

    async with aio_channel(settings.controller, settings.token) as channel:
        runtime = AgentRuntime(
            channel,
            worker,
            handlers,
            state_dir=settings.state_dir,
            sandbox_mode=settings.sandbox_mode,
            on_ready=lambda: _say_ready(settings.worker_id),
            address=settings.controller,
        )
        running = asyncio.create_task(runtime.run(), name="agent")
        told = False

        def on_signal() -> None:
            nonlocal told
            if told:
                _log.warning("stopping_at_once")
                running.cancel()
            told = True
            runtime.drain()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal)
        await running


def _say_ready(worker_id: str) -> None:
    click.echo(json.dumps({"event": "ready", "worker_id": worker_id}))
    sys.stdout.flush()


def _default_state_dir(role: str) -> Path:
    home = os.environ.get("YTK_HOME")
    return (Path(home) if home else Path.home() / ".local/share/yasp-toolkit") / "agents" / role


@contextlib.contextmanager
def _state_dir(path: Path) -> Iterator[Path]:
    """Make the directory and hold it: two agents in one would remove each other's files."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as err:
        raise UserError(f"cannot use the state directory {path}: {err.strerror}", code="state_dir") from err
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise BoardError(
            f"another agent runs in {path}", code="state_dir_in_use", hint="Give each agent its own --state-dir."
        ) from None
    try:
        yield path.resolve()
    finally:
        os.close(descriptor)


def _kept_worker_id(role: str, state_dir: Path) -> str:
    path = state_dir / "worker_id"
    with contextlib.suppress(FileNotFoundError):
        kept = path.read_text(encoding="utf-8").strip()
        if kept:
            return kept
    made = f"{role}-{socket.gethostname().partition('.')[0]}-{uuid.uuid4().hex[:6]}"
    path.write_text(made + "\n", encoding="utf-8")
    return made


def _read_token(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        token = path.read_text(encoding="utf-8").strip()
    except OSError as err:
        raise UserError(f"cannot read the token file {path}: {err.strerror}", code="token_file") from err
    if not token:
        raise UserError(f"the token file {path} is empty", code="token_file")
    return token
