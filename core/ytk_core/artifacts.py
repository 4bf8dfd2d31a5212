"""Move content-addressed blobs to and from the controller: only what is missing, in chunks, resumed, verified.

Two clients with one behaviour: :class:`ArtifactClient` for agents (asyncio) and :class:`SyncArtifactClient` for scripts
and the CLI. A transfer that is cut goes on where it stopped; it gives up after several attempts in a row that moved
nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import os
import secrets
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self, TypeVar

import grpc
import grpc.aio
import tenacity
from blake3 import blake3

from ytk_core.channels import CHUNK_BYTES
from ytk_core.digests import PREFIX, check_digest, digest_file
from ytk_core.errors import BoardError, FailureClass, UserError, YtkError
from ytk_core.files import disk_error
from ytk_core.jobs import NamedBlob
from ytk_core.rpc_errors import OffsetError, being_cancelled, cancelled_by_peer, from_rpc_error, from_write_error
from ytk_core.together import to_its_end, together
from ytk_proto.v1 import artifacts_pb2 as pb
from ytk_proto.v1 import artifacts_pb2_grpc

Progress = Callable[[int, int], None]
"""Takes bytes done and bytes in all; may be called from another thread than the caller's."""

_T = TypeVar("_T")

_CALL_DEADLINE_S = 60.0
# A stream has to end some time: this much, and as long as a slow line (256 KiB/s) needs. A cut one is resumed.
_STREAM_DEADLINE_S = 60.0
_SLOWEST_BYTES_PER_S = 256 * 1024
# Questions about digests are batched, so that one message stays far below the 4 MiB limit.
_DIGESTS_PER_CALL = 1000
_UPLOADS_AT_ONCE = 4
# Received chunks that one visit to a thread hashes and writes.
_CHUNKS_PER_WRITE = 4
_IDLE_ATTEMPTS = 6
_BACKOFF = tenacity.wait_exponential_jitter(multiplier=0.2, max=10.0, jitter=0.2)
# Of the failures of infrastructure, those that another attempt within seconds does not mend.
_LASTING = frozenset({"disk_full", "digest_mismatch"})


