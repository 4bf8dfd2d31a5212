"""How long a process could not run although it wanted to: time that is the machine's and not the candidate's."""

from __future__ import annotations

from pathlib import Path

PATIENCE = 9
"""A limit is extended by what the process had to wait for a processor, up to this multiple of it."""


def own_wait_s() -> float:
    """Give the same of the calling thread."""
    return _run_queue_ns(Path("/proc/thread-self/schedstat")) / 1e9


def waited_s(pid: int) -> float:
    """Give the seconds that a process's most delayed thread spent ready to run and not running; 0 where the kernel does not say.

    From ``/proc/<pid>/task/<tid>/schedstat``, second field: nanoseconds on a run queue.
    """
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return 0.0
    return max((_run_queue_ns(thread / "schedstat") for thread in threads), default=0) / 1e9


def _run_queue_ns(path: Path) -> int:
    try:
        return int(path.read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0  # the thread ended meanwhile, or the kernel keeps no such figures


def allowed_s(limit_s: float, waited: float) -> float:
    """Give how long to wait for a process that should take ``limit_s`` and had to wait ``waited`` seconds for a processor."""
    return limit_s + min(max(0.0, waited), PATIENCE * limit_s)
