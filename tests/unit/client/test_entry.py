"""The entry point: what `ytk --help` costs, unknown commands, errors to text and exit codes."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from ytk_client.cli import main as entry
from ytk_client.cli.lazy import LazyGroup
from ytk_client.cli.table import COMMANDS, GROUPS, Entry
from ytk_client.detached import Detached
from ytk_core.errors import BoardError, CandidateError, ExitCode, UserError, YtkError

HEAVY = {
    *("torch", "grpc", "rich", "sqlalchemy", "structlog", "numpy", "pydantic", "msgspec", "onnx", "yaml", "asyncio"),
}


def imported(*arguments: str) -> set[str]:
    """Top-level modules that one run of ytk imports."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "from ytk_client.cli.main import main; main()", *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    names = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")]
    assert "click" in names  # the listing was understood
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("arguments", [("--help",), ("embedded", "--help"), ("jobs", "-h")])
def test_help_imports_nothing_heavy(arguments):
    assert imported(*arguments) & HEAVY == set()


def test_the_guard_sees_a_heavy_import():
    assert "msgspec" in imported("config", "show", "--help")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.path)
def test_table_help_is_the_commands_help(command):
    group: click.Group = entry.make_cli()
    context = click.Context(group)
    *groups, name = command.path.split()
    for step in groups:
        found = group.get_command(context, step)
        assert isinstance(found, LazyGroup)
        group = found
    found = group.get_command(context, name)
    assert isinstance(found, click.Command)
    assert (found.help or "").strip().splitlines()[0] == command.help
    assert sum("--debug" in parameter.opts for parameter in found.params) == 1


def test_every_group_has_commands_and_help():
    assert {command.path.split()[0] for command in COMMANDS if " " in command.path} == set(GROUPS)


@pytest.mark.parametrize(
    ("words", "guess"),
    [
        (["embeded"], "'ytk embedded'"),
        (["embedded", "verfy"], "'ytk embedded verify'"),
        (["compile"], "'ytk embedded compile' or 'ytk kernelgen compile'"),
        (["jobs", "drain"], "'ytk fleet drain'"),
    ],
)
def test_unknown_command_names_the_nearest(capsys, words, guess):
    assert entry.run(words) == ExitCode.USAGE
    assert f"Did you mean {guess}?" in capsys.readouterr().err


def test_unknown_command_without_a_near_one_guesses_nothing(capsys):
    assert entry.run(["zzzzzz"]) == ExitCode.USAGE
    assert "Did you mean" not in capsys.readouterr().err


def run_raising(monkeypatch, error: BaseException, *words: str) -> int:
    @click.command()
    def boom() -> None:
        """Fail."""
        raise error

    monkeypatch.setattr(sys.modules[__name__], "boom", boom, raising=False)
    table = (Entry("boom", f"{__name__}:boom", "Fail."),)
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    monkeypatch.setattr(entry, "make_cli", lambda: LazyGroup((), table, help_text="x"))
    return entry.run(["boom", *words])


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UserError("bad 7", hint="try 8"), ExitCode.YOURS),
        (CandidateError("wrong value"), ExitCode.CANDIDATES),
        (BoardError("gone"), ExitCode.BOARDS),
        (YtkError("bug"), ExitCode.OURS),
        (RuntimeError("surprise"), ExitCode.OURS),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), ExitCode.YOURS),
        (OSError(28, "No space left on device", "out.tgz"), ExitCode.BOARDS),
        (PermissionError(13, "Permission denied", "out.tgz"), ExitCode.YOURS),
        (Detached("job-1", "sub-1"), ExitCode.DETACHED),
        (KeyboardInterrupt(), ExitCode.DETACHED),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_exit_code_by_class_and_no_traceback(monkeypatch, capsys, error, code):
    assert run_raising(monkeypatch, error) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Traceback" not in shown.err


def test_error_shows_code_message_and_hint(monkeypatch, capsys):
    run_raising(monkeypatch, UserError("bad value 7", code="bad_value", hint="Give 8."))
    assert capsys.readouterr().err == "error[bad_value]: bad value 7\n  hint: Give 8.\n"


def test_debug_shows_the_traceback(monkeypatch, capsys):
    run_raising(monkeypatch, UserError("bad value 7"), "--debug")
    assert "Traceback" in capsys.readouterr().err
    run_raising(monkeypatch, UserError("bad value 7"))
    assert "Traceback" not in capsys.readouterr().err


def test_detached_says_how_to_get_back(monkeypatch, capsys):
    run_raising(monkeypatch, Detached("job-1", "sub-1"))
    err = capsys.readouterr().err
    assert "ytk jobs attach job-1" in err
    assert "ytk jobs cancel job-1 --submission sub-1" in err


def test_broken_pipe_is_quiet():
    done = subprocess.run(
        f"{sys.executable} -m ytk_client.cli.main --help | head -c 1",
        shell=True,
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    assert "Traceback" not in done.stderr


def test_version(capsys):
    assert entry.run(["--version"]) == ExitCode.OK
    assert capsys.readouterr().out.startswith("ytk 0.")
