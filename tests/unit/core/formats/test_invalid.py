"""Every file of the invalid corpus is refused with a FormatError that names the file and the place."""

import shutil

import pytest
from golden import builders, invalid

from ytk_core.errors import FormatError
from ytk_core.formats import codec
from ytk_core.formats.engine_bundle import Limits, extract_engine_bundle, read_json_member, read_manifest
from ytk_core.formats.kernel_bundle import read_bundle
from ytk_core.formats.plugin_manifest import read_plugin_manifest
from ytk_core.formats.plugin_meta_checks import load_meta
from ytk_core.formats.prepare_outputs import read_candidates, read_fx_nodes, read_plugins
from ytk_core.formats.reference import read_reference
from ytk_core.formats.region import decode_region_spec
from ytk_core.formats.verify_report import read_verify_report
from ytk_core.formats.weights_npz import read_array, read_arrays, read_index
from ytk_core.jobs import JobSpec

CASES = invalid.all_cases()
READERS = {
    "Fold.so.manifest.json": read_plugin_manifest,
    "ytk_region.json": lambda path: decode_region_spec(path.read_bytes(), str(path)),
    "plugins.json": read_plugins,
    "candidates.json": read_candidates,
    "fx_nodes.json": read_fx_nodes,
    "verify.json": read_verify_report,
    "job_spec.json": lambda path: codec.decode(
        path.read_bytes(), JobSpec, str(path), schema_version=1, what="job spec"
    ),
    "plugin_meta/depthwise-f32-f16-khwc8.yaml": lambda path: load_meta(path.read_text(encoding="utf-8"), str(path)),
    "Fold.module_source.py.txt": read_bundle,
    "model.npz": read_index,
    "model.reference.npz": read_reference,
    "engine.tgz": lambda path: extract_engine_bundle(path, path.parent / "out"),
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_refused(case, tmp_path):
    path = tmp_path / "given" / case.file.replace("/", "-")
    path.parent.mkdir()
    path.write_bytes(case.data)
    with pytest.raises(FormatError) as caught:
        READERS[case.file](path)
    assert str(path) in caught.value.message
    assert case.place in caught.value.message
    assert caught.value.hint
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("file", READERS)
def test_the_reader_accepts_the_golden_file_itself(file, tmp_path):
    path = tmp_path / "golden"
    shutil.copy(builders.HERE / file, path)
    READERS[file](path)


@pytest.mark.parametrize(
    "file", [f for f in READERS if f not in {"ytk_region.json", "job_spec.json"} and not f.startswith("plugin_meta")]
)
def test_a_missing_file_and_a_directory(file, tmp_path):
    with pytest.raises(FormatError, match="no such file") as caught:
        READERS[file](tmp_path / "nowhere")
    assert caught.value.code == "no_such_file"
    (tmp_path / "directory").mkdir()
    with pytest.raises(FormatError, match="directory"):
        READERS[file](tmp_path / "directory")


def test_corrupted_weights_are_noticed_where_they_are_read(tmp_path):
    data = bytearray((builders.HERE / "model.npz").read_bytes())
    data[read_index(builders.HERE / "model.npz")["stem.weight"].span.offset] ^= 1
    path = tmp_path / "model.npz"
    path.write_bytes(data)
    for read in (read_arrays, lambda p: read_array(p, "stem.weight")):
        with pytest.raises(FormatError, match="CRC"):
            read(path)
    with pytest.raises(FormatError, match=r"no array 'nothing'; there are: stem\.weight"):
        read_array(builders.HERE / "model.npz", "nothing")


LIMITS = [
    (Limits(max_files=3), "more than 3 members"),
    (Limits(max_bytes=4000), "more than 4000"),
    (Limits(max_ratio=0.5, ratio_from_bytes=1), "times its size"),
]


@pytest.mark.parametrize(("limits", "message"), LIMITS)
def test_limits_are_enforced(limits, message, tmp_path):
    with pytest.raises(FormatError, match=message):
        extract_engine_bundle(builders.HERE / "engine.tgz", tmp_path / "out", limits)
    assert not list(tmp_path.iterdir())


def test_partial_readers_refuse_too(tmp_path):
    by_name = {case.name: case for case in CASES if case.file == "engine.tgz"}
    path = tmp_path / "engine.tgz"
    for name in ("empty", "not gzip", "no manifest", "manifest not JSON", "newer schema", "plugin listed twice"):
        path.write_bytes(by_name[name].data)
        with pytest.raises(FormatError):
            read_manifest(path)
    path.write_bytes((builders.HERE / "engine.tgz").read_bytes())
    with pytest.raises(FormatError, match=r"no member 'nothing\.json'"):
        read_json_member(path, "nothing.json")
    with pytest.raises(FormatError, match=r"build\.log: not JSON"):
        read_json_member(path, "build.log")
