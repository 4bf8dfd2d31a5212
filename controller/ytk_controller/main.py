"""``ytk-controller``: the daemon's command line."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import structlog

from ytk_controller.allocator import keep_freed_memory
from ytk_controller.exit_codes import HELP, ControllerExit, exit_code_of
from ytk_controller.jobs.model import Policy
from ytk_core.errors import YtkError

if TYPE_CHECKING:
    from ytk_controller.config import Config

_LEVELS = ("debug", "info", "warning", "error")
_EXIT_HELP = "Exit codes:\n\n" + "\n\n".join(f"{code.value}: {text}" for code, text in HELP.items())


@click.group()
@click.version_option(package_name="yasp-toolkit")
def main() -> None:
    """The controller of yasp-toolkit: jobs, leases, artifacts, workers."""


@main.command(epilog=_EXIT_HELP)
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Database, artifacts, logs; made with mode 0700.",
)
@click.option(
    "--listen", default="127.0.0.1:7350", show_default=True, metavar="HOST:PORT", help="Port 0 takes a free one."
)
@click.option(
    "--database", default="", metavar="URL", help="postgresql+psycopg://...; default: SQLite in the state directory."
)
@click.option(
    "--artifacts", default="", metavar="URL", help="s3://BUCKET/PREFIX; default: a directory in the state directory."
)
@click.option(
    "--bootstrap-token",
    "bootstrap_tokens",
    multiple=True,
    metavar="SCOPE:NAME:FILE",
    help="A token to accept: scope client or agent, a name for logs, the file that holds it. Repeatable.",
)
@click.option(
    "--lease-seconds",
    type=click.FloatRange(min=0.1),
    default=Policy().lease_s,
    show_default=True,
    help="A job is given to another worker this long after the last heartbeat.",
)
@click.option(
    "--heartbeat-seconds",
    type=click.FloatRange(min=0.02),
    default=None,
    help="What agents are told; default: a quarter of the lease.",
)
@click.option("--log-level", type=click.Choice(_LEVELS), default="info", show_default=True)
def serve(
    state_dir: Path,
    listen: str,
    database: str,
    artifacts: str,
    bootstrap_tokens: tuple[str, ...],
    lease_seconds: float,
    heartbeat_seconds: float | None,
    log_level: str,
) -> None:
    """Serve until SIGTERM or SIGINT. One JSON line on stdout says when it is ready; the log goes to stderr."""
    heartbeat_s = lease_seconds / 4 if heartbeat_seconds is None else heartbeat_seconds
    if heartbeat_s >= lease_seconds:
        raise click.BadParameter(
            f"{heartbeat_s} s is not less than the lease of {lease_seconds} s", param_hint="--heartbeat-seconds"
        )
    keep_freed_memory()
    configure_logging(log_level)
    try:
        from ytk_controller.config import Config
        from ytk_controller.tokens import read_token_files

        config = Config(
            state_dir=state_dir.absolute(),
            listen=listen,
            tokens=read_token_files(bootstrap_tokens),
            database=database,
            artifacts=artifacts,
            policy=Policy(lease_s=lease_seconds, heartbeat_s=heartbeat_s),
        )
        asyncio.run(_serve_until_signal(config))
    except YtkError as err:
        click.echo(f"error: {err.message}", err=True)
        if err.hint:
            click.echo(f"hint: {err.hint}", err=True)
        sys.exit(exit_code_of(err))
    except Exception:  # noqa: BLE001 - the last line of defence: logged with its traceback
        structlog.get_logger(__name__).exception("controller_failed")
        sys.exit(ControllerExit.OURS)


def configure_logging(level: str) -> None:
    """Send JSON lines to stderr."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.dict_tracebacks,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


async def _serve_until_signal(config: Config) -> None:
    from ytk_controller.server import serve as serve_controller

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await serve_controller(config, stop, _ready)


def _ready(address: str) -> None:
    click.echo(json.dumps({"event": "ready", "address": address}))


if __name__ == "__main__":
    main()
