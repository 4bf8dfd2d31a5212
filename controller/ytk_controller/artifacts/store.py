"""The artifact store: uploads into part files, verified before anyone sees them; reads as streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass, field

from ytk_controller.artifacts.blobs import CHUNK_BYTES, BlobStore
from ytk_controller.artifacts.parts import Part, Parts
from ytk_controller.store.base import Store, Tx
from ytk_core.digests import check_digest
from ytk_core.errors import BoardError, UserError
from ytk_core.jobs import NamedBlob

# At most so many chunks are written by one visit to a thread, and so many wait meanwhile: hashing and writing overlap
# with receiving, and an upload holds less than ten chunks in memory.
_BATCH = 4
# A sender that sends nothing for so long is gone; every wait has its deadline.
_IDLE_LIMIT_S = 60.0
# Someone else uploads the same blob: an upload idle for longer than this is taken over.
_TAKE_OVER_S = 5.0
_QUESTIONS_AT_ONCE = 16


@dataclass
class _Holder:
    task: asyncio.Task[object]
    last_active: float
    done: asyncio.Event = field(default_factory=asyncio.Event)


class ArtifactStore:
    """Blobs by digest.

    Args:
        blobs: Finished blobs.
        parts: Unfinished ones, on local disk.
        store: Where it is recorded which blobs are there, so that a commit can check it in its transaction.
    """

    def __init__(self, blobs: BlobStore, parts: Parts, store: Store) -> None:
        self._blobs = blobs
        self._parts = parts
        self._store = store
        self._holders: dict[str, _Holder] = {}

    async def missing(self, digests: Collection[str]) -> list[str]:
        """Give those digests whose blobs are not there, in order; the record is brought up to date on the way.

        Raises:
            UserError: A digest is malformed.
        """
        wanted = list(dict.fromkeys(check_digest(digest) for digest in digests))
        limit = asyncio.Semaphore(_QUESTIONS_AT_ONCE)

        async def ask(digest: str) -> int | None:
            async with limit:
                return await self._blobs.size(digest)

        sizes = dict(zip(wanted, await asyncio.gather(*map(ask, wanted)), strict=True))
        missing = [digest for digest in wanted if sizes[digest] is None]
        present = {digest: size for digest, size in sizes.items() if size is not None}
        await self._record(present, missing)
        return missing

    async def status(self, digest: str) -> tuple[int, bool]:
        """Give how many bytes of a blob are there, and whether that is all of it."""
        size = await self._blobs.size(check_digest(digest))
        if size is not None:
            return size, True
        return await asyncio.to_thread(self._parts.committed, digest), False

    async def write(self, digest: str, size_bytes: int, offset: int, chunks: AsyncIterator[bytes]) -> tuple[int, bool]:
        """Take the bytes of a blob from an offset on.

        Args:
            digest: The blob.
            size_bytes: Size of the whole blob.
            offset: Where the first chunk begins; has to be where the upload stands.
            chunks: At most 1 MiB each.

        Returns:
            How many bytes have come in all, and whether the blob is complete and visible.

        Raises:
            UserError: Malformed digest, chunk too big.
            OffsetError: The upload stands elsewhere (code ``write_offset``).
            DigestMismatchError: The bytes are not what the digest says; the part is dropped.
            BoardError: Disk full or failing, or the sender fell silent.
        """
        check_digest(digest)
        holder = await self._take(digest)
        try:
            present = await self._blobs.size(digest)
            if present is None:
                part = await asyncio.to_thread(Part, self._parts.path(digest), digest, size_bytes, offset)
                try:
                    await self._pump(part, chunks, holder)
                    if not await _uninterrupted(part.finish):
                        return part.length, False
                finally:
                    part.close()
                await self._blobs.adopt(part.path, digest)
                present = size_bytes
            await self._record({digest: present}, [])
            return present, True
        finally:
            del self._holders[digest]
            holder.done.set()

    async def read(self, digest: str, offset: int) -> tuple[int, AsyncIterator[bytes]]:
        """Open a blob.

        Returns:
            Its size, and its bytes from ``offset`` on in chunks of at most 1 MiB.

        Raises:
            UserError: Malformed digest, no such blob (code ``not_found``), offset beyond its end.
        """
        size = await self._blobs.size(check_digest(digest))
        if size is None:
            raise UserError(f"there is no blob {digest}", code="not_found", hint="Upload it, or run the job again.")
        if offset > size:
            raise UserError(f"offset {offset} is beyond the {size} bytes of {digest}", hint="Read from 0.")
        return size, self._blobs.read(digest, offset, size)

    async def _take(self, digest: str) -> _Holder:
        loop = asyncio.get_running_loop()
        while (other := self._holders.get(digest)) is not None:
            try:
                async with asyncio.timeout(_TAKE_OVER_S):
                    await other.done.wait()
            except TimeoutError:
                if loop.time() - other.last_active >= _TAKE_OVER_S:
                    other.task.cancel()
                    await other.done.wait()
        task = asyncio.current_task()
        assert task is not None  # a coroutine of ours always runs in a task
        self._holders[digest] = holder = _Holder(task, loop.time())
        return holder

    @staticmethod
    async def _pump(part: Part, chunks: AsyncIterator[bytes], holder: _Holder) -> None:
        """Write what comes as it comes: one batch is written while the next one arrives."""
        loop = asyncio.get_running_loop()
        coming: asyncio.Task[bytes | None] | None = _coming(chunks)
        writing: asyncio.Task[None] | None = None
        batch: list[bytes] = []
        try:
            while coming is not None or writing is not None:
                room = coming if len(batch) < _BATCH else None
                await asyncio.wait([task for task in (room, writing) if task], return_when=asyncio.FIRST_COMPLETED)
                if writing is not None and writing.done():
                    writing.result()
                    writing = None
                if room is not None and room.done():
                    holder.last_active = loop.time()
                    chunk = room.result()
                    coming = None if chunk is None else _coming(chunks)
                    if chunk:
                        batch.append(chunk)
                if batch and writing is None:
                    writing, batch = _writing(part, batch), []
        finally:
            # Also after a cut: what came is kept, and no thread may still use the file when it is closed.
            if coming is not None:
                coming.cancel()
                await asyncio.wait({coming})
            if writing is not None:
                await asyncio.wait({writing})
            if batch and (writing is None or writing.exception() is None):
                await asyncio.wait({_writing(part, batch)})

    async def _record(self, present: dict[str, int], missing: list[str]) -> None:
        blobs = [NamedBlob(name="", digest=digest, size_bytes=size) for digest, size in present.items()]
        if not blobs and not missing:
            return

        def record(tx: Tx) -> None:
            unknown = tx.missing_blobs([blob.digest for blob in blobs])
            tx.add_blobs([blob for blob in blobs if blob.digest in unknown])
            if missing:
                tx.drop_blobs(missing)

        await self._store.arun(record)


def _coming(chunks: AsyncIterator[bytes]) -> asyncio.Task[bytes | None]:
    return asyncio.create_task(_next(chunks), name="next-chunk")


def _writing(part: Part, batch: list[bytes]) -> asyncio.Task[None]:
    return asyncio.create_task(asyncio.to_thread(part.append, batch), name="write-part")


async def _next(chunks: AsyncIterator[bytes]) -> bytes | None:
    try:
        async with asyncio.timeout(_IDLE_LIMIT_S):
            chunk = await anext(chunks, None)
    except TimeoutError:
        raise BoardError(
            f"the sender sent nothing for {_IDLE_LIMIT_S:.0f} s", code="deadline", hint="Continue the upload."
        ) from None
    if chunk is not None and len(chunk) > CHUNK_BYTES:
        raise UserError(f"a chunk of {len(chunk)} bytes", code="too_large", hint="Send chunks of at most 1 MiB.")
    return chunk


async def _uninterrupted(function: Callable[[], bool]) -> bool:
    # A cancelled coroutine would close the file under the thread.
    task = asyncio.create_task(asyncio.to_thread(function), name="finish-part")
    try:
        return await asyncio.shield(task)
    finally:
        if not task.done():
            await asyncio.wait({task})
