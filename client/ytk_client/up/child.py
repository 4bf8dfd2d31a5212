"""Become a part of the stack that dies with its supervisor: ``python -m ytk_client.up.child <supervisor pid> -m module ...``.

A supervisor that is killed outright cannot stop anybody; the kernel then sends each part the SIGTERM that it asks for here.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h; kept over execve


def main() -> None:
    """Ask for SIGTERM at the parent's death, then turn into the python that the arguments describe."""
    supervisor, arguments = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0) != 0:
            sys.exit(f"prctl failed: {os.strerror(ctypes.get_errno())}")
        # It may have died before the call above.
        if os.getppid() != supervisor:
            sys.exit("the supervisor is gone")
    os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606 - the point of this module


if __name__ == "__main__":
    main()
