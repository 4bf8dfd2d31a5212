"""``ytk up``: run the whole stack here, in the foreground or detached; show it; stop it."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ytk_client.cli.output import JSON, format_option, note, print_fields, print_json, print_table, warn
from ytk_client.config import home_directory
from ytk_core.errors import BoardError, ExitCode, UserError

if TYPE_CHECKING:
    from ytk_client.up.layout import Layout, UpStatus

# Longer than the supervisor's own deadlines: it gives the better reason.
_DETACH_DEADLINE_S = 300.0
_STOP_DEADLINE_S = 60.0
_POLL_S = 0.1


@click.command()
@click.option("--home", type=click.Path(file_okay=False, path_type=Path), help="Keep everything here, not in YTK_HOME.")
@click.option("--detach", is_flag=True, help="Come back when the stack is ready; it goes on in the background.")
@click.option("--status", "show", is_flag=True, help="Show what runs.")
@click.option("--stop", is_flag=True, help="Stop what runs.")
@click.option(
    "--listen", metavar="HOST:PORT", default="127.0.0.1:0", show_default=True, help="The controller's address."
)
@click.option("--without", multiple=True, metavar="AGENT", help="Leave an agent out (repeatable).")
@format_option()
@click.pass_context
def up(
    context: click.Context,
    home: Path | None,
    detach: bool,
    show: bool,
    stop: bool,
    listen: str,
    without: tuple[str, ...],
    output: str,
) -> None:
    """Run the whole stack on this machine.

    Controller, Kronos (OpenVINO engines), Gaia (kernel generator and CPU evaluator) and Forge (plugin builds), for a
    single user. Ctrl-C stops all of it.
    """
    from ytk_client.up.layout import Layout

    layout = Layout(home or Path(home_directory(os.environ).value or "."))
    if sum((detach, show, stop)) > 1:
        msg = "--detach, --status and --stop exclude each other"
        raise click.UsageError(msg)
    if show:
        context.exit(_show(layout, output))
    if stop:
        _stop(layout)
        return
    if detach:
        _detach(layout, listen, without, output)
        return
    _run(layout, listen, without, output)


def _run(layout: Layout, listen: str, without: tuple[str, ...], output: str) -> None:
    import asyncio

    from ytk_client.up.parts import CONTROLLER, check_installed, chosen
    from ytk_client.up.supervisor import Supervisor, serve

    agents = chosen(without)
    check_installed((CONTROLLER, *agents))
    sandbox = _sandbox_mode()
    if shutil.which("g++") is None:
        warn("g++ is not installed: kernels, plugins and engine hosts cannot be compiled (apt install g++)")
    layout.create()
    with layout.locked():
        if {"kronos", "forge"} & {part.name for part in agents}:
            layout.trust_forge()
        note(f"starting the stack in {layout.root} ...")
        asyncio.run(
            serve(
                lambda: Supervisor(layout, agents, sandbox=sandbox, listen=listen, say=note),
                lambda status: _ready(layout, status, output),
            )
        )
    note("stopped")


def _sandbox_mode() -> str:
    """Choose the agents' sandbox mode; without a working sandbox say what that means."""
    from ytk_core.sandbox import detect

    found = detect()
    if found.kind != "none":
        return "required"
    warn(
        f"no sandbox works here ({found.reason}): models, kernels and plugins will run unsandboxed, with your rights. "
        "That is meant for a single user and files that you trust."
    )
    return "optional"


def _ready(layout: Layout, status: UpStatus, output: str) -> None:
    _print_status(status, output)
    home = f"  export YTK_HOME={layout.home}\n" if str(layout.home) != home_directory(os.environ).value else ""
    note(
        f"ready. In another terminal:\n{home}"
        "  ytk embedded workers\n"
        "  ytk embedded prepare model.py --onnx-out out/model.onnx --npz-out out/model.npz "
        "--reference-out out/model.reference.npz"
    )
    sys.stdout.flush()


def _print_status(status: UpStatus, output: str) -> None:
    if output == JSON:
        print_json(status)
        return
    print_table(
        ("PART", "STATE", "PID", "RESTARTS", "LOG"),
        [(part.name, part.state, part.pid or None, part.restarts, part.log) for part in status.parts],
        right=("PID", "RESTARTS"),
    )
    print_fields(
        [
            ("controller", status.address or "starting"),
            ("supervisor", f"process {status.pid}"),
            ("sandbox", status.sandbox),
            ("home", status.home),
        ]
    )


def _show(layout: Layout, output: str) -> int:
    status = layout.read_status() if layout.running() else None
    if status is None:
        note(f"nothing runs in {layout.home}; `ytk up` starts the stack")
        return int(ExitCode.VERDICT)
    _print_status(status, output)
    return int(ExitCode.OK)


def _stop(layout: Layout) -> None:
    status = layout.read_status()
    if not layout.running() or status is None:
        note(f"nothing runs in {layout.home}")
        return
    note(f"stopping process {status.pid} ...")
    os.kill(status.pid, signal.SIGTERM)
    deadline = time.monotonic() + _STOP_DEADLINE_S
    while layout.running():
        if time.monotonic() > deadline:
            raise BoardError(
                f"the supervisor (process {status.pid}) did not stop within {_STOP_DEADLINE_S:.0f} s",
                code="deadline",
                hint=f"Look at the logs in {layout.logs}; `kill {status.pid}` once more does not wait for jobs.",
            )
        time.sleep(_POLL_S)
    note("stopped")


def _detach(layout: Layout, listen: str, without: tuple[str, ...], output: str) -> None:
    """Start a supervisor in a session of its own and wait until it is ready."""
    layout.create()
    if layout.running():
        with layout.locked():  # raises the error that says so
            pass
    log = layout.log("up")
    start = log.stat().st_size if log.exists() else 0
    words = (*("up", "--home", str(layout.home), "--listen", listen), *(f"--without={name}" for name in without))
    pid = _spawn_detached([sys.executable, "-m", "ytk_client.cli.main", *words], log)
    deadline = time.monotonic() + _DETACH_DEADLINE_S
    while True:
        status = layout.read_status()
        if status is not None and status.pid == pid and status.ready:
            _ready(layout, status, output)
            return
        ended, how = os.waitpid(pid, os.WNOHANG)
        if ended:
            raise _from_log(log, start, os.waitstatus_to_exitcode(how))
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGTERM)
            raise BoardError(
                f"the stack was not ready within {_DETACH_DEADLINE_S:.0f} s", code="deadline", hint=f"See {log}."
            )
        time.sleep(_POLL_S)


def _spawn_detached(command: list[str], log: Path) -> int:
    """Start a process that outlives this one: a session of its own, output to a log. Give its id.

    Not a Popen, whose object complains when it goes before its process.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return os.posix_spawn(
        command[0],
        command,
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), flags, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )


def _from_log(log: Path, start: int, code: int) -> BoardError | UserError:
    """Give the error of a detached supervisor that ended, with what it said."""
    with log.open("rb") as stream:
        stream.seek(start)
        said = stream.read().decode("utf-8", "replace").strip()
    kind = UserError if code == ExitCode.YOURS else BoardError
    return kind(f"the stack did not start:\n{said}", code="part_failed", hint=f"Its log: {log}")
