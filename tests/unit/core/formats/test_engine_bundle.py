"""Engine bundles: deterministic, in reading order, round trip with any content, nothing left on failure."""

import gzip
import tarfile

import pytest
from golden import builders
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ytk_core.errors import FormatError, UserError
from ytk_core.formats import engine_bundle
from ytk_core.formats.engine_bundle import (
    EngineManifest,
    extract_engine_bundle,
    member_path,
    read_manifest,
    write_engine_bundle,
)

PART = st.text(st.sampled_from("abAB01._-é ü"), min_size=1, max_size=12).filter(lambda p: p not in {".", ".."})
NAMES = st.lists(PART, min_size=1, max_size=3).map("/".join).filter(lambda name: name != "manifest.json")


def _bare() -> EngineManifest:
    return EngineManifest(
        arch_spec=str(builders.ARCH),
        engine_name="openvino",
        engine_version="2026.4.1",
        precision="fp32",
        onnx_digest="blake3:" + "0" * 64,
        npz_digest=None,
    )


def _no_prefix(names) -> bool:
    return not any(a != b and b.startswith(a + "/") for a in names for b in names)


@given(st.dictionaries(NAMES, st.binary(max_size=3000), max_size=6).filter(_no_prefix))
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_round_trip_and_determinism(tmp_path_factory, contents):
    directory = tmp_path_factory.mktemp("bundle")
    files = {}
    for index, (name, content) in enumerate(contents.items()):
        files[name] = directory / f"{index}.bin"
        files[name].write_bytes(content)
    manifest = write_engine_bundle(directory / "a.tgz", _bare(), files)
    write_engine_bundle(directory / "b.tgz", _bare(), dict(reversed(files.items())))
    assert (directory / "a.tgz").read_bytes() == (directory / "b.tgz").read_bytes()
    assert (
        extract_engine_bundle(directory / "a.tgz", directory / "out") == manifest == read_manifest(directory / "a.tgz")
    )
    found = {
        str(f.relative_to(directory / "out")): f.read_bytes() for f in (directory / "out").rglob("*") if f.is_file()
    }
    del found["manifest.json"]
    assert found == contents


def test_order_modes_and_compression(tmp_path):
    builders.write_bundle(tmp_path / "e.tgz")
    raw = (tmp_path / "e.tgz").read_bytes()
    assert raw[4:8] == bytes(4)  # no time in the gzip header
    assert len(raw) > len(gzip.decompress(raw))  # level 0: stored
    with tarfile.open(tmp_path / "e.tgz") as archive:
        names = archive.getnames()
        assert {(m.mtime, m.uid, m.gid, m.uname, m.mode) for m in archive} == {(0, 0, 0, "", 0o644)}
    assert names == [
        "manifest.json",
        "profile.json",
        "layers.json",
        "benchmark.json",
        "build.log",
        "plugins/Fold.so",
        "engine/model.blob",
    ]


def test_the_manifest_is_read_without_the_rest(tmp_path):
    builders.write_bundle(tmp_path / "e.tgz")
    raw = (tmp_path / "e.tgz").read_bytes()
    (tmp_path / "cut.tgz").write_bytes(raw[: len(raw) * 2 // 3])
    assert read_manifest(tmp_path / "cut.tgz") == read_manifest(tmp_path / "e.tgz")
    with pytest.raises(FormatError):
        extract_engine_bundle(tmp_path / "cut.tgz", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["manifest.json", "/abs", "../up", "a/../b", "a\\b", "", "a//b", "./a", "x" * 600])
def test_a_member_name_that_would_be_refused_is_not_written(name, tmp_path):
    (tmp_path / "f").write_bytes(b"x")
    with pytest.raises(UserError, match="bundle member"):
        write_engine_bundle(tmp_path / "e.tgz", _bare(), {name: tmp_path / "f"})
    assert not (tmp_path / "e.tgz").exists()


def test_a_plugin_must_be_in_the_files(tmp_path):
    (tmp_path / "f").write_bytes(b"x")
    with pytest.raises(FormatError, match="yasp::Fold"):
        write_engine_bundle(tmp_path / "e.tgz", builders.engine_manifest(), {"plugins/Fold.so": tmp_path / "f"})
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_extraction_does_not_touch_a_directory_with_content(tmp_path):
    builders.write_bundle(tmp_path / "e.tgz")
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("keep")
    with pytest.raises(UserError, match="not empty"):
        extract_engine_bundle(tmp_path / "e.tgz", out)
    assert (out / "mine").read_text() == "keep"
    (out / "mine").unlink()
    extract_engine_bundle(tmp_path / "e.tgz", out)
    assert (out / "manifest.json").exists()


def test_not_enough_room_is_said_before_anything_is_written(tmp_path, monkeypatch):
    from ytk_core.errors import BoardError

    builders.write_bundle(tmp_path / "e.tgz")
    usage = type("Usage", (), {"free": 100})
    monkeypatch.setattr(engine_bundle.shutil, "disk_usage", lambda _path: usage)
    with pytest.raises(BoardError) as caught:
        extract_engine_bundle(tmp_path / "e.tgz", tmp_path / "out")
    assert caught.value.code == "disk_full"
    assert not (tmp_path / "out").exists()


@given(st.text(max_size=40))
def test_accepted_names_stay_below_the_destination(name):
    if member_path(name) is None:
        from pathlib import Path

        assert Path("/dest").joinpath(name).is_relative_to("/dest")
        assert ".." not in Path(name).parts
