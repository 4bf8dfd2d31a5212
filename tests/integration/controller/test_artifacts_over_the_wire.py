"""Uploads and downloads through real gRPC: cut, resumed, corrupted, at the same time."""

from __future__ import annotations

import asyncio
import random

import grpc
import pytest

from ytk_core.digests import digest_bytes
from ytk_core.rpc_errors import from_rpc_error
from ytk_proto.v1 import artifacts_pb2 as pb

from fakes.store_agents import MIB, WAIT_S, Peers, write_requests

DATA = random.Random(7).randbytes(10 * MIB + 12345)
DIGEST = digest_bytes(DATA)


async def refusal(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), from_rpc_error(caught.value)


async def read(peers: Peers, digest: str, offset: int = 0) -> bytes:
    messages = [
        part async for part in peers.client.artifacts.ReadArtifact(pb.ReadArtifactRequest(digest=digest, offset=offset))
    ]
    assert all(len(part.data) <= MIB for part in messages)
    assert messages[0].size_bytes - offset == sum(len(part.data) for part in messages)
    return b"".join(part.data for part in messages)


async def status(peers: Peers, digest: str):
    return await peers.client.artifacts.GetWriteStatus(pb.GetWriteStatusRequest(digest=digest), timeout=WAIT_S)


async def missing(peers: Peers, *digests: str) -> list[str]:
    return list(
        (await peers.client.artifacts.FindMissing(pb.FindMissingRequest(digests=digests), timeout=WAIT_S)).missing
    )


async def until(peers: Peers, committed: int) -> None:
    """Wait until so many bytes are on the controller's disk; nothing tells a sender of that by itself."""
    async with asyncio.timeout(WAIT_S):
        while (await status(peers, DIGEST)).committed_bytes < committed:  # noqa: ASYNC110 - the wire has no event for us
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("size", [0, 1, MIB, 3 * MIB + 17])
async def test_what_was_written_is_read(peers: Peers, size: int) -> None:
    data = DATA[:size]
    digest = digest_bytes(data)
    assert await missing(peers, digest) == [digest]
    answer = await peers.upload(data)
    assert (answer.committed_bytes, answer.complete) == (size, True)
    assert await missing(peers, digest) == []
    assert await read(peers, digest) == data
    assert await read(peers, digest, size // 2) == data[size // 2 :]


async def test_an_upload_cut_at_70_percent_resends_at_most_the_rest_and_a_chunk(controllers) -> None:
    cut_at = int(len(DATA) * 0.7) // MIB * MIB
    async with controllers() as peers:
        going = asyncio.Event()

        async def cut():
            async for request in write_requests(DIGEST, DATA, until=cut_at):
                yield request
            going.set()
            await asyncio.sleep(60)  # the link hangs until the test cuts it

        upload = peers.client.artifacts.WriteArtifact(cut())
        await asyncio.wait_for(going.wait(), WAIT_S)
        await until(peers, cut_at)
        upload.cancel()
        assert await missing(peers, DIGEST) == [DIGEST]

    async with controllers() as peers:  # the controller was restarted, too
        committed = (await status(peers, DIGEST)).committed_bytes
        assert len(DATA) - committed <= len(DATA) - cut_at + MIB
        answer = await peers.upload(DATA, offset=committed)
        assert answer.complete
        assert await read(peers, DIGEST) == DATA


async def test_a_wrong_offset_is_told_where_the_upload_stands(peers: Peers) -> None:
    half = 2 * MIB
    answer = await peers.upload(DATA, until=half)
    assert (answer.committed_bytes, answer.complete) == (half, False)
    code, err = await refusal(peers.upload(DATA, offset=0))
    assert code is grpc.StatusCode.OUT_OF_RANGE
    assert (err.code, err.offset) == ("write_offset", half)
    assert (await peers.upload(DATA, offset=half)).complete


async def test_wrong_bytes_never_become_visible(peers: Peers) -> None:
    wrong = bytearray(DATA)
    wrong[-1] ^= 1
    code, err = await refusal(peers.upload(bytes(wrong), digest=DIGEST))
    assert (code, err.code) == (grpc.StatusCode.DATA_LOSS, "digest_mismatch")
    assert await missing(peers, DIGEST) == [DIGEST]
    assert (await status(peers, DIGEST)).committed_bytes == 0
    assert (await peers.upload(DATA)).complete


async def test_more_bytes_than_announced_are_refused(peers: Peers) -> None:
    async def requests():
        yield pb.WriteArtifactRequest(digest=DIGEST, size_bytes=10)
        yield pb.WriteArtifactRequest(data=DATA[:11])

    code, _ = await refusal(peers.client.artifacts.WriteArtifact(requests(), timeout=WAIT_S))
    assert code is grpc.StatusCode.DATA_LOSS
    assert (await status(peers, DIGEST)).committed_bytes == 0


async def test_two_senders_of_one_blob_both_succeed(peers: Peers) -> None:
    one, two = await asyncio.gather(peers.upload(DATA), peers.upload(DATA))
    assert one.complete
    assert two.complete


async def test_a_sender_that_hangs_is_replaced(peers: Peers, monkeypatch) -> None:
    monkeypatch.setattr("ytk_controller.artifacts.store._TAKE_OVER_S", 0.1)

    async def hanging():
        yield pb.WriteArtifactRequest(digest=DIGEST, size_bytes=len(DATA), data=DATA[:MIB])
        await asyncio.sleep(60)

    stuck = peers.client.artifacts.WriteArtifact(hanging())
    await stuck.wait_for_connection()
    await asyncio.sleep(0)
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                answer = await peers.upload(DATA, offset=(await status(peers, DIGEST)).committed_bytes)
            except grpc.aio.AioRpcError as err:
                assert from_rpc_error(err).code == "write_offset"  # noqa: PT017 - a race the sender has to take
                continue
            break
    assert answer.complete
    stuck.cancel()


@pytest.mark.parametrize("digest", ["", "sha256:00", "blake3:../../etc/passwd", "blake3:" + "A" * 64])
async def test_what_is_no_digest_is_refused(peers: Peers, digest: str) -> None:
    code, err = await refusal(
        peers.client.artifacts.FindMissing(pb.FindMissingRequest(digests=[digest]), timeout=WAIT_S)
    )
    assert (code, err.code) == (grpc.StatusCode.INVALID_ARGUMENT, "bad_digest")
    assert (await refusal(peers.upload(b"x", digest=digest or "x")))[1].code == "bad_digest"


async def test_a_blob_that_is_not_there_is_not_found(peers: Peers) -> None:
    stream = peers.client.artifacts.ReadArtifact(pb.ReadArtifactRequest(digest=DIGEST))
    assert (await refusal(stream.read()))[1].code == "not_found"


async def test_a_disk_without_room_is_said_before_anything_is_sent(peers: Peers) -> None:
    async def requests():
        yield pb.WriteArtifactRequest(digest=DIGEST, size_bytes=1 << 60)

    code, err = await refusal(peers.client.artifacts.WriteArtifact(requests(), timeout=WAIT_S))
    assert (code, err.code) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "disk_full")
