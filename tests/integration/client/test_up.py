"""The supervisor of `ytk up` with small real processes in place of the daemons."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from ytk_client.config import load_settings
from ytk_client.up import supervisor as module
from ytk_client.up.layout import Layout
from ytk_client.up.parts import Part, agent_command, check_installed, chosen
from ytk_client.up.supervisor import Supervisor, Times
from ytk_core.errors import BoardError, NotAvailableError, UserError
from ytk_core.signing import load_or_create_key, read_trusted_keys

TESTS = Path(__file__).parents[2]
WAIT_S = 240.0
"""For what comes at once on an idle machine; only a hang meets it."""
QUICK = Times(ready=WAIT_S, drain=WAIT_S, kill=WAIT_S, first_backoff=0.05, longest_backoff=0.2, settled=WAIT_S)
AGENTS = (Part("alpha", (), "", (), ""), Part("beta", (), "", (), ""))


@pytest.fixture
def layout(tmp_path):
    layout = Layout(tmp_path / "home")
    layout.create()
    return layout


@pytest.fixture
def switches(tmp_path, monkeypatch):
    """The directory that steers the stand-ins."""
    directory = tmp_path / "switches"
    directory.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(TESTS))

    def command(name: str) -> list[str]:
        return ["fakes.up_part", name, str(directory)]

    monkeypatch.setattr(module, "controller_command", lambda _layout, _listen: command("controller"))
    monkeypatch.setattr(module, "agent_command", lambda part, *_: command(part.name))
    return directory


def pids(directory: Path) -> list[int]:
    return [int(word) for path in directory.glob("*.pid") for word in path.read_text().split()]


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def until(condition, *, seconds: float = WAIT_S) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - other processes have no event of ours
            await asyncio.sleep(0.02)


class Running:
    """A supervisor in this process, ready."""

    def __init__(self, layout: Layout, *, times: Times = QUICK, agents=AGENTS) -> None:
        self.said: list[str] = []
        self.ready = asyncio.Event()
        self.supervisor = Supervisor(
            layout, agents, sandbox="optional", listen="127.0.0.1:0", say=self.said.append, times=times
        )

    async def __aenter__(self):
        self.task = asyncio.create_task(self.supervisor.run(lambda _status: self.ready.set()))
        ready = asyncio.create_task(self.ready.wait())
        await asyncio.wait({self.task, ready}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self.task.done():
            await self.task
        return self

    async def __aexit__(self, *_):
        self.supervisor.stop()
        await self.task


async def test_starts_all_writes_the_settings_and_leaves_nothing(layout, switches):
    async with Running(layout) as running:
        status = layout.read_status()
        assert status.ready
        assert [part.state for part in status.parts] == ["ready"] * 3
        settings = load_settings(environment={"YTK_HOME": str(layout.home), "YTK_CONFIG": str(layout.home / "none")})
        assert settings.address() == "127.0.0.1:4242"
        assert settings.api_key.value == layout.client_token.read_text().strip()
        assert len(pids(switches)) == 3
        assert all(alive(pid) for pid in pids(switches))
        assert running.said == []
    assert not any(alive(pid) for pid in pids(switches))
    assert not layout.client_toml.exists()
    assert layout.read_status() is None


def test_tokens_are_private_and_kept(layout):
    tokens = {path: path.read_text() for path in (layout.client_token, layout.agent_token)}
    assert len(set(tokens.values())) == 2
    for path in tokens:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(layout.root.stat().st_mode) == 0o700
    layout.create()
    assert {path: path.read_text() for path in tokens} == tokens


def test_kronos_trusts_this_stacks_forge_and_whom_the_user_names(layout):
    layout.trust_forge()
    first = layout.forge_keys.read_text()
    layout.trust_forge()
    assert layout.forge_keys.read_text() == first, "the key is kept"
    forge, kronos = (next(part for part in chosen(()) if part.name == name) for name in ("forge", "kronos"))
    words = agent_command(forge, layout, "127.0.0.1:1", "required")
    key = load_or_create_key(Path(words[words.index("--signing-key") + 1]))
    assert read_trusted_keys(layout.forge_keys) == (key.public,)

    def trusted() -> list[str]:
        command = agent_command(kronos, layout, "127.0.0.1:1", "required")
        return [command[k + 1] for k, word in enumerate(command) if word == "--trusted-keys"]

    assert trusted() == [str(layout.forge_keys)]
    layout.more_keys.write_text(str(key.public))
    assert trusted() == [str(layout.forge_keys), str(layout.home / "trusted_keys")]


async def test_part_that_refuses_fails_the_start_with_its_words(layout, switches):
    (switches / "beta.refuse").touch()
    with pytest.raises(BoardError, match="beta refuses to start") as caught:
        async with Running(layout):
            pass
    assert caught.value.code == "part_failed"
    assert not any(alive(pid) for pid in pids(switches))


async def test_part_that_is_never_ready_hits_the_deadline(layout, switches, monkeypatch):
    (switches / "alpha.silent").touch()
    running = Running(layout, agents=AGENTS[:1])

    def command(part, *_):  # the controller is ready by now, and may have needed longer on a busy machine
        running.supervisor._times = Times(ready=1.0)
        return ["fakes.up_part", part.name, str(switches)]

    monkeypatch.setattr(module, "agent_command", command)
    with pytest.raises(BoardError, match="alpha was not ready within 1 s"):
        async with running:
            pass
    assert not any(alive(pid) for pid in pids(switches))


async def test_crashed_agent_is_started_again(layout, switches):
    async with Running(layout) as running:
        first = int((switches / "alpha.pid").read_text())
        os.kill(first, signal.SIGKILL)
        await until(lambda: any("alpha is back" in line for line in running.said))
        status = {part.name: part for part in layout.read_status().parts}
        assert status["alpha"].restarts == 1
        assert status["alpha"].state == "ready"
        assert status["beta"].restarts == 0
        assert int((switches / "alpha.pid").read_text()) != first


async def test_agent_that_cannot_come_back_is_tried_until_it_can(layout, switches):
    async with Running(layout) as running:
        (switches / "alpha.refuse").touch()
        os.kill(int((switches / "alpha.pid").read_text()), signal.SIGKILL)
        await until(lambda: sum("alpha ended" in line for line in running.said) >= 3)
        (switches / "alpha.refuse").unlink()
        await until(lambda: any("alpha is back" in line for line in running.said))


async def test_deaf_part_and_its_child_are_killed(layout, switches):
    (switches / "alpha.deaf").touch()
    (switches / "alpha.child").touch()
    async with Running(layout, times=Times(ready=WAIT_S, drain=0.2, kill=0.2)):
        assert len(pids(switches)) == 4
    await until(lambda: not any(alive(pid) for pid in pids(switches)))


async def test_stop_while_starting(layout, switches):
    (switches / "alpha.silent").touch()
    running = Running(layout)
    task = asyncio.create_task(running.supervisor.run(lambda _status: None))
    await until(lambda: (switches / "alpha.pid").exists() and (switches / "alpha.pid").read_text())
    running.supervisor.stop()
    await task
    assert not any(alive(pid) for pid in pids(switches))


def test_second_one_on_the_same_home_is_told_so(layout):
    with layout.locked():
        assert layout.running()
        with pytest.raises(UserError, match="already running") as caught, Layout(layout.home).locked():
            pass
        assert caught.value.code == "already_running"
    assert not layout.running()


async def test_supervisor_killed_outright_takes_its_parts_along(layout, switches):
    code = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from ytk_client.up import supervisor as m\n"
        "from ytk_client.up.layout import Layout\n"
        "from ytk_client.up.parts import Part\n"
        "home, switches = sys.argv[1:]\n"
        "m.controller_command = lambda *_: ['fakes.up_part', 'controller', switches]\n"
        "m.agent_command = lambda p, *_: ['fakes.up_part', p.name, switches]\n"
        "s = lambda: m.Supervisor(Layout(Path(home)), [Part('alpha', (), '', (), '')], sandbox='optional', listen='', say=print)\n"
        "asyncio.run(m.serve(s, lambda status: print('READY', flush=True)))\n"
    )
    process = subprocess.Popen(  # noqa: ASYNC220 - returns at once
        [sys.executable, "-c", code, str(layout.home), str(switches)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "READY\n"
    assert len(pids(switches)) == 2
    process.kill()
    process.wait()
    process.stdout.close()
    await until(lambda: not any(alive(pid) for pid in pids(switches)))


def test_missing_extras_are_named_with_the_pip_command():
    part = Part("fancy", (), "fancy-extra", ("no_such_module_here",), "")
    with pytest.raises(NotAvailableError, match="fancy needs no_such_module_here") as caught:
        check_installed([part])
    assert "pip install 'yasp-toolkit[fancy-extra]'" in caught.value.hint
    assert "--without fancy" in caught.value.hint


def test_unknown_agent_is_refused():
    with pytest.raises(UserError, match="no agent is called 'kronoz'"):
        chosen(["kronoz"])
    assert [part.name for part in chosen(["forge"])] == ["kronos", "gaia-generator", "gaia-evaluator"]
