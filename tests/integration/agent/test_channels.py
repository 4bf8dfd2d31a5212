from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from ytk_core.channels import aio_channel, aio_server_options, client_options, is_loopback, sync_channel
from ytk_core.digests import digest_bytes
from ytk_proto.v1 import artifacts_pb2 as pb
from ytk_proto.v1 import artifacts_pb2_grpc

from fakes.controller import FakeController

DIGEST = digest_bytes(b"x")


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1:80", True),
        ("[::1]:80", True),
        ("localhost:80", True),
        ("10.0.0.1:80", False),
        ("controller.example:7420", False),
    ],
)
def test_loopback_needs_no_proxy(address: str, loopback: bool) -> None:
    assert is_loopback(address) is loopback
    assert (("grpc.enable_http_proxy", 0) in client_options(address)) is loopback


def test_clients_ping_no_faster_than_servers_allow() -> None:
    client, server = dict(client_options("h:1")), dict(aio_server_options())
    floor = server["grpc.http2.min_ping_interval_without_data_ms"]
    assert int(client["grpc.keepalive_time_ms"]) > int(floor)


def test_every_option_is_one_that_grpc_knows() -> None:
    """It ignores a misspelt key without a word, and idle streams are then cut after a minute."""
    from grpc._cython import cygrpc

    library = Path(cygrpc.__file__).read_bytes()
    for key, _ in [*client_options("h:1"), *aio_server_options()]:
        assert key.encode() in library, key
    assert b"grpc.http2.min_recv_ping_interval_without_data_ms" not in library


async def test_every_kind_of_call_presents_the_token() -> None:
    async with FakeController(token="right") as fake:
        fake.store("x", b"x")

        async def unary(stub: Any) -> Any:
            return (await stub.FindMissing(pb.FindMissingRequest(digests=[DIGEST]))).missing

        async def stream_in(stub: Any) -> Any:
            call = stub.WriteArtifact()
            await call.write(pb.WriteArtifactRequest(digest=digest_bytes(b"y"), size_bytes=1, data=b"y"))
            await call.done_writing()
            return (await call).complete

        async def stream_out(stub: Any) -> Any:
            return b"".join([each.data async for each in stub.ReadArtifact(pb.ReadArtifactRequest(digest=DIGEST))])

        async with aio_channel(fake.address, "right") as channel:
            stub = artifacts_pb2_grpc.ArtifactServiceStub(channel)
            assert list(await unary(stub)) == []
            assert await stream_in(stub) is True
            assert await stream_out(stub) == b"x"
        async with aio_channel(fake.address) as channel:
            stub = artifacts_pb2_grpc.ArtifactServiceStub(channel)
            with pytest.raises(grpc.RpcError) as caught:
                await unary(stub)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_the_blocking_channel_presents_it_too() -> None:
    async with FakeController(token="right") as fake:
        fake.store("x", b"x")

        def calls() -> tuple[list[str], bool, bytes]:
            with sync_channel(fake.address, "right") as channel:
                stub: Any = artifacts_pb2_grpc.ArtifactServiceStub(channel)
                missing = list(stub.FindMissing(pb.FindMissingRequest(digests=[DIGEST])).missing)
                first = pb.WriteArtifactRequest(digest=digest_bytes(b"y"), size_bytes=1, data=b"y")
                complete = stub.WriteArtifact(iter([first])).complete
                data = b"".join(each.data for each in stub.ReadArtifact(pb.ReadArtifactRequest(digest=DIGEST)))
                return missing, complete, data

        assert await asyncio.to_thread(calls) == ([], True, b"x")
