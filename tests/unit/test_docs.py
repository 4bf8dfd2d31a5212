"""What README and docs say is there: links, make targets, commands with their flags, Python blocks."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from ytk_client.cli import main as entry

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")
NAMED_FILE = re.compile(r"`((?:docs|core|client|agents|controller|protos|tests|examples|benchmarks|scripts)/[\w./-]+)`")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands_in(text: str) -> list[str]:
    """Give the ``ytk ...`` and ``make ...`` lines of the unmarked and shell blocks, continuations joined."""
    lines = []
    for kind, body in BLOCK.findall(text):
        if kind in {"", "sh", "bash", "console"}:
            joined = re.sub(r"\s*\\\n\s*", " ", body)
            lines += [line.strip().removeprefix("$ ") for line in joined.splitlines()]
    return [line for line in lines if line.startswith(("ytk ", "make "))]


def check_ytk(line: str) -> None:
    """Follow the words through the command tree; every flag has to exist.

    Raises:
        AssertionError: A command or a flag does not exist.
    """
    words = shlex.split(line, comments=True)[1:]
    found: click.Command = entry.make_cli()
    context = click.Context(found)
    while words and isinstance(found, click.Group) and not words[0].startswith("-"):
        step = found.get_command(context, words[0]) if words[0] in found.list_commands(context) else None
        assert step is not None, f"no command {words[0]!r} in: {line}"
        found, words = step, words[1:]
    flags = {
        flag for param in found.params if isinstance(param, click.Option) for flag in param.opts + param.secondary_opts
    }
    flags |= {"--help", "--version", "--debug"}
    for word in words:
        if word.startswith("-"):
            assert word.partition("=")[0] in flags, f"no flag {word} in: {line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_points_at_what_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in LINK.findall(text):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
    for target in NAMED_FILE.findall(text):
        assert (ROOT / target).exists(), f"{page.name} names {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_pages_commands_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in commands_in(page.read_text(encoding="utf-8")):
        if line.startswith("make "):
            assert line.split()[1] in targets, line
        else:
            check_ytk(line)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_pages_python_runs(page: Path) -> None:
    for kind, body in BLOCK.findall(page.read_text(encoding="utf-8")):
        if kind == "python":
            exec(compile(body, str(page), "exec"), {"__name__": "__docs__"})  # our own pages


def test_the_checks_see_what_is_wrong() -> None:
    with pytest.raises(AssertionError, match="no flag --onyx-out"):
        check_ytk("ytk embedded prepare model.py --onyx-out x")
    with pytest.raises(AssertionError, match="no command 'compyle'"):
        check_ytk("ytk embedded compyle")
    assert commands_in("```\n$ make demo\nytk up \\\n   --detach\n```\n") == ["make demo", "ytk up --detach"]


def test_nothing_speaks_of_a_developers_machine() -> None:
    import subprocess

    # Spelled apart, so that this file is not a finding of its own.
    words = ["/" + "work/", "/" + "root/", "/" + "opt/wheels", "find" + "-links"]
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    found = [
        (name, word)
        for name in listed
        if (ROOT / name).is_file() and not name.endswith((".npz", ".tgz", ".so", ".pt2"))
        for word in words
        if word in (ROOT / name).read_text(encoding="utf-8", errors="replace")
    ]
    assert not found
