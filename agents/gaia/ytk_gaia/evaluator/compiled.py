"""Libraries that were compiled before, by what they were compiled from: a finalist is not compiled again in every rung."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from pathlib import Path

from ytk_core.digests import digest_bytes
from ytk_core.files import atomic_write

KEPT = 512
"""Files of some tens of kilobytes. The oldest go first."""


def compiled_key(unit: str, flags: Sequence[str], compiler: str, headers: Sequence[Path]) -> str:
    """Give the name of a library: everything that decides its bytes.

    Args:
        unit: Source text.
        flags: Of the compiler.
        compiler: What it says of itself.
        headers: Files of ours that the source includes.
    """
    parts = [unit, "\0".join(flags), compiler, *(path.read_text(encoding="utf-8") for path in headers)]
    return digest_bytes("\0\0".join(parts).encode()).rpartition(":")[2]


class Compiled:
    """A directory of libraries that belongs to this user alone; candidates never see it.

    Args:
        directory: Made where it is missing.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory = directory

    def take(self, key: str, library: Path) -> bool:
        """Put the library of that name at a path; say whether there is one."""
        try:
            shutil.copyfile(self._directory / f"{key}.so", library)
        except FileNotFoundError:
            return False
        return True

    def keep(self, key: str, library: Path) -> None:
        """Keep a library; a full disk is no reason to fail an evaluation."""
        with contextlib.suppress(OSError):
            with library.open("rb") as source, atomic_write(self._directory / f"{key}.so") as file:
                shutil.copyfileobj(source, file)
            found = sorted(self._directory.glob("*.so"), key=lambda path: path.stat().st_mtime)
            for path in found[: max(0, len(found) - KEPT)]:
                path.unlink(missing_ok=True)
