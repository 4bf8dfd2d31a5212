"""Tokens, log files, part files, exit codes, the table of rights, cache keys."""

from __future__ import annotations

import hashlib
import os
import platform
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ytk_controller.artifacts.blobs import LocalBlobs, ObjectBlobs, open_blobs
from ytk_controller.artifacts.parts import DigestMismatchError, Part, Parts
from ytk_controller.exit_codes import HELP, ControllerExit, exit_code_of
from ytk_controller.interceptors.auth import SCOPES_OF
from ytk_controller.jobs.model import cache_key
from ytk_controller.live import logs as logs_module
from ytk_controller.live.logs import JobLogs
from ytk_controller.server import StateDirError, make_state_dir
from ytk_controller.store.base import TokenRecord
from ytk_controller.tokens import Tokens, hash_token, read_token_file
from ytk_core.digests import digest_bytes
from ytk_core.errors import BoardError, ToolkitError, UserError
from ytk_core.jobs import JobKind, JobSpec, NamedBlob
from ytk_core.rpc_errors import OffsetError

# ---- tokens ----------------------------------------------------------------------------------------------------------


def test_a_token_file_is_read_and_only_its_hash_kept(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("a-long-random-token\n")
    record = read_token_file(f"client:alice:{file}")
    assert record == TokenRecord(
        name="alice", scope="client", sha256=hashlib.sha256(b"a-long-random-token").hexdigest()
    )


@pytest.mark.parametrize("text", ["", "client", "client:alice", "client::f", "root:alice:f", "client:alice:"])
def test_a_malformed_token_option_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="not a bootstrap token") as caught:
        read_token_file(text)
    assert "SCOPE:NAME:FILE" in caught.value.hint
    assert exit_code_of(caught.value) is ControllerExit.TOKEN


@pytest.mark.parametrize("content", [None, b"", b"short", b"\xff\xfe" * 20])
def test_a_token_file_that_is_no_secret_is_refused(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UserError, match="key") as caught:
        read_token_file(f"agent:a:{file}")
    assert exit_code_of(caught.value) is ControllerExit.TOKEN


def test_tokens_are_found_until_they_expire() -> None:
    now = [100.0]
    records = [
        TokenRecord(name="a", scope="client", sha256=hash_token("one")),
        TokenRecord(name="b", scope="agent", sha256=hash_token("two"), expires_at=200.0),
    ]
    tokens = Tokens(records, lambda: now[0])
    assert tokens.find("one") == records[0]
    assert tokens.find("two") == records[1]
    assert tokens.find("three") is None
    assert tokens.find("") is None
    now[0] = 200.0
    assert tokens.find("two") is None


