"""Golden files: written anew they have the same bytes, read back they have the same values."""

import numpy as np
import pytest
from golden import builders, metas

from ytk_core.formats import codec
from ytk_core.formats.engine_bundle import extract_engine_bundle, read_json_member, read_manifest
from ytk_core.formats.kernel_bundle import parse_bundle, read_bundle
from ytk_core.formats.plugin_manifest import read_plugin_manifest
from ytk_core.formats.plugin_meta_checks import load_meta, meta_digest
from ytk_core.formats.prepare_outputs import read_candidates, read_fx_nodes, read_plugins
from ytk_core.formats.reference import read_reference
from ytk_core.formats.region import decode_region_spec
from ytk_core.formats.verify_report import read_verify_report
from ytk_core.formats.weights_npz import read_arrays, read_index
from ytk_core.jobs import Failure, JobResult, JobSpec

HERE = builders.HERE


@pytest.mark.parametrize("name", builders.GOLDEN)
def test_written_anew_it_has_the_same_bytes(name, tmp_path):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    builders.GOLDEN[name](path)
    assert path.read_bytes() == (HERE / name).read_bytes()


def test_every_golden_file_is_in_the_table():
    files = {str(f.relative_to(HERE)) for f in HERE.rglob("*") if f.is_file() and f.suffix not in {".py", ".pyc"}}
    assert files == set(builders.GOLDEN)


@pytest.mark.parametrize(("name", "make"), metas.METAS.items())
def test_plugin_meta(name, make):
    text = (HERE / "plugin_meta" / f"{name}.yaml").read_text(encoding="utf-8")
    meta = load_meta(text, name)
    assert meta == make()
    assert meta_digest(meta) == meta_digest(make())


def test_meta_digest_ignores_layout_but_not_content():
    text = (HERE / "plugin_meta/fold-dynamic.yaml").read_text(encoding="utf-8")
    meta = load_meta("# a comment\n" + text.replace("atol: 1.0e-05", "atol: 1e-5"), "edited")
    assert meta_digest(meta) == meta_digest(metas.fold())
    assert meta_digest(load_meta(text.replace("sites: 1", "sites: 2"), "edited")) != meta_digest(meta)


def test_kernel_bundle():
    bundle = read_bundle(HERE / "Fold.module_source.py.txt")
    assert bundle == builders.kernel_bundle()
    # It is Python whose three names hold these strings.
    scope = {}
    exec((HERE / "Fold.module_source.py.txt").read_text(encoding="utf-8"), scope)
    assert (scope["HEADER"], scope["SOURCE"]) == (builders.HEADER, builders.SOURCE)
    assert parse_bundle(scope["SOURCE"] and (HERE / "Fold.module_source.py.txt").read_text(encoding="utf-8")) == bundle


def test_engine_bundle(tmp_path):
    path = HERE / "engine.tgz"
    manifest = read_manifest(path)
    assert [f.name for f in manifest.files][:4] == ["profile.json", "layers.json", "benchmark.json", "build.log"]
    assert manifest.conditions == builders.conditions()
    assert read_json_member(path, "profile.json")["layers"][0]["onnx_nodes"] == ["/head/fold"]
    assert extract_engine_bundle(path, tmp_path / "out") == manifest
    assert (tmp_path / "out/engine/model.blob").read_bytes() == b"\x00engine" * 100
    assert (tmp_path / "out/plugins/Fold.so").read_bytes() == b"\x7fELF fold"


def test_weights():
    arrays = builders.arrays()
    index = read_index(HERE / "model.npz")
    raw = (HERE / "model.npz").read_bytes()
    for name, array in arrays.items():
        span = index[name].span
        assert span.offset % 64 == 0
        assert raw[span.offset : span.offset + span.length] == array.tobytes()
        assert index[name].shape == array.shape
    for name, array in read_arrays(HERE / "model.npz").items():
        np.testing.assert_array_equal(array, arrays[name], strict=True)
    with np.load(HERE / "model.npz", allow_pickle=False) as archive:
        assert list(archive) == list(arrays)
        np.testing.assert_array_equal(archive["stem.weight"], arrays["stem.weight"])


def test_reference():
    want, got = builders.reference(), read_reference(HERE / "model.reference.npz")
    assert (got.inputs, got.outputs, got.torch_benchmark, got.info) == (
        want.inputs,
        want.outputs,
        want.torch_benchmark,
        want.info,
    )
    for got_sample, want_sample in zip(got.samples, want.samples, strict=True):
        for name in ("inputs", "outputs"):
            for key, array in getattr(want_sample, name).items():
                np.testing.assert_array_equal(getattr(got_sample, name)[key], array, strict=True)


def test_json_files():
    assert list(read_plugins(HERE / "plugins.json")) == builders.plugin_rows()
    assert list(read_candidates(HERE / "candidates.json")) == builders.candidates()
    assert list(read_fx_nodes(HERE / "fx_nodes.json")) == builders.fx_nodes()
    assert read_verify_report(HERE / "verify.json") == builders.verify_report()
    assert not read_verify_report(HERE / "verify.json").ok
    assert decode_region_spec((HERE / "ytk_region.json").read_bytes(), "golden") == builders.region()
    job = codec.decode((HERE / "job_spec.json").read_bytes(), JobSpec, "golden", schema_version=1, what="job spec")
    assert job == builders.job_spec()
    for name, make, kind in (
        ("job_result", builders.job_result, JobResult),
        ("job_failure", builders.job_failure, Failure),
    ):
        assert codec.convert(codec.parse_json((HERE / f"{name}.json").read_bytes(), name), kind, name) == make()
    manifest = read_plugin_manifest(HERE / "Fold.so.manifest.json")
    assert manifest.meta == metas.fold()
    assert not manifest.ok
