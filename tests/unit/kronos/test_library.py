"""Whole jobs in children, sandboxed where this machine can: what an agent runs, without an agent."""

from __future__ import annotations

import tarfile
from pathlib import Path

import msgspec
import numpy as np
import pytest
from onnx import helper

from ytk_core import sandbox
from ytk_core.agent.local import run_job_locally
from ytk_core.archspec import ArchSpec
from ytk_core.dtypes import DType
from ytk_core.errors import CandidateError, UserError
from ytk_core.formats.engine_bundle import read_json_member, read_manifest
from ytk_core.formats.reference import Reference, Sample, TensorInfo, write_reference
from ytk_core.formats.verify_report import read_verify_report
from ytk_core.input_ranges import InputRange
from ytk_core.jobs import EngineBuildParams, EngineProfileParams, EngineVerifyParams, JobKind, JobSpec
from ytk_kronos import checks, library
from ytk_kronos.engine_files import BenchmarkFile, LayersFile, ProfileFile
from ytk_kronos.handlers import VerifyHandler
from ytk_kronos.tasks import verify_outputs

from fakes.kronos_models import FLOAT, custom, save_with_npz
from fakes.kronos_plugins import delivered, same_meta, scale_meta

QUICK = EngineBuildParams(iterations=5, warmup=2, threads=1)
QUICK_VERIFY = EngineVerifyParams(iterations=3, warmup=1, threads=1)
WEIGHT = np.random.default_rng(3).standard_normal((4, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    directory = tmp_path_factory.mktemp("model")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="matmul"),
        custom("Scale", ["m"], ["s"], "scale", scale=2.0, shift=[1]),
        custom("Same", ["s"], ["t"], "same"),
        helper.make_node("Relu", ["t"], ["y"], name="relu"),
    ]
    paths = directory / "model.onnx", directory / "model.npz"
    save_with_npz(*paths, nodes, {"x": (FLOAT, ("N", 4))}, {"y": FLOAT}, {"w": WEIGHT})
    return paths


def expected(x: np.ndarray) -> np.ndarray:
    return np.maximum(x @ WEIGHT * 2 + 1, 0)


@pytest.fixture(scope="module")
def plugins(plugin, arch, tmp_path_factory) -> list[Path]:
    directory = tmp_path_factory.mktemp("delivered")
    return [
        delivered(plugin("scale").path, scale_meta(), directory, arch),
        delivered(plugin("identity").path, same_meta(), directory, arch),
    ]


