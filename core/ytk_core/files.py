"""Writing files so that a failure leaves nothing behind and a reader never sees half of one."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from ytk_core.errors import BoardError, UserError


def disk_error(err: OSError, path: Path) -> BoardError | None:
    """Translate "no space" into a BoardError with the path; None for every other error."""
    if err.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
        return None
    reason = {errno.ENOSPC: "no space left on the device", errno.EDQUOT: "the disk quota is used up"}.get(
        err.errno or 0, "the file is larger than the limit"
    )
    return BoardError(
        f"cannot write {path}: {reason}",
        code="disk_full",
        hint=f"Free space on the file system of {path.parent}, then run again.",
    )


def _check_destination(path: Path) -> None:
    """Refuse what a rename would destroy: a device such as /dev/null, or a directory."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if not path.parent.is_dir():
            msg = f"cannot write {path}: the directory {path.parent} does not exist"
            raise UserError(msg, code="no_directory", hint=f"mkdir -p {path.parent}") from None
        return
    except NotADirectoryError as err:
        msg = f"cannot write {path}: a part of the path is a file"
        raise UserError(msg, code="no_directory", hint="Choose another output path.") from err
    if not stat.S_ISREG(mode):
        kind = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
        msg = f"cannot write {path}: it is {kind}"
        raise UserError(msg, code="bad_output_path", hint="Choose the path of a new or regular file.")


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _temporary_name(path: Path) -> Path:
    # Short prefix: the name must stay below 255 bytes also where the destination's is long.
    return path.with_name(f".{path.name[:64]}.{secrets.token_hex(6)}.tmp")


@contextlib.contextmanager
def atomic_write(path: Path | str, mode: str = "wb", *, permissions: int = 0o666) -> Iterator[IO[Any]]:
    """Open a temporary file beside ``path``; on success sync it and rename it to ``path``, on failure remove it.

    Args:
        path: The destination; a symbolic link is followed, its target replaced.
        mode: ``wb`` or ``w`` (UTF-8, newlines as given); ``+`` may be added.
        permissions: Mode bits before the umask; 0o600 for secrets.

    Raises:
        UserError: The directory is missing, or the destination is not a regular file.
        BoardError: ``disk_full``.
    """
    destination = Path(os.path.realpath(path))
    _check_destination(destination)
    temporary = _temporary_name(destination)
    text = {} if "b" in mode else {"encoding": "utf-8", "newline": ""}
    try:
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, permissions)
        with os.fdopen(descriptor, mode, **text) as stream:  # type: ignore[call-overload]  # mode is not a literal
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(destination)
        _sync_directory(destination.parent)
    except OSError as err:
        if (translated := disk_error(err, Path(path))) is not None:
            raise translated from err
        raise
    finally:
        # After the rename there is nothing to remove.
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_dir(path: Path | str) -> Iterator[Path]:
    """Give a temporary directory beside ``path``; on success it becomes ``path`` (replacing a directory there).

    Raises:
        UserError: The parent is missing, or the destination exists and is no directory.
        BoardError: ``disk_full``.
    """
    destination = Path(path)
    if destination.is_symlink() or (destination.exists() and not destination.is_dir()):
        msg = f"cannot write the directory {destination}: something else is there"
        raise UserError(msg, code="bad_output_path", hint="Remove it or choose another path.")
    if not destination.parent.is_dir():
        msg = f"cannot write {destination}: the directory {destination.parent} does not exist"
        raise UserError(msg, code="no_directory", hint=f"mkdir -p {destination.parent}")
    temporary = _temporary_name(destination)
    replaced = _temporary_name(destination)
    try:
        temporary.mkdir()
        yield temporary
        if destination.exists():
            # rename(2) replaces only an empty directory, so the old one steps aside first.
            destination.rename(replaced)
        temporary.rename(destination)
        _sync_directory(destination.parent)
    except OSError as err:
        if replaced.exists() and not destination.exists():
            replaced.rename(destination)
        if (translated := disk_error(err, destination)) is not None:
            raise translated from err
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(replaced, ignore_errors=True)
