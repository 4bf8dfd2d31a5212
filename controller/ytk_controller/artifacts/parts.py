"""Part files: what has come of an upload so far. Blocking; runs on threads."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from blake3 import blake3

from ytk_core.digests import PREFIX, blob_name
from ytk_core.errors import BoardError
from ytk_core.files import disk_error
from ytk_core.rpc_errors import OffsetError

# Hashed through a buffer and not a memory map: mapped pages would count as ours, a gigabyte of them.
_HASH_BYTES = 1 << 20
_KEEP_S = 7 * 24 * 3600.0


class DigestMismatchError(BoardError):
    """What came is not what the digest says; the part is gone, the upload starts over."""

    default_code = "digest_mismatch"


class Parts:
    """The directory of part files.

    Args:
        root: The directory; made where it does not exist. Parts that nobody continued for a week are removed.
    """

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._root = root
        oldest = time.time() - _KEEP_S
        for part in root.glob("*.part"):
            if part.stat().st_mtime < oldest:
                part.unlink()

    def path(self, digest: str) -> Path:
        """Give the path of a blob's part file."""
        return self._root / f"{blob_name(digest)}.part"

    def committed(self, digest: str) -> int:
        """Give how many bytes have come."""
        try:
            return self.path(digest).stat().st_size
        except FileNotFoundError:
            return 0


class Part:
    """One upload that goes on. Not for use by two threads at once.

    Args:
        path: The part file; made where it does not exist.
        digest: What its content will have.
        size_bytes: Size of the whole blob.
        offset: Where the sender wants to begin.

    Raises:
        OffsetError: The file ends elsewhere (code ``write_offset``).
        BoardError: The disk has no room for the rest (code ``disk_full``), or fails.
    """

    def __init__(self, path: Path, digest: str, size_bytes: int, offset: int) -> None:
        self.path = path
        self._digest = digest
        self._size = size_bytes
        self._hasher = blake3()
        self._fd = self._opened()
        try:
            self.length = os.fstat(self._fd).st_size
            self._check_offset(offset)
            self._check_room()
            self._hash_what_is_there()
        except BaseException:
            os.close(self._fd)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; it stays for a later continuation."""
        os.close(self._fd)

    def append(self, chunks: Sequence[bytes]) -> None:
        """Write and hash more bytes.

        Raises:
            DigestMismatchError: More bytes than the blob has; the part is dropped.
            BoardError: The disk is full or fails.
        """
        try:
            for chunk in chunks:
                if self.length + len(chunk) > self._size:
                    self._drop()
                    raise DigestMismatchError(
                        f"more than the announced {self._size} bytes came for {self._digest}",
                        hint="Upload again from the start.",
                    )
                view = memoryview(chunk)
                while view:
                    written = os.pwrite(self._fd, view, self.length)
                    self._hasher.update(view[:written])
                    self.length += written
                    view = view[written:]
        except OSError as err:
            raise disk_error(err, self.path) or _disk_failed(self.path, err) from err

    def finish(self) -> bool:
        """Verify and sync the file where all bytes have come.

        Returns:
            Whether they have.

        Raises:
            DigestMismatchError: They are not what the digest says; the part is dropped.
            BoardError: The disk failed.
        """
        if self.length < self._size:
            return False
        found = PREFIX + self._hasher.hexdigest()
        if found != self._digest:
            self._drop()
            raise DigestMismatchError(
                f"the upload of {self._digest} has the digest {found}", hint="Upload again from the start."
            )
        try:
            os.fsync(self._fd)
        except OSError as err:
            raise disk_error(err, self.path) or _disk_failed(self.path, err) from err
        return True

    def _opened(self) -> int:
        try:
            return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as err:
            raise disk_error(err, self.path) or _disk_failed(self.path, err) from err

    def _check_offset(self, offset: int) -> None:
        if offset != self.length:
            raise OffsetError(
                f"the upload of {self._digest} stands at {self.length}, not at {offset}",
                code="write_offset",
                offset=self.length,
                hint="Ask GetWriteStatus and continue from there.",
            )

    def _check_room(self) -> None:
        free = shutil.disk_usage(self.path.parent).free
        if self._size - self.length > free:
            raise BoardError(
                f"the artifact store has {free} bytes left, the upload needs {self._size - self.length}",
                code="disk_full",
                hint=f"Free space on the file system of {self.path.parent}.",
            )

    def _drop(self) -> None:
        self.path.unlink(missing_ok=True)

    def _hash_what_is_there(self) -> None:
        position = 0
        while position < self.length:
            block = os.pread(self._fd, _HASH_BYTES, position)
            self._hasher.update(block)
            position += len(block)


def _disk_failed(path: Path, err: OSError) -> BoardError:
    return BoardError(f"cannot write {path}: {err}", code="disk", hint="Check the disk of the state directory.")
