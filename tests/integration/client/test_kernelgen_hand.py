"""`ytk kernelgen skeleton` and `check`, and what `build-plugin` says of a skeleton."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest

from ytk_core.errors import ExitCode
from ytk_core.formats.kernel_bundle import parse_bundle, read_bundle
from ytk_core.formats.plugin_manifest import SUFFIX, PluginManifest
from ytk_core.jobs import JobKind

from fakes import client_files as files

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on this machine")
ORIN = "arm64-sm87-dos6010-cu114-trt86"


@pytest.fixture
def skeleton(ytk, fake, tmp_path):
    files.region(tmp_path / "Fold.pt2")

    def run(*more: str, arch: str = files.ARCH):
        return ytk("kernelgen", "skeleton", "-r", "Fold.pt2", "-a", arch, "-o", "Fold.module_source.py", *more)

    return run


@pytest.mark.parametrize("arch", [files.ARCH, ORIN])
def test_it_is_written_checked_and_the_next_commands_are_said(skeleton, fake, arch):
    result = skeleton(arch=arch)
    assert result.code == 0, result.err
    meta = read_bundle(Path("Fold.module_source.py")).meta
    assert (meta.plugin_namespace, meta.plugin_name, meta.generator.strategy) == ("yasp", "Fold", "skeleton")
    assert "contract, target, region" in result.out
    assert f"ytk kernelgen check Fold.module_source.py -a {arch} -r Fold.pt2" in result.err
    assert f"ytk embedded build-plugin -a {arch} --plugin-name Fold" in result.err
    assert fake.calls == [], "nothing is sent anywhere"


def test_a_kernel_that_somebody_wrote_is_not_overwritten(skeleton):
    Path("Fold.module_source.py").write_text("mine")
    result = skeleton()
    assert result.code == ExitCode.YOURS
    assert "error[file_exists]" in result.err
    assert Path("Fold.module_source.py").read_text() == "mine"


def test_a_program_that_is_no_region(ytk, tmp_path):
    import zipfile

    with zipfile.ZipFile(tmp_path / "x.pt2", "w") as archive:
        archive.writestr("version", "1")
    result = ytk("kernelgen", "skeleton", "-r", "x.pt2", "-a", files.ARCH, "-o", "k.py")
    assert result.code == ExitCode.YOURS
    assert "error[not_a_region]" in result.err


def test_check_says_what_is_wrong_with_exit_code_1(ytk, skeleton):
    assert skeleton("--format", "json").code == 0
    path = Path("Fold.module_source.py")
    words = ("kernelgen", "check", path, "-a", files.ARCH, "-r", "Fold.pt2")
    result = ytk(*words)
    assert result.code == 0, result.out
    assert "YTK_UNSUPPORTED" in result.out
    path.write_text(path.read_text().replace("return YTK_UNSUPPORTED;", "return nonsense;"))
    result = ytk(*words, "-o", "json")
    assert result.code == ExitCode.VERDICT
    checks = {each["check"]: each for each in json.loads(result.out)["checks"]}
    assert checks["compiles"]["ok"] is False
    assert "nonsense" in checks["compiles"]["found"]
    assert checks["region"]["ok"] is True


def test_check_compares_with_a_models_node(ytk, skeleton, tmp_path):
    skeleton()
    files.model(tmp_path / "m.onnx", inputs=2)
    result = ytk("kernelgen", "check", "Fold.module_source.py", "-a", files.ARCH, "--onnx", "m.onnx")
    assert result.code == ExitCode.VERDICT
    assert "arity" in result.out


def test_build_plugin_takes_a_skeleton_and_says_so(ytk, fake, skeleton, tmp_path):
    skeleton()
    path = files.plugin(tmp_path / "forge")
    beside = Path(str(path) + SUFFIX)
    manifest = msgspec.json.decode(beside.read_bytes(), type=PluginManifest)
    meta = read_bundle(Path("Fold.module_source.py")).meta
    from ytk_core.formats.plugin_meta_checks import meta_digest

    manifest = msgspec.structs.replace(manifest, meta=meta, meta_digest=meta_digest(meta))
    built = {"plugin.so": path.read_bytes(), "manifest.json": msgspec.json.encode(manifest), "build.log": b""}
    fake.answer(JobKind.PLUGIN_BUILD, outputs=built)
    build = (
        "embedded",
        "build-plugin",
        "-a",
        files.ARCH,
        "--plugin-name",
        "Fold",
        "-s",
        "Fold.module_source.py",
        "-o",
        "Fold.so",
    )
    result = ytk(*build)
    assert result.code == 0, result.err
    assert "Fold.module_source.py is a skeleton: Fold.so loads, and fails every inference with status 8" in result.err
    # Once it is written, the contract that is sent says so.
    text = (
        Path("Fold.module_source.py")
        .read_text()
        .replace("#define YTK_SKELETON", "//")
        .replace('#error "', 'return YTK_OK; // "')
    )
    Path("Fold.module_source.py").write_text(text)
    fake.answer(JobKind.PLUGIN_BUILD, outputs=built)
    ytk(*build)
    sent = [
        parse_bundle(fake.blobs[spec.inputs[0].digest].decode()).meta.generator.strategy
        for spec in fake.specs(JobKind.PLUGIN_BUILD)
    ]
    assert sent == ["skeleton", "hand"]
