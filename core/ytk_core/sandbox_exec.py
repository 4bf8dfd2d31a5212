"""Set limits and environment on this process and become another program: ``sandbox_exec.py SETTINGS ARGV...``.

Runs as a bare script (``python -I -S``, standard library only), so that it costs some 15 ms; :func:`ytk_core.sandbox.wrap`
writes the command. Limits are set here and not by the caller, since code between fork and exec is unsafe in a process
with threads.
"""

from __future__ import annotations

import json
import os
import resource
import sys


class Settings:
    """What to set before the program starts."""

    def __init__(self, *, env: dict[str, str], cwd: str, nice: int, limits: dict[str, int]) -> None:
        self.env = env
        self.cwd = cwd
        self.nice = nice
        self.limits = limits


def main(argv: list[str]) -> None:
    """Apply ``argv[1]`` and execute ``argv[2:]``; returns only by an exception."""
    settings = Settings(**json.loads(argv[1]))
    if settings.cwd:
        os.chdir(settings.cwd)
    if settings.nice:
        os.nice(settings.nice)
    for name, value in settings.limits.items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)  # noqa: PLW2901  (clamped, not replaced)
        # One more CPU second between SIGXCPU, which a faulthandler can report, and SIGKILL.
        above = value + 1 if name == "RLIMIT_CPU" and hard == resource.RLIM_INFINITY else value
        resource.setrlimit(kind, (value, above))
    os.execvpe(argv[2], argv[2:], settings.env)  # noqa: S606  (no shell is what we want)


if __name__ == "__main__":
    main(sys.argv)
