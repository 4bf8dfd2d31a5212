"""The kernel ABI: ``ytk_kernel.h`` and where to find it."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

ABI_VERSION = 1
MAX_RANK = 8


def include_dir() -> Path:
    """Give the directory to pass to a compiler with ``-I`` for ``#include "ytk_kernel.h"``."""
    return Path(str(resources.files(__package__) / "include"))
