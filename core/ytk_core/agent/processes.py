"""Find and end the processes of a task: its group, its descendants, and what slipped out of both."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

TOKEN_VARIABLE = "YTK_TASK_TOKEN"  # noqa: S105  (a mark to find processes by, no secret)
PLACE_VARIABLE = "YTK_TASK_DIR"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Usage(NamedTuple):
    """What a tree of processes uses: threads are counted as the kernel's process limit counts them."""

    processes: int
    memory_bytes: int


class _Stat(NamedTuple):
    pid: int
    parent: int
    session: int
    zombie: bool
    threads: int


def usage_of_tree(root: int) -> Usage:
    """Give the sum over a process and its descendants; shared memory is counted once (its largest holder)."""
    threads = private = shared_most = 0
    for stat in _tree(root):
        threads += stat.threads
        try:
            resident, shared = (int(field) for field in Path(f"/proc/{stat.pid}/statm").read_text().split()[1:3])
        except (OSError, ValueError):
            continue  # it ended meanwhile
        private += resident - shared
        shared_most = max(shared_most, shared)
    return Usage(threads, (private + shared_most) * _PAGE_BYTES)


def kill_group(pgid: int) -> None:
    """Kill a process group; nothing happens when it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pgid, signal.SIGKILL)


def strays(token: str) -> list[int]:
    """Give the processes that carry a task's token in their environment, whatever group or parent they have now."""
    mark = f"{TOKEN_VARIABLE}={token}".encode()
    return _with_environment(lambda entries: mark in entries)


def strays_below(root: Path) -> list[int]:
    """Give the processes of any task that ran in a directory below ``root``."""
    prefix = f"{PLACE_VARIABLE}={root}/".encode()
    return _with_environment(lambda entries: any(entry.startswith(prefix) for entry in entries))


def _with_environment(wanted: Callable[[list[bytes]], bool]) -> list[int]:
    found = []
    for stat in _all():
        try:
            environ = Path(f"/proc/{stat.pid}/environ").read_bytes()
        except OSError:
            continue  # ended, or another user's
        if not stat.zombie and stat.pid != os.getpid() and wanted(environ.split(b"\0")):
            found.append(stat.pid)
    return found


def daemons(pids: list[int]) -> list[int]:
    """Give those whose session has lost its leader: they were detached on purpose (double fork)."""
    alive = {stat.pid: stat for stat in _all()}
    return [pid for pid in pids if pid in alive and alive[pid].session not in alive]


def kill_all(find: Callable[[], list[int]], within_s: float = 5.0) -> None:
    """Kill what ``find`` gives until it gives nothing, and wait until all of it has ended.

    A process may fork while it is being looked for. A dying one has no environment any more, so that ``find`` misses it,
    while it still runs.
    """
    deadline = time.monotonic() + within_s
    dying: set[int] = set()
    while time.monotonic() < deadline:
        pids = find()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                dying.add(pid)
        dying = {pid for pid in dying if _runs(pid)}
        if not pids and not dying:
            return
        time.sleep(0.002)


def _runs(pid: int) -> bool:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return False
    return bool(fields) and fields[0] not in "ZX"


def disk_usage(directories: tuple[Path, ...]) -> int:
    """Give the bytes that the files below some directories take on disk; links are not followed."""
    total = 0
    pending = list(directories)
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(Path(entry.path))
                    else:
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
        except OSError:
            continue  # removed meanwhile
    return total


def _tree(root: int) -> Iterator[_Stat]:
    children: dict[int, list[_Stat]] = {}
    for stat in _all():
        children.setdefault(stat.parent, []).append(stat)
        if stat.pid == root:
            yield stat
    pending = [root]
    while pending:
        for stat in children.get(pending.pop(), []):
            yield stat
            pending.append(stat.pid)


def _all() -> Iterator[_Stat]:
    for name in os.listdir("/proc"):  # noqa: PTH208  (names only, hundreds of times a minute)
        if not name.isdigit():
            continue
        try:
            # The command's name, in parentheses, may hold anything: fields are counted from its end.
            fields = Path(f"/proc/{name}/stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if len(fields) > 17:
            yield _Stat(int(name), int(fields[1]), int(fields[3]), fields[0] in "ZX", int(fields[17]))