def test_every_rpc_has_its_rights() -> None:
    from ytk_proto.v1 import agents_pb2, artifacts_pb2, fleet_pb2, jobs_pb2

    rpcs = {
        f"{service.name}/{method.name}"
        for module in (agents_pb2, artifacts_pb2, fleet_pb2, jobs_pb2)
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert rpcs == set(SCOPES_OF)


def test_every_exit_code_has_help() -> None:
    assert set(HELP) == set(ControllerExit)
    assert exit_code_of(BoardError("x")) is ControllerExit.BOARDS
    assert exit_code_of(ToolkitError("x")) is ControllerExit.OURS


# ---- cache keys ------------------------------------------------------------------------------------------------------

SPEC = JobSpec(
    kind=JobKind.ENGINE_BUILD,
    arch_spec="amd64-cpuv3-linux-glibc236-ov20264",
    inputs=(NamedBlob(name="onnx", digest="d1", size_bytes=1), NamedBlob(name="npz", digest="d2", size_bytes=2)),
    params={"a": 1, "b": {"c": 2, "d": 3}},
    requirements=("x", "y"),
)


def with_(**changes) -> JobSpec:
    import msgspec

    return msgspec.structs.replace(SPEC, **changes)


@pytest.mark.parametrize(
    "same",
    [
        with_(inputs=SPEC.inputs[::-1]),
        with_(params={"b": {"d": 3, "c": 2}, "a": 1}),
        with_(requirements=("y", "x", "x")),
        with_(priority=9),
        with_(wall_limit_s=1.0),
        with_(no_cache=True),
    ],
)
def test_what_does_not_decide_the_result_does_not_change_the_key(same: JobSpec) -> None:
    assert cache_key(same, "1") == cache_key(SPEC, "1")


@pytest.mark.parametrize(
    "other",
    [
        with_(kind=JobKind.ENGINE_PROFILE),
        with_(arch_spec="amd64-cpuv4-linux-glibc236-ov20264"),
        with_(inputs=SPEC.inputs[:1]),
        with_(
            inputs=(NamedBlob(name="onnx", digest="d2", size_bytes=1), NamedBlob(name="npz", digest="d1", size_bytes=2))
        ),
        with_(params={"a": 1}),
        with_(requirements=("x",)),
        with_(measuring=True),
        with_(schema_version=2),
    ],
)
def test_what_decides_the_result_changes_the_key(other: JobSpec) -> None:
    assert cache_key(other, "1") != cache_key(SPEC, "1")
    assert cache_key(SPEC, "2") != cache_key(SPEC, "1")


# ---- log files -------------------------------------------------------------------------------------------------------


def test_a_log_joins_the_attempts_in_order(tmp_path: Path) -> None:
    logs = JobLogs(tmp_path)
    assert logs.read("job-1", 0) == b""
    assert logs.append("job-1", 1, 0, b"first\n") == 6
    assert logs.append("job-1", 2, 0, b"second\n") == 7
    assert logs.append("job-1", 10, 0, b"tenth\n") == 6
    text, offset = b"", 0
    while data := logs.read("job-1", offset):
        text, offset = text + data, offset + len(data)
    assert text == b"first\nsecond\ntenth\n"
    assert logs.read("job-1", 8) == b"cond\n"
    assert logs.read("job-1", 99) == b""


def test_a_repeated_chunk_is_dropped_and_a_gap_refused(tmp_path: Path) -> None:
    logs = JobLogs(tmp_path)
    logs.append("j", 1, 0, b"abc")
    assert logs.append("j", 1, 0, b"abc") == 3
    assert logs.append("j", 1, 1, b"bcde") == 5
    assert logs.append("j", 1, 0, b"ab") == 5
    with pytest.raises(OffsetError) as caught:
        logs.append("j", 1, 6, b"x")
    assert (caught.value.code, caught.value.offset) == ("log_gap", 5)
    assert logs.read("j", 0) == b"abcde"


def test_a_log_has_a_limit(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(logs_module, "MAX_ATTEMPT_BYTES", 4)
    logs = JobLogs(tmp_path)
    logs.append("j", 1, 0, b"abcd")
    assert logs.append("j", 1, 0, b"abcd") == 4
    with pytest.raises(UserError, match="beyond 4 bytes"):
        logs.append("j", 1, 4, b"e")


@pytest.mark.parametrize("job_id", ["", "..", "a/b", "/etc"])
def test_a_log_stays_in_its_directory(tmp_path: Path, job_id: str) -> None:
    with pytest.raises(ToolkitError):
        JobLogs(tmp_path).append(job_id, 1, 0, b"x")


# ---- parts and blobs -------------------------------------------------------------------------------------------------

DATA = b"0123456789" * 10
DIGEST = digest_bytes(DATA)


def part(parts: Parts, offset: int = 0, size: int = len(DATA)) -> Part:
    return Part(parts.path(DIGEST), DIGEST, size, offset)


def test_a_part_goes_on_where_it_stood(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    with part(parts) as one:
        one.append([DATA[:30], DATA[30:50]])
        assert not one.finish()
    assert parts.committed(DIGEST) == 50
    with pytest.raises(OffsetError) as caught:
        part(Parts(tmp_path), 49)
    assert caught.value.offset == 50
    with part(Parts(tmp_path), 50) as two:
        two.append([DATA[50:]])
        assert two.finish()
    assert parts.path(DIGEST).read_bytes() == DATA


def test_wrong_bytes_and_too_many_drop_the_part(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    with part(parts) as one:
        one.append([DATA[:-1] + b"x"])
        with pytest.raises(DigestMismatchError):
            one.finish()
    assert parts.committed(DIGEST) == 0
    with part(parts) as one, pytest.raises(DigestMismatchError, match="more than the announced"):
        one.append([DATA, b"x"])
    assert parts.committed(DIGEST) == 0


def test_a_part_damaged_on_disk_is_noticed(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    parts.path(DIGEST).write_bytes(b"x" + DATA[1:50])
    with part(parts, 50) as one:
        one.append([DATA[50:]])
        with pytest.raises(DigestMismatchError):
            one.finish()


def test_a_full_disk_is_said_and_the_part_stays(tmp_path: Path, monkeypatch) -> None:
    parts = Parts(tmp_path)
    with part(parts) as one:
        one.append([DATA[:10]])

        def full(*_args):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "pwrite", full)
        with pytest.raises(BoardError) as caught:
            one.append([DATA[10:]])
    assert caught.value.code == "disk_full"
    assert parts.committed(DIGEST) == 10


def test_parts_that_nobody_continued_are_removed(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    old, new = parts.path(DIGEST), parts.path(digest_bytes(b"x"))
    for path in (old, new):
        path.write_bytes(b"x")
    os.utime(old, (0, 0))
    Parts(tmp_path)
    assert (old.exists(), new.exists()) == (False, True)


@pytest.fixture(params=["local", "object"])
def blobs(request, tmp_path: Path):
    if request.param == "local":
        return LocalBlobs(tmp_path / "blobs")
    from obstore.store import MemoryStore

    return ObjectBlobs(MemoryStore())


async def test_a_part_becomes_a_blob_once(blobs, tmp_path: Path) -> None:
    assert await blobs.size(DIGEST) is None
    for _ in range(2):
        file = tmp_path / "part"
        file.write_bytes(DATA)
        await blobs.adopt(file, DIGEST)
        assert not file.exists()
        assert await blobs.size(DIGEST) == len(DATA)
    for offset in (0, 1, 99, 100):
        assert b"".join([chunk async for chunk in blobs.read(DIGEST, offset, len(DATA))]) == DATA[offset:]


async def test_an_existing_blob_is_not_replaced(tmp_path: Path) -> None:
    blobs = LocalBlobs(tmp_path / "blobs")
    inodes = []
    for _ in range(2):
        file = tmp_path / "part"
        file.write_bytes(DATA)
        await blobs.adopt(file, DIGEST)
        inodes.append(blobs._path(DIGEST).stat().st_ino)
    assert inodes[0] == inodes[1]
    assert stat.S_IMODE(blobs._path(DIGEST).stat().st_mode) == 0o400


async def test_a_blob_larger_than_a_read_comes_in_chunks(blobs, tmp_path: Path) -> None:
    data = os.urandom((9 << 20) + 5)
    digest = digest_bytes(data)
    file = tmp_path / "part"
    file.write_bytes(data)
    await blobs.adopt(file, digest)
    chunks = [chunk async for chunk in blobs.read(digest, 3, len(data))]
    assert max(map(len, chunks)) == 1 << 20
    assert b"".join(chunks) == data[3:]


def test_artifact_urls(tmp_path: Path) -> None:
    assert isinstance(open_blobs("", tmp_path / "a"), LocalBlobs)
    assert isinstance(open_blobs(f"file://{tmp_path}/b", tmp_path), LocalBlobs)
    assert isinstance(open_blobs("s3://bucket/prefix", tmp_path), ObjectBlobs)
    with pytest.raises(UserError, match="nonsense://"):
        open_blobs("nonsense://x", tmp_path)


# ---- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
def test_the_allocator_takes_every_setting() -> None:
    # A process of its own: the settings last for a process's life.
    code = "import sys; from ytk_controller.allocator import keep_freed_memory; sys.exit(not keep_freed_memory())"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


# ---- state directory -------------------------------------------------------------------------------------------------


def test_the_state_directory_is_closed_to_others(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    make_state_dir(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    path.chmod(0o755)
    make_state_dir(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    (tmp_path / "file").touch()
    with pytest.raises(StateDirError, match="file"):
        make_state_dir(tmp_path / "file")
