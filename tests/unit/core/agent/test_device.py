from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from ytk_core.agent import device
from ytk_core.agent.device import DeviceLock, runtime_dir
from ytk_core.errors import BoardError


async def test_one_holder_at_a_time(tmp_path: Path) -> None:
    first, second = DeviceLock("gpu:0", tmp_path), DeviceLock("gpu:0", tmp_path)
    await first.acquire()
    waiting: list[str] = []
    task = asyncio.create_task(second.acquire(on_wait=lambda: waiting.append("once")))
    done, _ = await asyncio.wait({task}, timeout=0.3)
    assert not done
    assert waiting == ["once"]
    first.release()
    await asyncio.wait_for(task, 240)
    assert second.held
    second.release()
    second.release()


async def test_other_devices_are_free(tmp_path: Path) -> None:
    first, second = DeviceLock("gpu:0", tmp_path), DeviceLock("../gpu/1", tmp_path)
    await first.acquire()
    await asyncio.wait_for(second.acquire(), 240)
    assert {path.parent for path in tmp_path.iterdir()} == {tmp_path}
    first.release()
    second.release()


async def test_a_cancelled_wait_holds_nothing(tmp_path: Path) -> None:
    first, second = DeviceLock("d", tmp_path), DeviceLock("d", tmp_path)
    await first.acquire()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(second.acquire(), 0.1)
    first.release()
    third = DeviceLock("d", tmp_path)
    await asyncio.wait_for(third.acquire(), 240)
    third.release()


async def test_lending(tmp_path: Path) -> None:
    parent, child = DeviceLock("d", tmp_path), DeviceLock("d", tmp_path)
    async with parent.lent():
        assert not parent.held  # nothing to lend
    assert not parent.held
    await parent.acquire()
    async with parent.lent():
        await asyncio.wait_for(child.acquire(), 240)
        child.release()
    assert parent.held
    parent.release()


# ruff: noqa: ASYNC220, ASYNC221, ASYNC240 - a test may block its own loop


async def test_the_lock_dies_with_its_process_and_is_not_inherited(tmp_path: Path) -> None:
    code = (
        "import asyncio, os, subprocess, sys; from pathlib import Path; from ytk_core.agent.device import DeviceLock\n"
        f"lock = DeviceLock('d', Path({str(tmp_path)!r})); asyncio.run(lock.acquire())\n"
        "child = subprocess.Popen(['sleep', '60'], close_fds=False); print(child.pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        grandchild = int(holder.stdout.readline())
        mine = DeviceLock("d", tmp_path)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(mine.acquire(), 0.2)
        holder.kill()
        holder.wait()
        await asyncio.wait_for(mine.acquire(), 240)
        mine.release()
        subprocess.run(["kill", str(grandchild)], check=True)


def test_the_runtime_directory_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    path = runtime_dir()
    assert path.parent == tmp_path
    assert path.stat().st_mode & 0o077 == 0
    path.rmdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    path.symlink_to(elsewhere)
    with pytest.raises(BoardError, match="somebody else"):
        runtime_dir()


def test_the_processors_name_is_stable() -> None:
    assert device.cpu_device_uid() == device.cpu_device_uid()
    assert device.cpu_device_uid().startswith("cpu-")