class SyncArtifactClient:
    """The blocking client.

    Args:
        channel: To the controller, from :func:`ytk_core.channels.sync_channel`.
        sleep: Waits between attempts.
    """

    def __init__(self, channel: grpc.Channel, *, sleep: Callable[[float], None] | None = None) -> None:
        self._stub = artifacts_pb2_grpc.ArtifactServiceStub(channel)
        self._sleep = sleep

    def ensure(self, paths: Mapping[str, Path], *, progress: Progress | None = None) -> list[NamedBlob]:
        """Make the store hold these files; upload what it lacks.

        Args:
            paths: Blob name to file.
            progress: Counts the bytes that the store lacked.

        Returns:
            A blob for each name, in order.

        Raises:
            UserError: A file cannot be read (``unreadable``), or changed while it was sent (``digest_mismatch``).
            YtkError: What the controller answered, or ``unavailable`` after several vain attempts.
        """
        blobs = [_describe(name, path) for name, path in paths.items()]
        files = {blob.digest: (blob, paths[blob.name]) for blob in blobs}
        missing: list[str] = []
        for batch in _batches(list(files)):
            missing += self._retrying(_Moves(), functools.partial(self._find_missing, batch))
        meter = _Meter(progress, sum(files[digest][0].size_bytes for digest in missing))
        with ThreadPoolExecutor(_UPLOADS_AT_ONCE, thread_name_prefix="upload") as pool:
            list(pool.map(lambda digest: self._upload(*files[digest], meter), missing))
        return blobs

    def download(self, digest: str, dest: Path, *, progress: Progress | None = None, durable: bool = True) -> None:
        """Bring a blob to ``dest``: under a temporary name until it is whole and verified.

        Args:
            digest: The blob.
            dest: The file; its directory has to exist.
            progress: Counts the blob's bytes.
            durable: Wait until the disk has it.

        Raises:
            UserError: Malformed digest; ``not_found``.
            BoardError: ``digest_mismatch``, ``disk_full``, or ``unavailable`` after several vain attempts.
        """
        with _Incoming(check_digest(digest), dest, progress) as incoming:
            self._retrying(incoming.moves, lambda: self._receive(incoming))
            incoming.finish(durable=durable)

    def _find_missing(self, digests: Sequence[str]) -> list[str]:
        with _translated():
            request = pb.FindMissingRequest(digests=digests)
            return list(self._stub.FindMissing(request, timeout=_CALL_DEADLINE_S).missing)

    def _upload(self, blob: NamedBlob, path: Path, meter: _Meter) -> None:
        upload = _Upload(blob, path, meter)
        self._retrying(upload.moves, lambda: self._send(upload))

    def _send(self, upload: _Upload) -> None:
        with _translated():
            request = pb.GetWriteStatusRequest(digest=upload.blob.digest)
            status = self._stub.GetWriteStatus(request, timeout=_CALL_DEADLINE_S)
        if upload.begin(status):
            return
        problems: list[Exception] = []

        def messages() -> Iterator[pb.WriteArtifactRequest]:
            # gRPC turns an exception of its request iterator into a bare CANCELLED.
            try:
                yield from upload.messages()
            except (OSError, YtkError) as err:
                problems.append(err)
                raise

        try:
            answer = self._stub.WriteArtifact(messages(), timeout=upload.deadline_s)
        except grpc.RpcError as err:
            if problems:
                raise problems[0] from err
            raise from_rpc_error(err) from err
        upload.end(answer)

    def _receive(self, incoming: _Incoming) -> None:
        with _translated():
            request = pb.ReadArtifactRequest(digest=incoming.digest, offset=incoming.offset)
            for answer in self._stub.ReadArtifact(request, timeout=incoming.deadline_s):
                incoming.take([answer])

    def _retrying(self, moves: _Moves, work: Callable[[], _T]) -> _T:
        options: dict[str, Any] = {} if self._sleep is None else {"sleep": self._sleep}
        return tenacity.Retrying(**moves.policy, **options)(work)


