"""Both artifact clients against a store that cuts, refuses and lies."""
# ruff: noqa: ASYNC240 - a test may block its own loop

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import tenacity

from ytk_core.artifacts import ArtifactClient, SyncArtifactClient
from ytk_core.channels import aio_channel, sync_channel
from ytk_core.digests import digest_bytes
from ytk_core.errors import BoardError, UserError, YtkError

from fakes.controller import FakeController

MIB = 1 << 20

Call = Callable[..., Awaitable[Any]]


@pytest.fixture(params=["aio", "blocking"])
async def client(request: pytest.FixtureRequest, fake: FakeController, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give ``call(method, *args, **kwargs)`` over either client, which waits for nothing between two attempts."""
    monkeypatch.setattr("ytk_core.artifacts._BACKOFF", tenacity.wait_none())
    if request.param == "aio":
        async with aio_channel(fake.address) as channel:
            each = ArtifactClient(channel)
            yield lambda method, *args, **kwargs: getattr(each, method)(*args, **kwargs)
    else:
        with sync_channel(fake.address) as blocking:
            other = SyncArtifactClient(blocking, sleep=lambda _seconds: None)
            yield lambda method, *args, **kwargs: asyncio.to_thread(getattr(other, method), *args, **kwargs)


def files(tmp_path: Path, **contents: bytes) -> dict[str, Path]:
    paths = {}
    for name, data in contents.items():
        paths[name] = tmp_path / name
        paths[name].write_bytes(data)
    return paths


async def test_only_what_is_missing_is_sent(client: Call, fake: FakeController, tmp_path: Path) -> None:
    there, new = os.urandom(MIB), os.urandom(2 * MIB + 1)
    fake.store("there", there)
    steps: list[tuple[int, int]] = []
    blobs = await client(
        "ensure",
        files(tmp_path, there=there, new=new, empty=b""),
        progress=lambda done, total: steps.append((done, total)),
    )
    assert [blob.name for blob in blobs] == ["there", "new", "empty"]
    assert [blob.size_bytes for blob in blobs] == [MIB, 2 * MIB + 1, 0]
    assert all(fake.blobs[blob.digest] is not None for blob in blobs)
    assert fake.received_bytes == len(new)
    assert steps[-1] == (len(new), len(new))
    assert [done for done, _total in steps] == sorted(done for done, _total in steps)
    calls = len(fake.calls)
    assert await client("ensure", {"again": tmp_path / "new"}) != []
    assert fake.calls[calls:] == ["FindMissing"]


async def test_a_cut_upload_resumes(client: Call, fake: FakeController, tmp_path: Path) -> None:
    data = os.urandom(10 * MIB)
    fake.cut_upload_after = 7 * MIB
    (blob,) = await client("ensure", files(tmp_path, big=data))
    assert fake.blobs[blob.digest] == data
    assert fake.received_bytes <= len(data) + MIB


async def test_a_part_of_an_earlier_process_is_continued(client: Call, fake: FakeController, tmp_path: Path) -> None:
    data = os.urandom(5 * MIB)
    fake.parts[digest_bytes(data)] = bytearray(data[: 3 * MIB])
    await client("ensure", files(tmp_path, big=data))
    assert fake.received_bytes == 2 * MIB


async def test_a_cut_download_resumes(client: Call, fake: FakeController, tmp_path: Path) -> None:
    data = os.urandom(10 * MIB + 5)
    digest = fake.store("big", data).digest
    fake.cut_download_after = 7 * MIB
    steps: list[tuple[int, int]] = []
    await client("download", digest, tmp_path / "out", progress=lambda *step: steps.append(step))
    assert (tmp_path / "out").read_bytes() == data
    assert steps[-1] == (len(data), len(data))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


async def test_many_vain_attempts_end(client: Call, fake: FakeController, tmp_path: Path) -> None:
    fake.fail("FindMissing", BoardError("away", code="unavailable"), times=6)
    with pytest.raises(YtkError) as caught:
        await client("ensure", files(tmp_path, a=b"a"))
    assert caught.value.code == "unavailable"


async def test_a_lost_answer_to_the_last_chunk(client: Call, fake: FakeController, tmp_path: Path) -> None:
    fake.lose("WriteArtifact")
    (blob,) = await client("ensure", files(tmp_path, a=b"abc"))
    assert fake.blobs[blob.digest] == b"abc"
    assert fake.received_bytes == 3


async def test_a_full_store_is_not_asked_again(client: Call, fake: FakeController, tmp_path: Path) -> None:
    fake.fail("WriteArtifact", BoardError("no room", code="disk_full"))
    with pytest.raises(YtkError) as caught:
        await client("ensure", files(tmp_path, a=b"a"))
    assert caught.value.code == "disk_full"
    assert fake.calls.count("WriteArtifact") == 1


async def test_wrong_bytes_never_become_the_file(client: Call, fake: FakeController, tmp_path: Path) -> None:
    digest = fake.store("a", b"right").digest
    fake.blobs[digest] = b"wrong"
    dest = tmp_path / "out"
    dest.write_bytes(b"before")
    with pytest.raises(BoardError) as caught:
        await client("download", digest, dest)
    assert caught.value.code == "digest_mismatch"
    assert dest.read_bytes() == b"before"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


async def test_what_is_not_there(client: Call, fake: FakeController, tmp_path: Path) -> None:
    with pytest.raises(YtkError) as caught:
        await client("download", digest_bytes(b"nothing"), tmp_path / "out")
    assert caught.value.code == "not_found"
    with pytest.raises(UserError) as bad:
        await client("download", "md5:0", tmp_path / "out")
    assert bad.value.code == "bad_digest"
    with pytest.raises(UserError) as unreadable:
        await client("ensure", {"a": tmp_path / "none"})
    assert unreadable.value.code == "unreadable"
    with pytest.raises(UserError) as unwritable:
        await client("download", fake.store("a", b"a").digest, tmp_path / "no" / "out")
    assert unwritable.value.code == "unwritable"
    assert list(tmp_path.iterdir()) == []


async def test_a_full_disk_here(client: Call, fake: FakeController, tmp_path: Path) -> None:
    import resource
    import signal

    digest = fake.store("a", os.urandom(3 * MIB)).digest
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, before[1]))  # writes fail as on a full disk
    try:
        with pytest.raises(BoardError) as caught:
            await client("download", digest, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert caught.value.code == "disk_full"
    assert str(tmp_path / "out") in caught.value.message
    assert list(tmp_path.iterdir()) == []