@pytest.fixture(scope="module")
def bundle(model, plugins, host_cache, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("bundle") / "engine.tgz"
    library.build(*model, out, plugins=plugins, params=QUICK, cache_dir=host_cache, log=print)
    return out


def make_reference(path: Path, *, error: float = 0.0, samples: int = 3, output: str = "y") -> Path:
    rng = np.random.default_rng(5)
    taken = []
    for index in range(samples):
        x = rng.standard_normal((index + 1, 4)).astype(np.float32)
        y = expected(x)
        y[-1, -1] += error if index == samples - 1 else 0
        taken.append(Sample(inputs={"x": x}, outputs={output: y}))
    infos = (
        TensorInfo(name="x", dtype=DType.FLOAT32, shape=(None, 4)),
        TensorInfo(name=output, dtype=DType.FLOAT32, shape=(None, 4)),
    )
    write_reference(path, Reference(inputs=infos[:1], outputs=infos[1:], samples=tuple(taken)))
    return path


def test_a_bundle_says_what_really_built_it(bundle, model, plugins, arch):
    manifest = read_manifest(bundle)
    assert manifest.arch_spec == str(arch)
    assert (manifest.engine_name, manifest.engine_version) == ("openvino", checks.hostlib.openvino_version())
    assert manifest.precision == "fp32"
    assert [(entry.namespace, entry.name, entry.version) for entry in manifest.plugins] == [
        ("yasp", "Scale", "1"),
        ("yasp", "Same", "1"),
    ]
    assert manifest.plugins[0].digest == checks.digest_file(plugins[0])
    assert manifest.onnx_digest == checks.digest_file(model[0])
    assert manifest.npz_digest == checks.digest_file(model[1])
    assert manifest.flags == {"threads": 1}
    assert manifest.conditions is not None
    assert manifest.conditions.worker_id == "local"
    with tarfile.open(bundle) as archive:
        names = archive.getnames()
    assert names[:5] == ["manifest.json", "profile.json", "layers.json", "benchmark.json", "build.log"]
    assert names[-1] == "engine/model.blob"


def test_a_bundles_measurements_are_complete(bundle):
    layers = msgspec.convert(read_json_member(bundle, "layers.json"), LayersFile)
    assert {node.name for node in layers.plugin_nodes} == {"scale", "same"}
    assert {layer.plugin for layer in layers.layers} == {"", "yasp::Scale", "yasp::Same"}
    profile = msgspec.convert(read_json_member(bundle, "profile.json"), ProfileFile)
    flagged = {each.type: each.onnx_nodes for each in profile.layers if each.exec_type == "plugin"}
    assert flagged == {"yasp::Scale": ("scale",), "yasp::Same": ("same",)}
    assert {node for each in profile.layers for node in each.onnx_nodes} == {"matmul", "scale", "same", "relu"}
    assert not {each.type for each in profile.layers} & {"Input", "Output", "Const"}
    assert profile.gap_ms == pytest.approx(profile.end_to_end_ms - profile.layer_sum_ms)
    assert profile.end_to_end_ms > 0
    row = msgspec.convert(read_json_member(bundle, "benchmark.json"), BenchmarkFile).row
    assert row.iterations == 5
    counted = {use.placeholder: (use.nodes, use.calls, use.runs, use.ok, use.unusual) for use in profile.plugins}
    assert counted == dict.fromkeys(("yasp::Same", "yasp::Scale"), (1, 7, 7, True, False))
    assert 0 < row.min_ms <= row.mean_ms <= row.max_ms


def test_an_engine_is_measured_at_the_usual_extents_and_remembers_the_ranges(host_cache, tmp_path):
    save_with_npz(
        *(tmp_path / "m.onnx", tmp_path / "m.npz"),
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="matmul")],
        {"x": (FLOAT, ("N", 4))},
        {"y": FLOAT},
        {"w": WEIGHT},
    )
    ranges = (InputRange(input="x", axis=0, min=1, opt=3, max=9),)
    params = msgspec.structs.replace(QUICK, ranges=ranges)
    lines: list[str] = []
    out = tmp_path / "m.tgz"
    library.build(
        tmp_path / "m.onnx", tmp_path / "m.npz", out, plugins=(), params=params, cache_dir=host_cache, log=lines.append
    )
    assert "measured at the usual extents: x:0=3" in "".join(lines)
    assert msgspec.convert(read_json_member(out, "layers.json"), LayersFile).ranges == ranges


def test_the_engine_in_a_bundle_is_the_same_each_time(bundle, model, plugins, host_cache, tmp_path):
    again = tmp_path / "again.tgz"
    library.build(*model, again, plugins=plugins, params=QUICK, cache_dir=host_cache, log=print)

    def unmeasured(path: Path) -> dict[str, str]:
        measured = {"profile.json", "benchmark.json", "build.log"}
        return {entry.name: entry.digest for entry in read_manifest(path).files if entry.name not in measured}

    assert unmeasured(again) == unmeasured(bundle)
    assert "layers.json" in unmeasured(again)


def test_verify_accepts_right_outputs(bundle, host_cache, tmp_path):
    reference = make_reference(tmp_path / "r.npz")
    report = library.verify(
        reference, bundle, tmp_path / "v.json", params=QUICK_VERIFY, cache_dir=host_cache, log=print
    )
    assert report.ok
    assert [(each.name, each.sample) for each in report.outputs] == [("y", 0), ("y", 1), ("y", 2)]
    assert all(each.max_abs < 1e-5 for each in report.outputs)
    assert {use.placeholder: (use.nodes, use.layers) for use in report.plugins} == {
        "yasp::Scale": (1, 1),
        "yasp::Same": (1, 1),
    }
    assert report.benchmark is not None
    assert report.benchmark.iterations == 3
    assert report.bundle_digest == checks.digest_file(bundle)


