"""Where finished blobs lie: an object store (through obstore), or a local directory.

A local directory has a path of its own: a verified part becomes a blob by a link, without copying it, and reads go
through ``pread``, which is faster than obstore's local stream by more than ten times.
"""

# ruff: noqa: D102 - the abstract class documents the methods

from __future__ import annotations

import abc
import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

from ytk_core.digests import blob_name
from ytk_core.errors import BoardError, UserError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

CHUNK_BYTES = 1 << 20
# Read at once, sent in chunks: a thread switch for each MiB would cost more than the read.
_READ_BYTES = 4 << 20
# S3 asks for parts of at least 5 MiB; four of them in flight stay far below the memory limit.
_PART_BYTES = 8 << 20
_PARTS_IN_FLIGHT = 4


class BlobStore(abc.ABC):
    """Finished blobs by digest."""

    @abc.abstractmethod
    async def size(self, digest: str) -> int | None:
        """Give the size in bytes; None where the blob is not there."""

    @abc.abstractmethod
    async def adopt(self, part: Path, digest: str) -> None:
        """Make a verified, synced part file the blob, if it is not there yet; the part is gone afterwards.

        Raises:
            BoardError: The store cannot take it; the part stays.
        """

    @abc.abstractmethod
    def read(self, digest: str, offset: int, size: int) -> AsyncIterator[bytes]:
        """Stream a blob of ``size`` bytes from an offset in chunks of at most 1 MiB."""


class LocalBlobs(BlobStore):
    """Blobs in a directory, two levels deep. Parts have to lie on the same file system.

    Args:
        root: The directory; made where it does not exist.
    """

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._root = root

    def _path(self, digest: str) -> Path:
        name = blob_name(digest)
        return self._root / name[:2] / name

    async def size(self, digest: str) -> int | None:
        with contextlib.suppress(FileNotFoundError):
            return self._path(digest).stat().st_size
        return None

    async def adopt(self, part: Path, digest: str) -> None:
        await asyncio.to_thread(self._adopt, part, self._path(digest))

    def _adopt(self, part: Path, path: Path) -> None:
        try:
            path.parent.mkdir(exist_ok=True, mode=0o700)
            part.chmod(0o400)
            _create_if_absent(part, path)
            _sync_directory(path.parent)
            _sync_directory(self._root)
        except OSError as err:
            raise BoardError(
                f"cannot store the blob {path}: {err}", code="disk", hint="Check the disk of the state directory."
            ) from err

    async def read(self, digest: str, offset: int, size: int) -> AsyncIterator[bytes]:
        descriptor = await asyncio.to_thread(os.open, self._path(digest), os.O_RDONLY | os.O_CLOEXEC)
        pending: asyncio.Task[bytes] | None = None
        try:
            while offset < size:
                pending = asyncio.create_task(
                    asyncio.to_thread(os.pread, descriptor, min(_READ_BYTES, size - offset), offset), name="read-blob"
                )
                block = await pending
                if not block:
                    raise BoardError(f"blob {digest} is shorter than {size} bytes", code="disk", hint="Check the disk.")
                offset += len(block)
                for start in range(0, len(block), CHUNK_BYTES):
                    yield block[start : start + CHUNK_BYTES]
        finally:
            if pending is not None and not pending.done():
                await asyncio.wait({pending})  # the thread still uses the descriptor
            os.close(descriptor)


class ObjectBlobs(BlobStore):
    """Blobs in an object store.

    Args:
        store: From :func:`obstore.store.from_url`.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    @staticmethod
    def _key(digest: str) -> str:
        name = blob_name(digest)
        return f"{name[:2]}/{name}"

    async def size(self, digest: str) -> int | None:
        import obstore

        try:
            return int((await obstore.head_async(self._store, self._key(digest)))["size"])
        except FileNotFoundError:
            return None
        except Exception as err:  # obstore's errors share no base below Exception
            raise _object_store_failed(err) from err

    async def adopt(self, part: Path, digest: str) -> None:
        import obstore

        if await self.size(digest) is None:
            try:
                # Whoever else uploads the same digest writes the same bytes: the last one changes nothing.
                await obstore.put_async(
                    self._store, self._key(digest), part, chunk_size=_PART_BYTES, max_concurrency=_PARTS_IN_FLIGHT
                )
            except Exception as err:  # obstore's errors share no base below Exception
                raise _object_store_failed(err) from err
        await asyncio.to_thread(part.unlink, missing_ok=True)

    async def read(self, digest: str, offset: int, size: int) -> AsyncIterator[bytes]:
        import obstore

        while offset < size:
            end = min(size, offset + _PART_BYTES)
            try:
                block = await obstore.get_range_async(self._store, self._key(digest), start=offset, end=end)
            except Exception as err:  # obstore's errors share no base below Exception
                raise _object_store_failed(err) from err
            view = memoryview(block)
            for start in range(0, len(view), CHUNK_BYTES):
                yield bytes(view[start : start + CHUNK_BYTES])
            offset = end


def open_blobs(url: str, default: Path) -> BlobStore:
    """Open the blob store that a URL names.

    Args:
        url: ``s3://bucket/prefix`` (credentials from the environment, as obstore reads them), ``file:///directory``, or
            empty for ``default``.
        default: The local directory where no URL is given.

    Raises:
        UserError: The URL names no store that we can open.
    """
    if not url:
        return LocalBlobs(default)
    scheme, _, rest = url.partition("://")
    if scheme == "file" and rest.startswith("/"):
        return LocalBlobs(Path(rest))
    from obstore.store import from_url

    try:
        return ObjectBlobs(from_url(url))
    except Exception as err:  # obstore's errors share no base below Exception
        raise UserError(
            f"cannot open the artifact store {url}: {err}",
            hint="Give s3://BUCKET/PREFIX with credentials in the environment, or file:///DIRECTORY.",
        ) from err


def _create_if_absent(part: Path, path: Path) -> None:
    try:
        os.link(part, path)
    except FileExistsError:
        pass
    except PermissionError:
        part.rename(path)  # a file system without hard links; the same bytes either way
        return
    part.unlink()


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _object_store_failed(err: Exception) -> BoardError:
    return BoardError(f"the object store failed: {err}", code="object_store", hint="Check its address and credentials.")
