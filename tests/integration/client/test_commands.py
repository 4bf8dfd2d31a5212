"""The commands against a controller in this process: what they send, print and leave, and how they fail."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import threading
from pathlib import Path

import msgspec
import pytest

from ytk_core.errors import ExitCode, FailureClass, UserError
from ytk_core.formats.kernel_bundle import parse_bundle
from ytk_core.formats.plugin_manifest import SUFFIX, PluginManifest
from ytk_core.jobs import Failure, JobKind, JobState

from fakes import client_files as files

EVALUATOR = {"kinds": (JobKind.KERNEL_EVALUATE,), "arch_specs": (files.ARCH,), "device_name": "Test CPU"}


@pytest.fixture
def built(tmp_path):
    """A plugin as Forge would give it."""
    path = files.plugin(tmp_path / "forge")
    return {
        "plugin.so": path.read_bytes(),
        "manifest.json": Path(str(path) + SUFFIX).read_bytes(),
        "build.log": b"g++\n",
    }


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "Fold.module_source.py"
    path.write_bytes(files.kernel_text(plugin_name="generated"))
    return path


@pytest.fixture
def inputs(tmp_path):
    """What compile and verify take."""
    files.model(tmp_path / "model.onnx")
    files.weights(tmp_path / "model.npz")
    files.reference(tmp_path / "model.reference.npz")
    files.plugin(tmp_path / "plugins")
    files.region(tmp_path / "Fold.pt2")
    return tmp_path


def build_plugin(ytk, source, *more):
    return ytk("embedded", "build-plugin", "-a", files.ARCH, "--plugin-name", "Fold", "-s", source, *more)


def compile_engine(ytk, *more):
    return ytk(
        *("embedded", "compile", "-a", files.ARCH, "--onnx", "model.onnx", "--npz", "model.npz", "-o", "model.tgz"),
        *("--custom-plugin", "plugins/Fold.so", *more),
    )


def nothing_sent(fake) -> bool:
    return not {"SubmitJob", "WriteArtifact"} & set(fake.calls)


# ---- build-plugin --------------------------------------------------------------------------------------------------------


def test_build_plugin_writes_both_files_and_prints_the_option(ytk, fake, source, built):
    fake.answer(JobKind.PLUGIN_BUILD, outputs=built, log=b"compiling\nlinking\n")
    before = source.read_bytes()
    result = build_plugin(ytk, source, "-o", "out/plugins/Fold.so")
    assert result.code == 0, result.err
    assert result.out.splitlines()[-1] == "--custom-plugin out/plugins/Fold.so"
    assert Path("out/plugins/Fold.so").read_bytes() == built["plugin.so"]
    assert Path("out/plugins/Fold.so.manifest.json").read_bytes() == built["manifest.json"]
    assert "  | compiling\n  | linking\n" in result.err
    assert source.read_bytes() == before
    (spec,) = fake.specs(JobKind.PLUGIN_BUILD)
    sent = fake.blobs[spec.inputs[0].digest].decode()
    assert (spec.arch_spec, spec.inputs[0].name) == (files.ARCH, "source")
    assert parse_bundle(sent).meta.plugin_name == "Fold"


def test_build_plugin_json_is_only_json(ytk, fake, source, built):
    fake.answer(JobKind.PLUGIN_BUILD, outputs=built, log=b"compiling\n")
    result = build_plugin(ytk, source, "-o", "Fold.so", "--format", "json")
    shown = json.loads(result.out)
    assert shown["custom_plugin"] == "--custom-plugin Fold.so"
    assert shown["checks"][0]["name"] == "machine"


def test_a_plugin_without_the_targets_headers_is_marked_wherever_it_shows(ytk, fake, source, built, tmp_path):
    manifest = msgspec.json.decode(built["manifest.json"], type=PluginManifest)
    marked = msgspec.structs.replace(manifest, unverified=("Not target-verified: built by hand.", "No GPU ran it."))
    answer = built | {"manifest.json": msgspec.json.encode(marked)}
    fake.answer(JobKind.PLUGIN_BUILD, outputs=answer)
    result = build_plugin(ytk, source, "-o", "Fold.so", "--declared-abi")
    assert result.code == 0, result.err
    assert "(NOT TARGET-VERIFIED)" in result.out + result.err
    assert "No GPU ran it." in result.err
    assert fake.specs(JobKind.PLUGIN_BUILD)[0].params == {"declared_abi": True}
    shown = ytk("embedded", "inspect", "Fold.so")
    assert "(NOT TARGET-VERIFIED)" in shown.out
    assert "ytk-forge toolchains" in shown.out
    fake.answer(JobKind.PLUGIN_BUILD, outputs=answer)
    told = json.loads(build_plugin(ytk, source, "-o", "Fold.so", "--format", "json").out)
    assert (told["target_verified"], len(told["unverified"])) == (False, 2)


def test_build_failure_names_whose_it_is_and_leaves_nothing(ytk, fake, source):
    failure = Failure(
        failure_class=FailureClass.CANDIDATES,
        code="compile_error",
        message="SOURCE:3: error: expected ';'",
        hint="Generate it again.",
    )
    fake.answer(JobKind.PLUGIN_BUILD, failure=failure)
    result = build_plugin(ytk, source, "-o", "Fold.so")
    assert result.code == ExitCode.CANDIDATES
    assert result.err.count("error[compile_error]") == 1
    assert "the generated kernel" in result.err
    assert "Generate it again." in result.err
    assert "ytk jobs logs job-1" in result.err
    assert not list(Path().glob("Fold.so*"))


def test_bad_source_and_bad_arch_spend_nothing(ytk, fake, source):
    source.write_text("import os\n")
    assert build_plugin(ytk, source, "-o", "Fold.so").code == ExitCode.YOURS
    source.write_bytes(files.kernel_text())
    result = ytk("embedded", "build-plugin", "-a", "amd64-cpu", "--plugin-name", "x", "-s", source, "-o", "x.so")
    assert result.code == ExitCode.YOURS
    assert "error[bad_arch_spec]" in result.err
    result = ytk("embedded", "build-plugin", "-a", files.ARCH, "--plugin-name", "a b", "-s", source, "-o", "x.so")
    assert result.code == ExitCode.YOURS
    assert nothing_sent(fake)


def test_unwritable_output_spends_nothing(ytk, fake, source):
    result = build_plugin(ytk, source, "-o", source / "Fold.so")
    assert result.code == ExitCode.YOURS
    assert "error[bad_output_path]" in result.err
    assert build_plugin(ytk, source, "-o", "/dev/null").code == ExitCode.YOURS
    assert nothing_sent(fake)


def test_full_disk_leaves_no_half_file(ytk, fake, source, built):
    fake.answer(JobKind.PLUGIN_BUILD, outputs=built | {"plugin.so": b"x" * 400_000})
    Path("out").mkdir()
    Path("out/Fold.so").write_bytes(b"older")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The kernel's answer to a file beyond this limit is handled like a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        result = build_plugin(ytk, source, "-o", "out/Fold.so")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert result.code == ExitCode.BOARDS
    assert "error[disk_full]" in result.err
    assert "Fold.so" in result.err
    assert [path.name for path in Path("out").iterdir()] == ["Fold.so"]
    assert Path("out/Fold.so").read_bytes() == b"older"


# ---- compile -------------------------------------------------------------------------------------------------------------


def test_compile_sends_everything_and_writes_the_bundle(ytk, fake, inputs):
    engine = files.engine(inputs / "made.tgz").read_bytes()
    benchmark = {
        "iterations": 50,
        "min_ms": 1.0,
        "mean_ms": 1.1,
        "p50_ms": 1.1,
        "p95_ms": 1.2,
        "p99_ms": 1.3,
        "max_ms": 2.0,
    }
    fake.answer(JobKind.ENGINE_BUILD, outputs={"engine.tgz": engine}, summary={"benchmark": benchmark})
    result = compile_engine(ytk, "-p", "bf16", "--threads", "2")
    assert result.code == 0, result.err
    assert Path("model.tgz").read_bytes() == engine
    assert "yasp::Fold version 1" in result.out
    assert "1.100" in result.out
    (spec,) = fake.specs(JobKind.ENGINE_BUILD)
    assert [blob.name for blob in spec.inputs] == [
        *("model.onnx", "model.npz", "plugins/Fold.so", "plugins/Fold.so.manifest.json"),
    ]
    assert (spec.params["precision"], spec.requirements) == ("bf16", ("precision==bf16",))
    assert spec.params["threads"] == 2
    assert spec.measuring


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda _: files.model(Path("model.onnx"), name="Other"), "name"),
        (lambda _: files.model(Path("model.onnx"), inputs=2), "arity"),
        (lambda _: files.model(Path("model.onnx"), dtype=11), "dtype"),
        (lambda _: Path("model.onnx").write_bytes(b"no onnx"), "bad_onnx"),
        (lambda _: Path("model.npz").write_bytes(Path("model.npz").read_bytes()[:-30]), "bad_npz"),
        (lambda _: Path("plugins/Fold.so.manifest.json").unlink(), "no_manifest"),
        (lambda _: Path("plugins/Fold.so.manifest.json").write_text("{}"), "invalid_format"),
        (lambda _: Path("plugins/Fold.so").write_bytes(b"other"), "manifest_mismatch"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_fit_is_named_before_anything_is_sent(ytk, fake, inputs, spoil, words):
    spoil(inputs)
    result = compile_engine(ytk)
    assert result.code == ExitCode.YOURS, result.err
    assert words in result.err
    assert "hint:" in result.err
    assert nothing_sent(fake)
    assert not Path("model.tgz").exists()


def test_unsatisfiable_shows_the_controllers_nearest(ytk, fake, inputs):
    fake.refuse_submit = UserError(
        "no worker can serve it",
        code="unsatisfiable",
        hint="The nearest is amd64-cpuv3-linux-glibc231-ov20264; runtime differs.",
    )
    result = compile_engine(ytk)
    assert result.code == ExitCode.YOURS
    assert "error[unsatisfiable]" in result.err
    assert "runtime differs" in result.err


def test_missing_file_is_a_usage_error(ytk, fake):
    result = compile_engine(ytk)
    assert result.code == ExitCode.USAGE
    assert "model.onnx" in result.err
    assert nothing_sent(fake)


# ---- verify --------------------------------------------------------------------------------------------------------------


def verify(ytk, *more):
    return ytk("embedded", "verify", "model.reference.npz", *more)


def test_verify_prints_a_row_a_bundle_and_torchs(ytk, fake, inputs):
    files.engine(inputs / "base.tgz")
    files.engine(inputs / "gaia.tgz")
    fake.answer(JobKind.ENGINE_VERIFY, outputs={"verify.json": files.verify_report(samples=2)})
    result = verify(ytk, "base.tgz", "gaia.tgz")
    assert result.code == 0, result.err
    for words in ("torch host (cpu)", "base", "gaia", "p99", "120.0", "119.0", "float32 default", "yasp::Fold"):
        assert words in result.out or words == "120.0"
    assert "119.0" in result.out  # the worst of two samples
    assert [spec.arch_spec for spec in fake.specs(JobKind.ENGINE_VERIFY)] == [files.ARCH] * 2
    assert [blob.name for blob in fake.specs(JobKind.ENGINE_VERIFY)[0].inputs] == ["engine.tgz", "reference.npz"]


def test_an_output_that_fails_is_exit_code_1(ytk, fake, inputs):
    files.engine(inputs / "base.tgz")
    fake.answer(JobKind.ENGINE_VERIFY, outputs={"verify.json": files.verify_report(ok=False)})
    result = verify(ytk, "base.tgz")
    assert result.code == ExitCode.VERDICT
    assert "FAILED" in result.out
    assert "too far off" in result.err
    shown = json.loads(verify(ytk, "base.tgz", "-o", "json").out)
    assert shown["ok"] is False


def test_failed_sample_is_named(ytk, fake, inputs, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # each row on one line
    files.engine(inputs / "base.tgz")
    fake.answer(JobKind.ENGINE_VERIFY, outputs={"verify.json": files.verify_report(ok=False, samples=3)})
    assert "FAILED in sample 0" in verify(ytk, "base.tgz").out


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b broken", 200, -9], ids=["empty", "broken", "cut", "cut late"])
def test_what_is_no_bundle_spends_nothing(ytk, fake, inputs, content):
    whole = files.engine(inputs / "base.tgz").read_bytes()
    (inputs / "base.tgz").write_bytes(whole[:content] if isinstance(content, int) else content)
    result = verify(ytk, "base.tgz")
    assert result.code == ExitCode.YOURS
    assert "error[bad_engine_bundle]" in result.err
    assert nothing_sent(fake)


def test_bundle_as_reference_is_refused(ytk, fake, inputs):
    files.engine(inputs / "base.tgz")
    result = ytk("embedded", "verify", "base.tgz", "base.tgz")
    assert result.code == ExitCode.YOURS
    assert nothing_sent(fake)
    result = ytk("embedded", "verify", "model.npz", "base.tgz")
    assert "prepare --reference-out" in result.err


# ---- kernelgen -----------------------------------------------------------------------------------------------------------


def generate(ytk, *more):
    return ytk("kernelgen", "compile", "-r", "Fold.pt2", "-o", "sources/Fold.module_source.py", *more)


def test_kernelgen_compile_then_get(ytk, fake, inputs):
    fake.add_worker("eval", "gaia", **EVALUATOR)
    outputs = {"bundle.py": files.kernel_text(), "report.json": b'{"candidates": []}\n'}
    fake.answer(JobKind.KERNEL_GENERATE, outputs=outputs, summary={"strategy": "rewrites", "best_ms": 0.2})
    result = generate(ytk, "-g", "cpu", "--config", "deployment_target=cpu", "--report", "sources/r.json")
    assert result.code == 0, result.err
    assert Path("sources/Fold.module_source.py").read_bytes() == outputs["bundle.py"]
    assert Path("sources/r.json").read_bytes() == outputs["report.json"]
    (spec,) = fake.specs(JobKind.KERNEL_GENERATE)
    assert (spec.arch_spec, spec.params["gpu"]) == (files.ARCH, files.ARCH)
    assert spec.params["config"]["deployment_target"] == "cpu"
    assert spec.requirements == ("torch==2.13.0",)
    result = ytk("kernelgen", "get", "job-1", "-o", "again.py")
    assert result.code == 0, result.err
    assert Path("again.py").read_bytes() == outputs["bundle.py"]


@pytest.mark.parametrize(
    ("more", "code"),
    [
        (("-g", "H100", "--config", "deployment_target=cpu"), "gpu_not_offered"),
        (("-g", "cpu"), "wrong_deployment_target"),
        (("-g", "cpu", "--config", "deployment_target=tensorrt"), "wrong_deployment_target"),
        (("-g", "cpu", "--config", "deploymnt_target=cpu"), "unknown_config_key"),
        (("-g", "cpu", "--config", "budget=soon"), "bad_config_value"),
        (("-g", "cpu", "--config", "deployment_target=cpu", "--budget", "1h"), "bad_config_value"),
        (
            ("-g", "cpu", "--config", "deployment_target=cpu", "--budget", "9s", "--config", "budget=9"),
            "bad_config_value",
        ),
        (("-g", "cpu", "--config", "deployment_target=cpu", "--config", "precision=bf16"), "precision_not_available"),
        (("-g", "cpu", "--config", "deployment_target=cpu", "--baseline", "other.py"), "wrong_baseline"),
    ],
)
def test_wasted_generations_are_refused(ytk, fake, inputs, more, code):
    fake.add_worker("eval", "gaia", **EVALUATOR)
    Path("other.py").write_bytes(files.kernel_text())
    result = generate(ytk, *more)
    assert result.code == ExitCode.YOURS
    assert f"error[{code}]" in result.err
    assert "hint:" in result.err
    assert nothing_sent(fake)


def test_budget_baseline_and_toolchain_go_with_the_job(ytk, fake, inputs):
    from ytk_core.formats.region import read_region_spec

    fake.add_worker("eval", "gaia", **EVALUATOR, capabilities=("compiler==g++ 12",))
    fake.add_worker("gen", "gaia", kinds=(JobKind.KERNEL_GENERATE,), capabilities=("generator==7", "torch==2.13.0"))
    fake.answer(JobKind.KERNEL_GENERATE, outputs={"bundle.py": files.kernel_text(), "report.json": b"{}"})
    region = read_region_spec("Fold.pt2")
    assert region is not None
    Path("mine.py").write_bytes(files.kernel_text(region_digest=region.digest))
    more = ("--config", "deployment_target=cpu", "--budget", "90s,16c", "--baseline", "mine.py")
    result = generate(ytk, "-g", "cpu", *more)
    assert result.code == 0, result.err
    (spec,) = fake.specs(JobKind.KERNEL_GENERATE)
    assert (spec.params["config"]["budget"], spec.params["config"]["candidates"]) == (90.0, 16)
    assert spec.params["toolchain"] == "compiler==g++ 12; generator==7"
    assert {blob.name for blob in spec.inputs} == {"region.pt2", "baseline.py"}
    assert spec.wall_limit_s > 2 * 90


def test_what_is_no_region_is_refused(ytk, fake, inputs):
    Path("Fold.pt2").write_bytes(b"PK\x03\x04 not a zip")
    result = generate(ytk, "-g", "cpu", "--config", "deployment_target=cpu")
    assert result.code == ExitCode.YOURS
    assert nothing_sent(fake)


def test_config_list_needs_nothing_else(ytk, fake):
    result = ytk("kernelgen", "compile", "--config", "list")
    assert result.code == 0
    assert "deployment_target" in result.out
    assert fake.calls == []


def test_get_of_another_kind_says_what_to_do(ytk, fake, source, built):
    fake.answer(JobKind.PLUGIN_BUILD, outputs=built)
    build_plugin(ytk, source, "-o", "Fold.so")
    result = ytk("kernelgen", "get", "job-1", "-o", "x.py")
    assert "error[wrong_kind]" in result.err
    assert "ytk jobs attach job-1 --download" in result.err


# ---- jobs ----------------------------------------------------------------------------------------------------------------


def test_detach_then_attach_and_download(ytk, fake, source, built):
    fake.answer(JobKind.PLUGIN_BUILD, outputs=built, log=b"a log line")
    result = build_plugin(ytk, source, "-o", "Fold.so", "--detach")
    assert (result.code, result.out) == (0, "job-1\n")
    assert "ytk jobs attach job-1" in result.err
    assert not Path("Fold.so").exists()
    result = ytk("jobs", "attach", "job-1", "--download", "got")
    assert result.code == 0, result.err
    assert Path("got/plugin.so").read_bytes() == built["plugin.so"]
    assert "  | a log line" in result.err
    result = ytk("jobs", "logs", "job-1")
    assert result.out == "a log line"


def test_ctrl_c_detaches(ytk, fake, source, built):
    fake.answer(JobKind.PLUGIN_BUILD, outputs=built)
    fake.hold()

    def interrupt_when_running() -> None:
        while not any(job.view.state is JobState.RUNNING for job in fake.all_jobs()):
            threading.Event().wait(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt_when_running)
    thread.start()
    result = build_plugin(ytk, source, "-o", "Fold.so")
    thread.join()
    assert result.code == ExitCode.DETACHED
    assert "ytk jobs attach job-1" in result.err
    assert "ytk jobs cancel job-1 --submission sub-job-1" in result.err
    assert "Traceback" not in result.err
    fake.release()
    assert ytk("jobs", "attach", "job-1").code == 0


def test_cancelled_job_is_no_success(ytk, fake, source):
    fake.answer(JobKind.PLUGIN_BUILD, outputs={})
    build_plugin(ytk, source, "-o", "Fold.so", "--detach")
    assert ytk("jobs", "cancel", "job-1").err == "job job-1: cancelled\n"
    result = ytk("jobs", "attach", "job-1")
    assert result.code == ExitCode.YOURS
    assert "error[cancelled]" in result.err


def test_list_and_show(ytk, fake, source, built):
    assert ytk("jobs", "list").err == "no jobs\n"
    fake.answer(JobKind.PLUGIN_BUILD, outputs=built)
    build_plugin(ytk, source, "-o", "Fold.so")
    assert "plugin.build" in ytk("jobs", "list").out
    assert ytk("jobs", "list", "--state", "failed").out == ""
    (listed,) = json.loads(ytk("jobs", "list", "-o", "json").out)
    assert listed["state"] == "SUCCEEDED"
    shown = ytk("jobs", "show", "job-1").out
    assert "manifest.json" in shown
    assert files.ARCH in shown


def test_unknown_job(ytk, fake):
    for words in (("show", "job-9"), ("logs", "job-9"), ("attach", "job-9"), ("cancel", "job-9")):
        result = ytk("jobs", *words)
        assert result.code == ExitCode.YOURS, words
        assert "error[not_found]" in result.err


def test_output_names_of_a_job_cannot_leave_the_directory(ytk, fake, source):
    fake.answer(JobKind.PLUGIN_BUILD, outputs={"../evil": b"x"})
    build_plugin(ytk, source, "-o", "Fold.so", "--detach")
    result = ytk("jobs", "attach", "job-1", "--download", "got")
    assert result.code == ExitCode.OURS
    assert not Path("evil").exists()


def test_log_of_a_job_cannot_drive_the_terminal(ytk, fake, source, built):
    fake.answer(JobKind.PLUGIN_BUILD, outputs=built, log=b"\x1b[2Jgone\x07\n")
    assert "\x1b[2J" not in build_plugin(ytk, source, "-o", "Fold.so").err


# ---- workers and operators -----------------------------------------------------------------------------------------------


def test_workers_of_each_role(ytk, fake):
    fake.add_worker("eval", "gaia", **EVALUATOR)
    fake.add_worker("builder", "kronos", arch_specs=(files.ARCH,), kinds=(JobKind.ENGINE_BUILD,))
    assert "builder" in ytk("embedded", "workers").out
    assert "eval" not in ytk("embedded", "workers").out
    assert "Test CPU" in ytk("eval", "workers").out
    assert len(json.loads(ytk("fleet", "workers", "-o", "json").out)) == 2


def test_drain_and_resume(ytk, fake):
    fake.add_worker("builder", "kronos")
    assert ytk("fleet", "drain", "builder", "--reason", "new fan").err == "worker builder is draining\n"
    assert ytk("fleet", "resume", "builder").code == 0
    assert fake.drained == [("builder", "new fan", False), ("builder", "", True)]
    assert ytk("fleet", "drain", "nobody").code == ExitCode.YOURS


# ---- connection ----------------------------------------------------------------------------------------------------------


def test_wrong_key_says_where_it_came_from(ytk, fake, monkeypatch, tmp_path):
    monkeypatch.setenv("YTK_API_KEY", "wrong")
    result = ytk("jobs", "list")
    assert result.code == ExitCode.YOURS
    assert "the API key from environment YTK_API_KEY is not valid" in result.err
    (tmp_path / "k").write_text("also-wrong")
    assert "flag --api-key-file" in ytk("jobs", "list", "--api-key-file", tmp_path / "k").err
    monkeypatch.delenv("YTK_API_KEY")
    assert "no API key is set" in ytk("jobs", "list").err


def test_nobody_there_says_how_to_start_one(ytk, monkeypatch):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    result = ytk("jobs", "list", "--controller", address)
    assert result.code == ExitCode.BOARDS
    assert f"no controller answers at {address} (address from flag --controller)" in result.err
    assert "ytk up" in result.err
    monkeypatch.delenv("YTK_CONTROLLER")
    result = ytk("jobs", "list")
    assert result.code == ExitCode.BOARDS
    assert "error[no_controller]" in result.err


# ---- inspect -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("made.tgz", "engine bundle", "openvino 2026.4.1"),
        ("plugins/Fold.so", "plugin", "the audited one"),
        ("Fold.module_source.py", "kernel bundle", "deployment target"),
        ("model.reference.npz", "reference", "torch host (cpu)"),
        ("model.npz", "weights", "2x3"),
        ("model.onnx", "model", "yasp::Fold"),
        ("Fold.pt2", "region", "aten.col2im"),
    ],
)
def test_inspect_knows_each_kind(ytk, inputs, source, name, kind, words):
    files.engine(inputs / "made.tgz")
    result = ytk("embedded", "inspect", name)
    assert result.code == 0, result.err
    assert kind in result.out
    assert words in result.out
    shown = json.loads(ytk("embedded", "inspect", name, "-o", "json").out)
    assert shown["kind"] == kind


def test_inspect_refuses_what_it_does_not_know(ytk, inputs):
    Path("notes.txt").write_text("hello")
    assert ytk("embedded", "inspect", "notes.txt").code == ExitCode.YOURS
    Path("model.npz").write_bytes(Path("model.npz").read_bytes()[:40])
    assert ytk("embedded", "inspect", "model.npz").code == ExitCode.YOURS


def test_inspect_of_a_changed_plugin_is_a_negative_verdict(ytk, inputs):
    path = Path("plugins/Fold.so")
    path.write_bytes(path.read_bytes() + b"!")
    result = ytk("embedded", "inspect", path)
    assert result.code == ExitCode.VERDICT
    assert "NOT the audited one" in result.out
