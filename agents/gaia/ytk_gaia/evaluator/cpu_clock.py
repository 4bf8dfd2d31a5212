"""How much processor time a candidate's process used, by the kernel's account and not by its own.

Wall time cannot show that a process lies about its clock on a machine that others use too: it may just have waited. Processor
time does not grow while a process waits.
"""

from __future__ import annotations

import time
from pathlib import Path

_SCHED = 2  # CPUCLOCK_SCHED of the kernel's clock ids for processes


def _parents() -> dict[int, int]:
    """Give the parent of every process."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                # The name, in parentheses, may hold anything: fields are counted from its end.
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue  # it ended meanwhile
            found[int(entry.name)] = int(fields[1])
    return found


def worker_below(root: int) -> int:
    """Give the process at the end of the chain of only children that begins at ``root`` (a sandbox and what it runs)."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents().items():
        children.setdefault(parent, []).append(pid)
    while len(children.get(root, [])) == 1:
        (root,) = children[root]
    return root


def cpu_ns(pid: int) -> int | None:
    """Give the processor time of all threads of a process so far; None where the kernel does not say."""
    try:
        return time.clock_gettime_ns((~pid << 3) | _SCHED)
    except (OSError, OverflowError):
        return None
