"""How the C library keeps memory for the daemon.

Uploads allocate and free buffers of 1 MiB on several threads. By default glibc gives each thread an arena and hands freed
memory back to the kernel at once, so every chunk costs page faults anew: half of an upload's processor time, measured.
"""

from __future__ import annotations

import ctypes
import platform

# From malloc.h; stable since glibc 2.10.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

_SETTINGS = (
    (_M_ARENA_MAX, 1),  # what one thread freed, the next one uses
    (_M_MMAP_THRESHOLD, 16 << 20),  # chunks come from the heap, not from mappings of their own
    (_M_TRIM_THRESHOLD, 32 << 20),  # keep as much as the uploads in progress need again at once
)


def keep_freed_memory() -> bool:
    """Tell glibc to keep and share what is freed. Call it before threads start; tells whether it was done."""
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all(mallopt(parameter, value) == 1 for parameter, value in _SETTINGS)