class ArtifactClient:
    """The asyncio client; hashing and file work happen in threads.

    Args:
        channel: To the controller, from :func:`ytk_core.channels.aio_channel`.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub: artifacts_pb2_grpc.ArtifactServiceAsyncStub = artifacts_pb2_grpc.ArtifactServiceStub(channel)

    async def ensure(self, paths: Mapping[str, Path], *, progress: Progress | None = None) -> list[NamedBlob]:
        """Make the store hold these files; see :meth:`SyncArtifactClient.ensure`."""
        blobs = [await asyncio.to_thread(_describe, name, path) for name, path in paths.items()]
        files = {blob.digest: (blob, paths[blob.name]) for blob in blobs}
        missing: list[str] = []
        for batch in _batches(list(files)):
            missing += await tenacity.AsyncRetrying(**_Moves().policy)(self._find_missing, batch)
        meter = _Meter(progress, sum(files[digest][0].size_bytes for digest in missing))
        limit = asyncio.Semaphore(_UPLOADS_AT_ONCE)

        async def upload(digest: str) -> None:
            async with limit:
                outgoing = _Upload(*files[digest], meter)
                await tenacity.AsyncRetrying(**outgoing.moves.policy)(self._send, outgoing)

        await together(*map(upload, missing))
        return blobs

    async def download(
        self, digest: str, dest: Path, *, progress: Progress | None = None, durable: bool = False
    ) -> None:
        """Bring a blob to ``dest``; see :meth:`SyncArtifactClient.download`."""
        with _Incoming(check_digest(digest), dest, progress) as incoming:
            await tenacity.AsyncRetrying(**incoming.moves.policy)(self._receive, incoming)
            await _to_thread_to_its_end(lambda: incoming.finish(durable=durable))

    async def _find_missing(self, digests: Sequence[str]) -> list[str]:
        with _translated():
            request = pb.FindMissingRequest(digests=digests)
            return list((await self._stub.FindMissing(request, timeout=_CALL_DEADLINE_S)).missing)

    async def _send(self, upload: _Upload) -> None:
        with _translated():
            request = pb.GetWriteStatusRequest(digest=upload.blob.digest)
            status = await self._stub.GetWriteStatus(request, timeout=_CALL_DEADLINE_S)
        if upload.begin(status):
            return
        with _translated():
            call = self._stub.WriteArtifact(timeout=upload.deadline_s)
            try:
                async for message in _in_threads(upload.messages()):
                    await call.write(message)
                await call.done_writing()
            except asyncio.InvalidStateError:
                pass  # the peer ended the stream before we did: its answer says why
            except grpc.RpcError as err:
                raise from_write_error(err) from err
            except BaseException:
                call.cancel()
                raise
            upload.end(await call)

    async def _receive(self, incoming: _Incoming) -> None:
        with _translated():
            request = pb.ReadArtifactRequest(digest=incoming.digest, offset=incoming.offset)
            batch: list[pb.ReadArtifactResponse] = []
            call = self._stub.ReadArtifact(request, timeout=incoming.deadline_s)
            try:
                async for answer in call:
                    batch.append(answer)
                    if len(batch) == _CHUNKS_PER_WRITE:
                        full, batch = batch, []
                        await _to_thread_to_its_end(functools.partial(incoming.take, full))
            finally:
                call.cancel()
                # What came before the cut counts: the next attempt begins behind it.
                await _to_thread_to_its_end(lambda: incoming.take(batch))


class _Moves:
    """The retry policy of one transfer: attempts are counted anew whenever one moved something."""

    def __init__(self) -> None:
        self._reached = 0
        self._before = 0

    def reached(self, offset: int) -> None:
        self._reached = max(self._reached, offset)

    def _wait(self, state: tenacity.RetryCallState) -> float:
        if self._reached > self._before:
            self._before = self._reached
            state.attempt_number = 1
        return _BACKOFF(state)

    @property
    def policy(self) -> dict[str, Any]:
        return {
            "retry": tenacity.retry_if_exception(_transient),
            "wait": self._wait,
            "stop": tenacity.stop_after_attempt(_IDLE_ATTEMPTS),
            "reraise": True,
        }


def _transient(err: BaseException) -> bool:
    if isinstance(err, OffsetError):
        return True
    return isinstance(err, YtkError) and err.failure_class is FailureClass.BOARDS and err.code not in _LASTING


class _Meter:
    """Adds up the progress of several transfers."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done: dict[str, int] = {}
        self._lock = threading.Lock()

    def at(self, digest: str, done: int) -> None:
        if self._progress is not None:
            with self._lock:
                self._done[digest] = done
                self._progress(sum(self._done.values()), self._total)


class _Upload:
    """One blob on its way to the store, over as many attempts as it takes."""

    def __init__(self, blob: NamedBlob, path: Path, meter: _Meter) -> None:
        self.blob = blob
        self.moves = _Moves()
        self._path = path
        self._meter = meter
        self._offset = 0

    @property
    def deadline_s(self) -> float:
        return _STREAM_DEADLINE_S + (self.blob.size_bytes - self._offset) / _SLOWEST_BYTES_PER_S

    def begin(self, status: pb.GetWriteStatusResponse) -> bool:
        """Take the store's word on how far it is; True where it has everything."""
        self._offset = self.blob.size_bytes if status.complete else status.committed_bytes
        self.moves.reached(self._offset)
        self._meter.at(self.blob.digest, self._offset)
        return status.complete

    def messages(self) -> Iterator[pb.WriteArtifactRequest]:
        with _readable(self._path), self._path.open("rb") as file:
            file.seek(self._offset)
            offset = self._offset
            first = pb.WriteArtifactRequest(
                digest=self.blob.digest, size_bytes=self.blob.size_bytes, offset=offset, data=file.read(CHUNK_BYTES)
            )
            yield first
            offset += len(first.data)
            self._meter.at(self.blob.digest, offset)
            while data := file.read(CHUNK_BYTES):
                yield pb.WriteArtifactRequest(data=data)
                offset += len(data)
                self._meter.at(self.blob.digest, offset)

    def end(self, answer: pb.WriteArtifactResponse) -> None:
        """Check the store's answer.

        Raises:
            OffsetError: It has not everything; the next attempt continues.
        """
        self.moves.reached(answer.committed_bytes)
        if not answer.complete:
            raise OffsetError(
                f"the store has {answer.committed_bytes} of {self.blob.size_bytes} bytes of {self.blob.digest}",
                code="write_offset",
                offset=answer.committed_bytes,
                hint=f"{self._path} may have changed while it was sent.",
            )
        self._meter.at(self.blob.digest, self.blob.size_bytes)


