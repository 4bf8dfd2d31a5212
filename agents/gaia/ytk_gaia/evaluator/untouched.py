"""Is the code in a process still the code of its files? A page of code that was ever written to stays private to the process.

Whoever rewrites ``clock_gettime`` or ``memmove`` in memory, restores them, and hopes that nobody compares, is seen here: the kernel
of the operating system keeps count of pages that are no longer the file's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ (\S{4}) \S+ \S+ (\d+)\s*(.*)$")
_CHANGED = re.compile(r"^Anonymous:\s+(\d+) kB$")


def rewritten(smaps: Iterable[str]) -> str:
    """Name the first file, or ``[vdso]``, whose executable pages were written to; empty: none, or the kernel does not say.

    Args:
        smaps: Lines of ``/proc/<pid>/smaps``.
    """
    code = ""
    for line in smaps:
        found = _MAPPING.match(line)
        if found:
            access, inode, name = found.groups()
            code = name if "x" in access and (inode != "0" or name == "[vdso]") else ""
        elif code and (changed := _CHANGED.match(line)) and int(changed[1]):
            return code
    return ""


def rewritten_code(pid: int) -> str:
    """As :func:`rewritten`, of a running process."""
    try:
        return rewritten(Path(f"/proc/{pid}/smaps").read_text(errors="replace").splitlines())
    except OSError:
        return ""
