"""Names and places of a job's files, and checks on those that it hands over."""

from __future__ import annotations

import stat
from pathlib import Path, PurePosixPath

from ytk_core.digests import digest_file
from ytk_core.errors import CandidateError, ToolkitError, UserError
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


def place_inside(path: Path, workdir: Path) -> Path:
    """Give ``path`` if writing there stays in the workdir; an earlier untrusted task may have left links in it.

    Call it while no untrusted task runs in the same directory.

    Raises:
        CandidateError: Code ``bad_workdir``: a link leads elsewhere.
    """
    if path.is_symlink() or not path.resolve().is_relative_to(workdir.resolve()):
        raise CandidateError(f"{path} is a link that a task left in the job's directory", code="bad_workdir")
    return path


def describe(name: str, path: Path) -> NamedBlob:
    """Give the blob that a file is. Blocks on the disk."""
    return NamedBlob(name=name, digest=digest_file(path), size_bytes=path.stat().st_size)


def blob_path(root: Path, name: str) -> Path:
    """Give the path of a blob's name below ``root``.

    Raises:
        UserError: Code ``bad_blob_name``: the name is empty, absolute, or climbs.
    """
    pure = PurePosixPath(name)
    if not pure.parts or "\0" in name or "\\" in name or pure.is_absolute() or ".." in pure.parts or str(pure) != name:
        raise UserError(
            f"bad blob name {name!r}", code="bad_blob_name", hint="Names are relative, e.g. 'plugins/Col2im.so'."
        )
    return root.joinpath(*pure.parts)


def task_directory(workdir: Path, subdir: str) -> Path:
    """Make the directory that a task runs in.

    Raises:
        UserError: Code ``bad_blob_name``: ``subdir`` is no relative name.
        CandidateError: Code ``bad_workdir``.
    """
    path = place_inside(blob_path(workdir, subdir), workdir) if subdir else workdir
    path.mkdir(parents=True, exist_ok=True)
    return path
