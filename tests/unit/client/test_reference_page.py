"""docs/reference/cli.md says what the commands say."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from ytk_client.cli import main as entry
from ytk_client.cli.table import COMMANDS
from ytk_core.errors import EXIT_CODE_HELP, ExitCode

PAGE = Path(__file__).parents[3] / "docs/reference/cli.md"
COMMON = {"--controller", "--api-key-file", "--debug", "--help"}


def rows() -> dict[str, tuple[str, set[str]]]:
    """Command path to (help, flags) as the page has them."""
    found = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if match := re.fullmatch(r"\| `ytk ([a-z -]+?)(?: [A-Z. ]+)?` \| (.*?) \| (.*) \|", line):
            path, text, flags = match.groups()
            found[path] = (text, set(re.findall(r"`(-[^`]+)`", flags)))
    return found


def command(path: str) -> click.Command:
    found: click.Command = entry.make_cli()
    for word in path.split():
        assert isinstance(found, click.Group)
        step = found.get_command(click.Context(found), word)
        assert step is not None
        found = step
    return found


def test_every_command_has_its_row():
    assert set(rows()) == {entry.path for entry in COMMANDS}


@pytest.mark.parametrize("listed", COMMANDS, ids=lambda listed: listed.path)
def test_row_has_the_help_and_all_flags(listed):
    text, flags = rows()[listed.path]
    assert text == listed.help
    own = [p for p in command(listed.path).params if isinstance(p, click.Option) and not set(p.opts) & COMMON]
    assert flags == {flag for option in own for flag in option.opts}


def test_exit_codes():
    listed = dict(re.findall(r"^\| (\d+) \| (.*) \|$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert listed == {str(int(code)): EXIT_CODE_HELP[code] for code in ExitCode}