async def test_a_jobs_summary_is_what_the_judge_saw(bundle, host_cache, tmp_path):
    files = {"engine.tgz": bundle, "reference.npz": make_reference(tmp_path / "r.npz", error=0.05)}
    (tmp_path / "work").mkdir()
    spec = JobSpec(kind=JobKind.ENGINE_VERIFY, params=msgspec.to_builtins(QUICK_VERIFY), measuring=True)
    handler = VerifyHandler(host_cache, "cpu:7", trust=library.CALLER)
    outcome = await run_job_locally(handler, spec, files, tmp_path / "work", log=print)
    summary = outcome.result.summary
    assert (summary["ok"], summary["outputs"], summary["failed"]) == (False, 3, 1)
    assert summary["benchmark"]["iterations"] == 3
    report = read_verify_report(outcome.outputs["verify.json"])
    assert report.conditions is not None
    assert report.conditions.device_uid == "cpu:7"
    assert report.conditions.stable == summary["stable"]


@pytest.mark.parametrize("name", ["run.json", "outputs.npz"])
def test_the_judge_follows_no_link_that_a_kernel_may_have_left(bundle, tmp_path, name):
    reference = make_reference(tmp_path / "r.npz")
    work = tmp_path / "work"
    (work / "out").mkdir(parents=True)
    for each in ("run.json", "outputs.npz"):
        (work / "out" / each).write_bytes(b"{}")
    (work / "out" / name).unlink()
    (work / "out" / name).symlink_to(reference)
    task = {"bundle": str(bundle), "reference": str(reference), "results": "out"}
    with pytest.raises(CandidateError, match="is a link out of the job's directory"):
        verify_outputs(task, work)


def test_verify_finds_one_wrong_element(bundle, host_cache, tmp_path):
    reference = make_reference(tmp_path / "r.npz", error=0.05)
    report = library.verify(
        reference, bundle, tmp_path / "v.json", params=QUICK_VERIFY, cache_dir=host_cache, log=print
    )
    assert [each.ok for each in report.outputs] == [True, True, False]
    assert report.outputs[2].max_abs == pytest.approx(0.05, rel=1e-3)
    loose = msgspec.structs.replace(QUICK_VERIFY, atol=0.1)
    report = library.verify(reference, bundle, tmp_path / "v.json", params=loose, cache_dir=host_cache, log=print)
    assert report.ok
    assert report.outputs[2].tolerance_source == "--rtol/--atol"


def test_verify_refuses_a_reference_of_another_model(bundle, host_cache, tmp_path):
    reference = make_reference(tmp_path / "r.npz", output="z")
    with pytest.raises(UserError, match=r"the engine's outputs are \['y'\], the reference's are \['z'\]") as caught:
        library.verify(reference, bundle, tmp_path / "v.json", params=QUICK_VERIFY, cache_dir=host_cache, log=print)
    assert caught.value.code == "reference_mismatch"
    assert not (tmp_path / "v.json").exists()


def test_profile_measures_anew_and_keeps_the_rest(bundle, host_cache, tmp_path):
    params = EngineProfileParams(iterations=7, warmup=1, threads=2)
    again = library.profile(bundle, tmp_path / "again.tgz", params=params, cache_dir=host_cache, log=print)
    old = read_manifest(bundle)
    kept = {entry.name: entry.digest for entry in old.files} | {
        "profile.json": "",
        "benchmark.json": "",
        "layers.json": "",
    }
    now = {entry.name: entry.digest for entry in again.files}
    assert {name: digest for name, digest in now.items() if kept[name]} == {
        name: digest for name, digest in kept.items() if digest
    }
    assert again.flags == {"threads": 2}
    assert (
        msgspec.convert(read_json_member(tmp_path / "again.tgz", "benchmark.json"), BenchmarkFile).row.iterations == 7
    )