class _Incoming:
    """One blob on its way from the store: a temporary file that becomes ``dest`` only when it is right."""

    def __init__(self, digest: str, dest: Path, progress: Progress | None) -> None:
        self.digest = digest
        self.moves = _Moves()
        self.offset = 0
        self._dest = dest
        self._size: int | None = None
        self._meter = progress
        self._hash = blake3()
        self._path = dest.with_name(f".{dest.name[:64]}.{secrets.token_hex(6)}.part")

    def __enter__(self) -> Self:
        with _writable(self._dest):
            self._file = self._path.open("xb")
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)

    @property
    def deadline_s(self) -> float:
        return _STREAM_DEADLINE_S + ((self._size or 0) - self.offset) / _SLOWEST_BYTES_PER_S

    def take(self, answers: Iterable[pb.ReadArtifactResponse]) -> None:
        """Write what came.

        Raises:
            BoardError: More than was announced, or no room for it.
        """
        with _writable(self._dest):
            for answer in answers:
                if self._size is None:
                    self._size = answer.size_bytes
                self._hash.update(answer.data)
                self._file.write(answer.data)
                self.offset += len(answer.data)
                if self.offset > self._size:
                    raise self._mismatch(f"more than the {self._size} bytes that were announced")
        self.moves.reached(self.offset)
        if self._meter is not None:
            self._meter(self.offset, self._size or 0)

    def finish(self, *, durable: bool) -> None:
        """Verify and rename.

        Raises:
            BoardError: ``digest_mismatch``.
        """
        found = PREFIX + self._hash.hexdigest()
        if found != self.digest:
            raise self._mismatch(f"{self.offset} bytes with digest {found}")
        with _writable(self._dest):
            self._file.flush()
            if durable:
                os.fsync(self._file.fileno())
            self._path.replace(self._dest)

    def _mismatch(self, what: str) -> BoardError:
        return BoardError(
            f"the store sent {what} for {self.digest}",
            code="digest_mismatch",
            hint="Try again; if it happens twice, the controller's store is damaged.",
        )


def _describe(name: str, path: Path) -> NamedBlob:
    with _readable(path):
        return NamedBlob(name=name, digest=digest_file(path), size_bytes=path.stat().st_size)


def _batches(digests: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(digests), _DIGESTS_PER_CALL):
        yield digests[start : start + _DIGESTS_PER_CALL]


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except asyncio.CancelledError as err:
        if being_cancelled():
            raise
        raise cancelled_by_peer() from err
    except grpc.RpcError as err:
        raise from_rpc_error(err) from err


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as err:
        raise UserError(f"cannot read {path}: {err.strerror}", code="unreadable") from err


@contextlib.contextmanager
def _writable(dest: Path) -> Iterator[None]:
    try:
        yield
    except OSError as err:
        raise disk_error(err, dest) or UserError(f"cannot write {dest}: {err.strerror}", code="unwritable") from err


async def _in_threads(messages: Iterator[pb.WriteArtifactRequest]) -> AsyncIterator[pb.WriteArtifactRequest]:
    while batch := await _to_thread_to_its_end(lambda: list(itertools.islice(messages, _CHUNKS_PER_WRITE))):
        for message in batch:
            yield message


async def _to_thread_to_its_end(work: Callable[[], _T]) -> _T:
    """Run in a thread; a cancellation waits for it, since the thread still uses the file."""
    return await to_its_end(asyncio.to_thread(work))
