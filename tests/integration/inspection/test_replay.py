"""Repros replayed for real: torch and kernels in sandboxed children."""

from __future__ import annotations

import json

import pytest

from ytk_client.cli.main import run
from ytk_client.inspection import Request, inspect_file
from ytk_client.repro.capture_module import capture_module
from ytk_client.repro.capture_region import capture_region
from ytk_client.repro.format import write_repro
from ytk_client.repro.replay import replay
from ytk_core.errors import ExitCode

from fakes import repros
from fakes.repros import REGION, bundle, candidates, changed, quiet


def test_replay_runs_strangers_code_in_a_sandbox(tmp_path):
    source = (
        REGION
        + f"""
from pathlib import Path
import socket
try:
    Path("{tmp_path}/escaped").write_text("x")
except OSError:
    pass
assert not Path("{tmp_path}/c").exists(), "it sees other files"
try:
    socket.create_connection(("127.0.0.1", 9), timeout=1)
except OSError as err:
    assert "unreachable" in str(err) or "refused" in str(err)
assert "YTK_API_KEY" not in __import__("os").environ
"""
    )
    write_repro(tmp_path / "r.zip", capture_region(candidates(tmp_path / "c", source=source)))
    found = replay(tmp_path / "r.zip", log=quiet)
    assert found.ok
    assert found.versions["torch"].startswith("2.")
    assert not (tmp_path / "escaped").exists()


@pytest.fixture
def repro(tmp_path):
    write_repro(tmp_path / "fold.zip", capture_region(candidates(tmp_path / "c"), site=1))
    return tmp_path / "fold.zip"


def test_a_right_kernel_matches(repro, tmp_path):
    found = replay(repro, kernel=bundle(tmp_path / "Fold.module_source.py"), log=quiet)
    assert found.ok
    assert found.by == "Fold.module_source.py"
    assert "the kernel's contract" in found.outputs[0].tolerance_source


FAULTS = {
    "a wrong value": ("sum +=", "sum -=", "out0"),
    "an output not written": ("plane < planes", "plane < planes - 1", "out0"),
    "a failure": ("return YTK_OK;", "return YTK_BAD_SHAPE;", "YTK_BAD_SHAPE"),
    "a write outside": ("return YTK_OK;", "y[planes * kOut * kOut] = 1; return YTK_OK;", "outside of its buffers"),
    "a write to the input": ("return YTK_OK;", "const_cast<float*>(x)[0] += 1; return YTK_OK;", "changed its input 0"),
    "a crash": ("return YTK_OK;", "__builtin_trap(); return YTK_OK;", ""),
    "no C++": ("return YTK_OK;", "return;", "does not compile"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_kernel_differs_and_is_explained(repro, tmp_path, fault):
    old, new, words = FAULTS[fault]
    found = replay(repro, kernel=bundle(tmp_path / "Fold.module_source.py", old, new), log=quiet)
    assert not found.ok
    assert words in found.note + " ".join(output.name for output in found.outputs if not output.ok)


def test_a_built_plugin_matches(repro, tmp_path):
    """Through ``ytk_plugin()``, with the manifest that says what it is."""
    from ytk_core.archspec import host_arch_specs
    from ytk_forge.build import build_plugin

    arch = host_arch_specs("ov20264")[-1]
    build_plugin(bundle(tmp_path / "Fold.module_source.py"), arch, tmp_path / "out", tmp_path / "cache", "optional")
    (built,) = (tmp_path / "out").glob("*.so")
    (manifest,) = (tmp_path / "out").glob("*manifest.json")
    manifest.rename(built.with_name(built.name + ".manifest.json"))
    assert inspect_file(built, Request.of(str(arch))).ok
    found = replay(repro, kernel=built, log=quiet)
    assert found.ok, found.note


def test_a_module_replays_and_a_mended_one_does_not(tmp_path):
    model = repros.project(tmp_path / "p", "(torch.randn(3, 4), torch.randn(2, 3))")
    write_repro(tmp_path / "head", capture_module(model, "head", call=1))
    found = replay(tmp_path / "head", log=quiet)
    assert found.ok, found
    assert [output.name for output in found.outputs] == ["out0", "out1"]
    captured = capture_module(model, "broken")
    mended = captured.sources | {"model.py": captured.sources["model.py"].replace("x @ x", "x @ x.T")}
    write_repro(tmp_path / "mended.zip", changed(captured, sources=mended))
    found = replay(tmp_path / "mended.zip", log=quiet)
    assert not found.ok
    assert (found.raised, found.expected_raise.type) == (None, "RuntimeError")


def test_the_commands(tmp_path, capsys):
    stem, out = candidates(tmp_path / "c"), tmp_path / "r.zip"
    assert run(["embedded", "capture", str(stem), "-o", str(out), "--format", "json"]) == ExitCode.OK
    shown = json.loads(capsys.readouterr().out)
    assert (shown["repro"]["name"], shown["replay"]["ok"]) == ("yasp::Fold", True)
    assert run(["embedded", "replay", str(out), "--kernel", str(bundle(tmp_path / "k.py"))]) == ExitCode.OK
    assert "match" in capsys.readouterr().out
    assert (
        run(["embedded", "replay", str(out), "--kernel", str(bundle(tmp_path / "k.py", "sum +=", "sum -="))])
        == ExitCode.VERDICT
    )
    assert "DIFFERS" in capsys.readouterr().out
    assert (
        run(["embedded", "capture", str(repros.project(tmp_path / "p")), "-o", str(tmp_path / "m")]) == ExitCode.YOURS
    )
    assert "--module" in capsys.readouterr().err


def test_capture_sees_at_once_that_a_repro_does_not_replay(tmp_path, capsys):
    stem = candidates(tmp_path / "c", source=REGION.replace("[8, 8]", "[8, 9]"))
    assert run(["embedded", "capture", str(stem), "-o", str(tmp_path / "r")]) == ExitCode.VERDICT
    assert "does NOT replay: it raised RuntimeError" in capsys.readouterr().out


def test_an_operator_that_does_not_export_can_be_handed_on(tmp_path, capsys):
    """The exporter has no translation of special.i0: recorded, and replayed as such."""
    (tmp_path / "p").mkdir()
    model = tmp_path / "p" / "model.py"
    model.write_text(
        "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return torch.special.i0(x)\n"
        "def get_fwd_args():\n    return (torch.ones(3),)\n"
    )
    out = tmp_path / "i0.zip"
    words = ["embedded", "capture", str(model), "--module", "", "-o", str(out), "--export", "--format", "json"]
    assert run(words) == ExitCode.OK
    shown = json.loads(capsys.readouterr().out)["repro"]
    assert shown["exports"] is False
    assert "i0" in shown["export_error"]["message"]
    found = replay(out, log=quiet)
    assert (found.ok, found.exports) == (True, False)