def test_a_lower_level_is_really_kept(model, plugin, host_cache, arch, tmp_path):
    low = next((spec for spec in checks.worker_arch_specs() if spec.device == "cpuv3" and spec != arch), None)
    if low is None:
        pytest.skip("this machine's best level is cpuv3 or lower")
    plugins = [
        delivered(plugin("scale").path, scale_meta(), tmp_path, low),
        delivered(plugin("identity").path, same_meta(), tmp_path, low),
    ]
    out = tmp_path / "low.tgz"
    manifest = library.build(*model, out, plugins=plugins, arch=low, params=QUICK, cache_dir=host_cache, log=print)
    assert manifest.arch_spec == str(low)
    layers = msgspec.convert(read_json_member(out, "layers.json"), LayersFile).layers
    assert not [layer for layer in layers if "avx512" in layer.exec_type]
    assert [layer for layer in layers if "avx2" in layer.exec_type]


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_a_missing_plugin_is_named_before_anything_is_built(model, plugins, host_cache, tmp_path):
    with pytest.raises(
        UserError, match=r"no plugin is registered for yasp::Same \(1 node\); given: yasp::Scale"
    ) as caught:
        library.build(*model, tmp_path / "e.tgz", plugins=plugins[:1], params=QUICK, cache_dir=host_cache, log=print)
    assert caught.value.code == "missing_plugin"
    assert list(tmp_path.iterdir()) == []


def test_a_refused_precision_lists_what_can_be_done(model, plugins, host_cache, tmp_path):
    params = msgspec.structs.replace(QUICK, precision="fp16")
    with pytest.raises(UserError, match=r"cannot build fp16 .* it can do: fp32") as caught:
        library.build(*model, tmp_path / "e.tgz", plugins=plugins, params=params, cache_dir=host_cache, log=print)
    assert caught.value.code == "precision"


def test_a_truncated_npz_is_refused(model, plugins, host_cache, tmp_path):
    short = tmp_path / "model.npz"
    short.write_bytes(model[1].read_bytes()[:-20])
    with pytest.raises(UserError, match=r"model\.npz: .*truncated"):
        library.build(
            model[0], short, tmp_path / "e.tgz", plugins=plugins, params=QUICK, cache_dir=host_cache, log=print
        )


def test_another_arch_spec_is_refused(model, host_cache, tmp_path, arch):
    other = ArchSpec(arch.cpu, arch.device, arch.os, arch.runtime, "ov20231")
    with pytest.raises(UserError, match="engine ov20231 instead of"):
        library.build(*model, tmp_path / "e.tgz", arch=other, params=QUICK, cache_dir=host_cache, log=print)


def test_a_crash_in_a_kernel_is_the_candidates(model, plugin, plugins, arch, host_cache, tmp_path):
    bad = [plugins[0], delivered(plugin("identity", "CRASHES").path, same_meta(), tmp_path / "bad", arch)]
    with pytest.raises(CandidateError, match="SIGSEGV") as caught:
        library.build(*model, tmp_path / "e.tgz", plugins=bad, params=QUICK, cache_dir=host_cache, log=print)
    assert caught.value.code == "child_crashed"


def test_an_error_status_of_a_kernel_is_the_candidates(model, plugin, plugins, arch, host_cache, tmp_path):
    bad = [plugins[0], delivered(plugin("identity", "BAD_LAUNCH").path, same_meta(), tmp_path / "bad", arch)]
    with pytest.raises(CandidateError, match=r"plugin yasp::Same: launch returned status 7") as caught:
        library.build(*model, tmp_path / "e.tgz", plugins=bad, params=QUICK, cache_dir=host_cache, log=print)
    assert caught.value.code == "plugin_failed"


def test_a_kernel_cannot_see_the_expected_outputs(model, plugin, plugins, arch, host_cache, tmp_path):
    if sandbox.detect().kind == "none":
        pytest.skip(f"no sandbox on this machine: {sandbox.detect().reason}")
    peeking = [plugins[0], delivered(plugin("identity", "PEEKS").path, same_meta(), tmp_path / "peek", arch)]
    out = tmp_path / "peek.tgz"
    library.build(*model, out, plugins=peeking, params=QUICK, cache_dir=host_cache, sandbox_mode="required", log=print)
    reference = make_reference(tmp_path / "r.npz")
    report = library.verify(
        reference,
        out,
        tmp_path / "v.json",
        params=QUICK_VERIFY,
        cache_dir=host_cache,
        sandbox_mode="required",
        log=print,
    )
    assert report.ok


def test_a_truncated_bundle_is_refused(bundle, host_cache, tmp_path):
    short = tmp_path / "short.tgz"
    short.write_bytes(bundle.read_bytes()[:-2000])
    with pytest.raises(UserError, match="not an engine bundle, or damaged"):
        library.verify(make_reference(tmp_path / "r.npz"), short, tmp_path / "v.json", cache_dir=host_cache, log=print)
