"""All outputs appear together or none does."""

import errno
from pathlib import Path

import pytest

from ytk_client.frontend import artifacts
from ytk_client.frontend.artifacts import OutputPaths, Staging, disk_errors
from ytk_core.errors import BoardError, UserError


def test_nothing_appears_before_the_commit(tmp_path):
    target = tmp_path / "deep" / "model.onnx"
    with Staging() as staging:
        staging.path_for(target).write_text("new")
        assert not target.exists()
        assert staging.commit() == [target]
    assert target.read_text() == "new"
    assert [path.name for path in target.parent.iterdir()] == ["model.onnx"]


def test_a_failure_leaves_neither_files_nor_directories(tmp_path):
    kept = tmp_path / "there" / "old.txt"
    kept.parent.mkdir()
    kept.write_text("old")

    def fail() -> None:
        with Staging() as staging:
            staging.path_for(tmp_path / "a" / "b" / "model.onnx").write_text("new")
            staging.path_for(kept).write_text("new")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert kept.read_text() == "old"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["old.txt", "there"]


def test_stale_files_go_at_the_commit_but_not_what_was_written_anew(tmp_path):
    stale, fresh = tmp_path / "stale", tmp_path / "fresh"
    stale.write_text("old")
    fresh.write_text("old")
    with Staging() as staging:
        staging.path_for(fresh).write_text("new")
        staging.commit([stale, fresh])
    assert not stale.exists()
    assert fresh.read_text() == "new"


def test_a_directory_in_the_place_of_an_output(tmp_path):
    (tmp_path / "model.onnx").mkdir()
    with pytest.raises(UserError, match="is a directory"), Staging() as staging:
        staging.path_for(tmp_path / "model.onnx")


def test_an_unwritable_place(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError) as caught, Staging() as staging:
        staging.path_for(tmp_path / "file" / "model.onnx")
    assert caught.value.code == "bad_output_path"


@pytest.mark.parametrize(
    "raised", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("unexpected pos 64 vs 0")]
)
def test_disk_full(tmp_path, monkeypatch, raised):
    """torch's zip writer reports a full disk as a RuntimeError of its own."""
    paths = OutputPaths(tmp_path / "m.onnx", tmp_path / "m.npz", tmp_path / "r.npz")
    monkeypatch.setattr(artifacts.shutil, "disk_usage", lambda _path: type("Usage", (), {"free": 0})())
    with pytest.raises(BoardError) as caught, disk_errors(paths):
        raise raised
    assert caught.value.code == "disk_full"
    assert str(tmp_path) in caught.value.message


def test_other_errors_pass(tmp_path):
    paths = OutputPaths(tmp_path / "m.onnx", tmp_path / "m.npz", tmp_path / "r.npz")
    with pytest.raises(PermissionError), disk_errors(paths):
        raise PermissionError(errno.EACCES, "no")
    with pytest.raises(RuntimeError, match="ours"), disk_errors(paths):
        raise RuntimeError("ours")


def test_disk_full_while_preparing(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    from ytk_client.frontend import PrepareRequest, prepare, weights

    def full(*_args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(weights, "write_weights", full)
    model = Path(__file__).parents[3] / "examples" / "fold" / "model.py"
    out = tmp_path / "out"
    request = PrepareRequest(model=model, onnx_out=out / "m.onnx", npz_out=out / "m.npz", reference_out=out / "r.npz")
    with pytest.raises(BoardError) as caught:
        prepare(request)
    assert caught.value.code == "disk_full"
    assert list(tmp_path.iterdir()) == []
