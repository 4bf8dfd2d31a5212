"""Checks on the files that a job hands over."""

from __future__ import annotations

import stat
from pathlib import Path

from ytk_core.digests import digest_file
from ytk_core.errors import CandidateError, ToolkitError
from ytk_core.jobs import NamedBlob


def check_output(path: Path, workdir: Path) -> None:
    """Refuse an output that untrusted code may have turned into a link to another file of the machine.

    Paths outside the workdir (a cache of the agent's own) are the handler's choice and only have to exist.

    Raises:
        ToolkitError: Code ``output_missing``: it is not there.
        CandidateError: Code ``bad_output``: a path in the workdir leads out of it, or is no plain file.
    """
    if not path.exists():
        raise ToolkitError(f"the job's output {path} is not there", code="output_missing")
    inside = path.absolute().is_relative_to(workdir.absolute())
    if inside and not path.resolve().is_relative_to(workdir.resolve()):
        raise CandidateError(f"the job's output {path} is a link out of the job's directory", code="bad_output")
    if not stat.S_ISREG(path.stat().st_mode):
        raise CandidateError(f"the job's output {path} is no plain file", code="bad_output")


def describe(name: str, path: Path) -> NamedBlob:
    """Give the blob that a file is. Blocks on the disk."""
    return NamedBlob(name=name, digest=digest_file(path), size_bytes=path.stat().st_size)
