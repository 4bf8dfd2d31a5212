"""The kernel ABI: ``ytk_kernel.h`` and its ctypes form :mod:`ytk_core.abi.ctypes_abi`, and where to find them."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

ABI_VERSION = 1
MAX_RANK = 8
CTYPES_DIR = Path(__file__).parent
"""Holds ``ctypes_abi.py``, for programs that run in a bare interpreter."""


def include_dir() -> Path:
    """Give the directory to pass to a compiler with ``-I`` for ``#include "ytk_kernel.h"``."""
    return Path(str(resources.files(__package__) / "include"))
