"""A fake controller, and `ytk` as a function that talks to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from ytk_client.cli import main as entry

from fakes.client_services import FakeController


class Result(NamedTuple):
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str


@pytest.fixture
def fake():
    with FakeController() as fake:
        yield fake


@pytest.fixture
def ytk(fake, monkeypatch, tmp_path, capsys) -> Callable[..., Result]:
    """Run one command line in this process, in tmp_path, against the fake."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("YTK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("YTK_CONFIG", str(tmp_path / "none.toml"))
    monkeypatch.setenv("YTK_CONTROLLER", fake.address)
    monkeypatch.setenv("YTK_API_KEY", fake.key)
    monkeypatch.delenv("YTK_API_KEY_FILE", raising=False)

    def run(*words: object) -> Result:
        capsys.readouterr()
        code = entry.run([str(word) for word in words])
        shown = capsys.readouterr()
        return Result(code, shown.out, shown.err)

    return run
