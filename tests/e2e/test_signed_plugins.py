"""From Forge to Kronos through a real controller: what was signed runs, and nothing that was touched on the way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from onnx import helper

from ytk_client.cli import main as entry
from ytk_core import sandbox
from ytk_core.archspec import host_arch_specs
from ytk_core.errors import ExitCode
from ytk_core.formats.engine_bundle import read_manifest
from ytk_core.formats.kernel_bundle import render_bundle
from ytk_core.formats.plugin_manifest import SUFFIX, read_plugin_manifest, write_plugin_manifest
from ytk_core.formats.weights_npz import write_weights
from ytk_core.signing import load_or_create_key, verify_manifest
from ytk_forge.readiness import problems
from ytk_kronos.hostlib import engine_field

from e2e.daemons import Stack, stack
from fakes import cuda_bundles
from fakes import kernel_bundles as bundles
from fakes.forge_toolchains import SHIPPED
from fakes.kronos_models import FLOAT, custom, save

JETSON = SHIPPED["arm64-sm87-l4t364-cu126-trt103"]
needs_sandbox = pytest.mark.skipif(sandbox.detect().kind == "none", reason=sandbox.detect().reason)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Stack]:
    (tmp_path / "stack").mkdir()
    with stack(tmp_path / "stack") as made:
        key = load_or_create_key(tmp_path / "signing_key.pem").public
        (tmp_path / "forge.keys").write_text(f"{key} {key.key_id}\n")
        made.part("forge", "ytk_forge.main", "--signing-key", str(tmp_path / "signing_key.pem"))
        made.part("kronos", "ytk_kronos.main", "--trusted-keys", str(tmp_path / "forge.keys"))
        yield made


@needs_sandbox
def test_a_signed_plugin_runs_and_a_touched_one_does_not(running, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("YTK_CONTROLLER", running.address)
    monkeypatch.setenv("YTK_API_KEY", running.tokens["client"])
    arch = str(host_arch_specs(engine_field())[0])
    source, plugin = tmp_path / "fold.module_source.py", tmp_path / "Col2im.so"
    onnx, npz, out = tmp_path / "model.onnx", tmp_path / "model.npz", tmp_path / "engine.tgz"
    source.write_text(render_bundle(bundles.fold()))
    nodes = [custom("Col2im", ["x"], ["c"], "fold"), helper.make_node("Relu", ["c"], ["y"], name="relu")]
    save(onnx, nodes, {"x": (FLOAT, (2, 36, 64))}, {"y": FLOAT})
    write_weights(npz, {})

    def ytk(*words: object) -> tuple[int, str]:
        capsys.readouterr()
        code = entry.run([str(word) for word in words])
        return code, capsys.readouterr().err

    def compiled() -> tuple[int, str]:
        model = ("--onnx", onnx, "--npz", npz, "-o", out, "--iterations", 2, "--warmup", 1, "--threads", 1)
        return ytk("embedded", "compile", "-a", arch, *model, "--custom-plugin", plugin)

    code, said = ytk("embedded", "build-plugin", "-a", arch, "--plugin-name", "Col2im", "-s", source, "-o", plugin)
    assert code == ExitCode.OK, said
    code, said = compiled()
    assert code == ExitCode.OK, said
    key = load_or_create_key(tmp_path / "signing_key.pem").public
    assert f"signed with key {key.key_id}" in said
    assert [entry.signed_by for entry in read_manifest(out).plugins] == [key.key_id]

    beside = plugin.with_name(plugin.name + SUFFIX)
    signed = read_plugin_manifest(beside)
    for changes, reason in (
        ({"toolchain": "another"}, "error[bad_signature]"),
        # This one the client sees from what the worker advertises: nothing is sent.
        ({"signature": msgspec.UNSET}, "error[untrusted_plugin]"),
    ):
        write_plugin_manifest(beside, msgspec.structs.replace(signed, **changes))
        code, said = compiled()
        assert code == ExitCode.YOURS
        assert reason in said, said


@needs_sandbox
@pytest.mark.skipif(bool(problems(JETSON, declared=True)), reason=" ".join(problems(JETSON, declared=True)))
def test_a_plugin_for_a_board_whose_headers_are_not_here(running, tmp_path, monkeypatch, capsys) -> None:
    """Refused with what to set; built and marked where it is asked for."""
    monkeypatch.setenv("YTK_CONTROLLER", running.address)
    monkeypatch.setenv("YTK_API_KEY", running.tokens["client"])
    source, plugin = tmp_path / "fold.module_source.py", tmp_path / "Col2im.so"
    source.write_text(render_bundle(cuda_bundles.fold()))
    words = [
        "embedded",
        "build-plugin",
        "-a",
        JETSON.name,
        "--plugin-name",
        "Col2im",
        "-s",
        str(source),
        "-o",
        str(plugin),
    ]
    assert entry.run(words) == ExitCode.YOURS
    said = capsys.readouterr().err
    assert "error[tensorrt_headers_missing]" in said
    assert f'extends = "{JETSON.name}"' in said
    assert "ytk embedded build-plugin --declared-abi" in said
    assert not plugin.exists()
    assert entry.run([*words, "--declared-abi"]) == ExitCode.OK
    shown = capsys.readouterr()
    assert "(NOT TARGET-VERIFIED)" in shown.out + shown.err
    manifest = read_plugin_manifest(plugin.with_name(plugin.name + SUFFIX))
    trusted = [load_or_create_key(tmp_path / "signing_key.pem").public]
    assert verify_manifest(manifest, plugin, trusted) == trusted[0], "the mark is under the signature"
    assert not manifest.target_verified
