"""Checks of output paths before a job is spent on something that then cannot be written."""

from __future__ import annotations

import os
from pathlib import Path

from ytk_core.errors import UserError


def check_outputs(*paths: Path | None) -> None:
    """Make the directories of output files and check that each file can be written.

    Args:
        paths: Files to be written later; None entries are skipped.

    Raises:
        UserError: Code ``bad_output_path``, with the path and the reason.
    """
    seen: set[Path] = set()
    for path in paths:
        if path is None:
            continue
        if path.absolute() in seen:
            raise _refused(path, "it is named for two outputs", "Name another file for one of them.")
        seen.add(path.absolute())
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as err:
            raise _refused(path, f"its directory cannot be made: {err.strerror}") from err
        if path.is_dir():
            raise _refused(path, "it is a directory", "Name a file.")
        if path.exists() and not path.is_file():
            raise _refused(path, "it is not a regular file", "Name a file.")
        # The file is replaced by a rename, so it is the directory's permission that counts.
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise _refused(path, f"no permission to write in {path.parent}")


def _refused(path: Path, reason: str, hint: str = "Choose another place with -o.") -> UserError:
    return UserError(f"cannot write {path}: {reason}", code="bad_output_path", hint=hint)
