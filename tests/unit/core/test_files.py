"""Atomic writes: whole or not at all."""

import errno
import os
import stat

import pytest

from ytk_core import files
from ytk_core.errors import BoardError, UserError
from ytk_core.files import atomic_dir, atomic_write


def _left(directory):
    return sorted(path.name for path in directory.iterdir())


def test_a_new_file_and_a_replaced_one(tmp_path):
    for content in (b"one", b"two, longer", b""):
        with atomic_write(tmp_path / "f") as stream:
            stream.write(content)
            assert _left(tmp_path) != ["f"] or content == b""
        assert (tmp_path / "f").read_bytes() == content
    with atomic_write(tmp_path / "t", "w") as stream:
        stream.write("größe\r\n")
    assert (tmp_path / "t").read_bytes() == "größe\r\n".encode()
    assert _left(tmp_path) == ["f", "t"]


def test_the_old_content_stays_until_the_end(tmp_path):
    (tmp_path / "f").write_bytes(b"old")
    with atomic_write(tmp_path / "f") as stream:
        stream.write(b"new")
        stream.flush()
        assert (tmp_path / "f").read_bytes() == b"old"
    assert (tmp_path / "f").read_bytes() == b"new"


@pytest.mark.parametrize("error", [RuntimeError("x"), KeyboardInterrupt(), OSError(errno.EIO, "io")])
def test_a_failure_leaves_nothing(error, tmp_path):
    (tmp_path / "f").write_bytes(b"old")

    def write():
        with atomic_write(tmp_path / "f") as stream:
            stream.write(b"new")
            raise error

    with pytest.raises(type(error)):
        write()
    assert (tmp_path / "f").read_bytes() == b"old"
    assert _left(tmp_path) == ["f"]


def test_permissions_follow_the_umask(tmp_path):
    old = os.umask(0o027)
    try:
        with atomic_write(tmp_path / "public"):
            pass
        with atomic_write(tmp_path / "secret", permissions=0o600):
            pass
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "public").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600


def test_a_link_is_followed(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real/f").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real/f")
    with atomic_write(tmp_path / "link") as stream:
        stream.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real/f").read_bytes() == b"new"


def test_a_device_or_pipe_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/null"):
        with pytest.raises(UserError, match="not a regular file"), atomic_write(path):
            pass
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_impossible_destinations(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "f").write_bytes(b"")
    for path, word in (("d", "a directory"), ("none/f", "does not exist"), ("f/x", "a part of the path is a file")):
        with pytest.raises(UserError, match=word), atomic_write(tmp_path / path):
            pass


def test_long_names(tmp_path):
    name = "n" * 255
    with atomic_write(tmp_path / name) as stream:
        stream.write(b"x")
    assert _left(tmp_path) == [name]


@pytest.mark.parametrize(
    ("number", "word"), [(errno.ENOSPC, "no space"), (errno.EDQUOT, "quota"), (errno.EFBIG, "larger")]
)
def test_a_full_disk_has_its_own_code(number, word, tmp_path, monkeypatch):
    def full(_fd):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(BoardError, match=word) as caught, atomic_write(tmp_path / "f") as stream:
        stream.write(b"x")
    assert (caught.value.code, str(tmp_path) in caught.value.hint) == ("disk_full", True)
    with pytest.raises(BoardError, match=word), atomic_dir(tmp_path / "d"):
        full(0)
    assert _left(tmp_path) == []


def test_a_directory_appears_whole(tmp_path):
    with atomic_dir(tmp_path / "d") as directory:
        (directory / "f").write_text("1")
        assert not (tmp_path / "d").exists()
    with atomic_dir(tmp_path / "d") as directory:
        (directory / "g").write_text("2")
        assert _left(tmp_path / "d") == ["f"]
    assert _left(tmp_path) == ["d"]
    assert _left(tmp_path / "d") == ["g"]


def test_a_failed_directory_leaves_the_old_one(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").write_text("1")

    def write():
        with atomic_dir(tmp_path / "d") as directory:
            (directory / "g").write_text("2")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write()
    assert _left(tmp_path / "d") == ["f"]
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("d")
    for name in ("file", "link", "none/d"):
        with pytest.raises(UserError), atomic_dir(tmp_path / name):
            pass
    assert _left(tmp_path) == ["d", "file", "link"]
