"""ArtifactService."""
# ruff: noqa: D102, N802, ARG002 - the proto names and documents the methods, and gRPC their arguments

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from ytk_controller.artifacts.store import ArtifactStore
from ytk_controller.interceptors.around import Context
from ytk_core.errors import UserError, YtkError
from ytk_proto.v1 import artifacts_pb2 as pb
from ytk_proto.v1 import artifacts_pb2_grpc

# Long enough for what is under way, short enough that a sender with a gigabyte left is told to stop.
_HEARD_OUT_S = 5.0


class ArtifactServicer(artifacts_pb2_grpc.ArtifactServiceServicer):
    """Content-addressed blobs."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store

    async def FindMissing(self, request: pb.FindMissingRequest, context: Context) -> pb.FindMissingResponse:
        missing = await self._store.missing(request.digests)
        return pb.FindMissingResponse(missing=missing)

    async def GetWriteStatus(self, request: pb.GetWriteStatusRequest, context: Context) -> pb.GetWriteStatusResponse:
        committed, complete = await self._store.status(request.digest)
        return pb.GetWriteStatusResponse(committed_bytes=committed, complete=complete)

    async def WriteArtifact(
        self, request: AsyncIterator[pb.WriteArtifactRequest], context: Context
    ) -> pb.WriteArtifactResponse:
        async with _heard_out(request):
            first = await anext(request, None)
            if first is None:
                raise UserError("an upload without a message", code="bad_message", hint="Send digest, size and offset.")
            committed, complete = await self._store.write(
                first.digest, first.size_bytes, first.offset, _chunks(first, request)
            )
        return pb.WriteArtifactResponse(committed_bytes=committed, complete=complete)

    async def ReadArtifact(
        self, request: pb.ReadArtifactRequest, context: Context
    ) -> AsyncIterator[pb.ReadArtifactResponse]:
        size, chunks = await self._store.read(request.digest, request.offset)
        yield pb.ReadArtifactResponse(size_bytes=size)
        async for chunk in chunks:
            yield pb.ReadArtifactResponse(data=chunk)


@contextlib.asynccontextmanager
async def _heard_out(requests: AsyncIterator[pb.WriteArtifactRequest]) -> AsyncIterator[None]:
    """Let a sender finish for a moment before it is answered early.

    A grpc.aio client whose write fails because the answer has come already sees INTERNAL instead of that answer.
    """
    try:
        yield
    except YtkError:
        await _discard(requests)
        raise
    else:
        await _discard(requests)


async def _discard(requests: AsyncIterator[pb.WriteArtifactRequest]) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_HEARD_OUT_S):
            async for _ in requests:
                pass


async def _chunks(first: pb.WriteArtifactRequest, rest: AsyncIterator[pb.WriteArtifactRequest]) -> AsyncIterator[bytes]:
    if first.data:
        yield first.data
    async for message in rest:
        yield message.data
