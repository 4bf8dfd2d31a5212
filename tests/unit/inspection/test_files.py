"""Every other kind of file: what it is, what is wrong with it, and what a file that is none of them is."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import pickle
import random
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import msgspec
import numpy as np
import pytest

from ytk_client.cli.main import run
from ytk_client.inspection import Request, Severity, elf, inspect_file
from ytk_core.digests import digest_bytes
from ytk_core.dtypes import DType
from ytk_core.errors import ExitCode, FormatError
from ytk_core.formats.plugin_manifest import CheckResult
from ytk_core.formats.plugin_meta import Constraints, DeploymentTarget
from ytk_core.formats.prepare_outputs import Candidate, CandidateReason, PluginRow, write_candidates, write_plugins
from ytk_core.formats.reference import Reference, Sample, TensorInfo, write_reference
from ytk_core.formats.region import EXTRA_FILE, RegionSpec, RegionTensor, encode_region_spec
from ytk_core.formats.weights_npz import write_weights

from fakes import client_files as files
from fakes import repros
from fakes.onnx_nodes import IMAGE, of_kind, one_node

ANY = Request.of()
OTHER = "arm64-sm87-dos6010-cu114-trt86"
LIBRARY = Path(msgspec._core.__file__)


def kinds(found):
    return [finding.kind for finding in found.findings]


# ---- engine bundles ------------------------------------------------------------------------------------------------------


def test_engine_bundle(tmp_path):
    path = files.engine(tmp_path / "made.tgz")
    found = inspect_file(path, ANY)
    assert (found.kind, found.ok, kinds(found)) == ("engine bundle", True, ["not-measured"])
    assert ("arch spec", files.ARCH) in found.fields
    other = inspect_file(path, Request.of(OTHER))
    assert {finding.kind for finding in other.findings if finding.severity is Severity.ERROR} == {"arch"}


def rewritten(path: Path, change) -> Path:
    """The same archive, each member through ``change(member, data) -> (member, data) or None``."""
    result = path.with_name("changed.tgz")
    with tarfile.open(path) as source, tarfile.open(result, "w:gz") as target:
        for member in source:
            stream = source.extractfile(member)
            new = change(member, stream.read() if stream else b"")
            if new is not None:
                new[0].size = len(new[1])
                target.addfile(new[0], io.BytesIO(new[1]))
    return result


def test_a_flipped_byte_in_the_engine_is_found_without_unpacking(tmp_path):
    def flip(member, data):
        return (member, data[:-1] + b"!" if member.name.startswith("engine/") else data)

    with pytest.raises(FormatError, match="does not have the digest"):
        inspect_file(rewritten(files.engine(tmp_path / "made.tgz"), flip), ANY)


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil"])
def test_a_hostile_archive_is_refused(tmp_path, name):
    def lead_out(member, data):
        if member.name.startswith("engine/"):
            member.name = name
        return member, data

    with pytest.raises(FormatError, match="refused"):
        inspect_file(rewritten(files.engine(tmp_path / "made.tgz"), lead_out), ANY)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["changed.tgz", "made.tgz"]


def test_a_link_and_a_bomb_are_refused(tmp_path):
    def link(member, data):
        if member.name.startswith("engine/"):
            member.type, member.linkname, data = tarfile.SYMTYPE, "/etc/passwd", b""
        return member, data

    with pytest.raises(FormatError, match="symbolic link"):
        inspect_file(rewritten(files.engine(tmp_path / "made.tgz"), link), ANY)
    bomb = tmp_path / "bomb.tgz"
    bomb.write_bytes(gzip.compress(bytes(64 * 1024 * 1024)))
    with pytest.raises(FormatError):
        inspect_file(bomb, ANY)


# ---- plugins and kernels -------------------------------------------------------------------------------------------------


def test_plugin_with_manifest(tmp_path):
    path = files.plugin(tmp_path)
    found = inspect_file(path, ANY)
    assert (found.kind, found.ok) == ("plugin", True)
    path.write_bytes(path.read_bytes() + b"!")
    assert "digest" in kinds(inspect_file(path, ANY))
    assert not inspect_file(path, ANY).ok


def test_plugin_for_another_target(tmp_path):
    errors = {f.kind for f in inspect_file(files.plugin(tmp_path), Request.of(OTHER)).findings}
    assert {"arch", "deployment-target"} <= errors


def test_failed_audit_and_wrong_machine(tmp_path):
    bad = CheckResult(
        name="glibc", ok=False, found="GLIBC_2.38", wanted="<= GLIBC_2.31", fix="Build on an older system."
    )
    found = inspect_file(files.plugin(tmp_path, checks=(bad,)), ANY)
    assert of_kind(found, "check-glibc")[0].fix == "Build on an older system."
    path = files.plugin(tmp_path / "arm", arch="arm64-cpu82-linux-glibc236-ov20264")
    manifest = path.with_name(path.name + ".manifest.json")
    raw = json.loads(manifest.read_text())
    path.write_bytes(LIBRARY.read_bytes())
    raw["so_digest"] = digest_bytes(path.read_bytes())
    manifest.write_text(json.dumps(raw))
    assert "its manifest says arm64" in of_kind(inspect_file(path, ANY), "machine")[0].message


def test_library_without_manifest(tmp_path):
    path = tmp_path / "some.so"
    path.write_bytes(LIBRARY.read_bytes())
    found = inspect_file(path, Request.of(files.ARCH))
    assert (found.kind, set(kinds(found))) == ("library", {"no-manifest", "no-entry"})
    assert found.content["elf"].machine == "x86-64"
    assert any(need.startswith("libc.so") for need in found.content["elf"].needed)
    assert of_kind(inspect_file(path, Request.of(OTHER)), "machine")


def test_library_where_pyelftools_is_not_installed(tmp_path, monkeypatch):
    path = tmp_path / "some.so"
    path.write_bytes(LIBRARY.read_bytes())
    monkeypatch.setattr(elf.importlib.util, "find_spec", lambda _name: None)
    found = inspect_file(path, ANY)
    assert set(kinds(found)) == {"no-manifest", "elf"}
    assert found.content["elf"].machine == "x86-64"


@pytest.mark.parametrize("size", [5, 17, 60, 5000])
def test_a_truncated_library_is_unreadable(tmp_path, size):
    path = tmp_path / "some.so"
    path.write_bytes(LIBRARY.read_bytes()[:size])
    with pytest.raises(FormatError, match="damaged"):
        inspect_file(path, ANY)


def test_a_library_is_never_loaded(tmp_path):
    """One whose initialiser leaves a trace."""
    source = tmp_path / "trap.c"
    source.write_text(
        f'#include <stdio.h>\n__attribute__((constructor)) void f(void) {{ fclose(fopen("{tmp_path}/loaded", "w")); }}\n'
    )
    path = tmp_path / "trap.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", path, source], check=True)
    inspect_file(path, ANY)
    assert not (tmp_path / "loaded").exists()
    subprocess.run([sys.executable, "-c", f"import ctypes; ctypes.CDLL('{path}')"], check=True)
    assert (tmp_path / "loaded").exists()  # the trap works


def test_kernel_bundle(tmp_path):
    path = tmp_path / "Fold.module_source.py"
    path.write_bytes(files.kernel_text())
    assert inspect_file(path, ANY).ok
    wrong = inspect_file(path, Request.of(OTHER))
    assert kinds(wrong) == ["deployment-target"]
    path.write_bytes(files.kernel_text(constraints=Constraints(arch={"device": "cpuv4"})))
    assert "cpuv4" in of_kind(inspect_file(path, Request.of(files.ARCH)), "arch")[0].message
    path.write_bytes(files.kernel_text(plugin_name="Conv", deployment_target=DeploymentTarget.TENSORRT))
    assert kinds(inspect_file(path, Request.of(OTHER))) == ["builtin-name"]


def test_a_kernel_bundle_is_parsed_and_never_run(tmp_path):
    path = tmp_path / "Fold.module_source.py"
    path.write_bytes(files.kernel_text() + f"\nopen('{tmp_path}/ran', 'w')\n".encode())
    with pytest.raises(FormatError, match="not an assignment"):
        inspect_file(path, ANY)
    assert not (tmp_path / "ran").exists()


def test_a_model_with_its_plugins(tmp_path):
    model = files.model(tmp_path / "model.onnx")
    plugin = files.plugin(tmp_path)
    assert inspect_file(model, Request.of(files.ARCH, plugins=[plugin])).ok
    other = files.plugin(tmp_path / "other", plugin_name="Unfold")
    found = inspect_file(model, Request.of(files.ARCH, plugins=[other]))
    assert "plugin-name" in kinds(found)
    wide = files.model(tmp_path / "wide.onnx", inputs=2)
    assert "plugin-arity" in kinds(inspect_file(wide, Request.of(files.ARCH, plugins=[plugin])))
    assert "arch" in kinds(inspect_file(model, Request.of("amd64-cpuv4-linux-glibc236-ov20264", plugins=[plugin])))


# ---- arrays, regions, JSON -----------------------------------------------------------------------------------------------


def test_reference_and_weights(tmp_path):
    assert inspect_file(files.reference(tmp_path / "r.npz"), ANY).ok
    assert inspect_file(files.weights(tmp_path / "w.npz"), ANY).content[0]["shape"] == [2, 3]
    # A model whose weights are all small has an archive with nothing in it.
    write_weights(tmp_path / "none.npz", {})
    assert inspect_file(tmp_path / "none.npz", ANY).kind == "weights"
    info = TensorInfo(name="y", dtype=DType.FLOAT32, shape=(3,))
    sample = Sample(inputs={}, outputs={"y": np.array([1, np.nan, np.inf], np.float32)})
    write_reference(tmp_path / "nan.npz", Reference(inputs=(), outputs=(info,), samples=(sample,)))
    found = inspect_file(tmp_path / "nan.npz", ANY)
    assert "2 of 3 values" in of_kind(found, "not-finite")[0].message
    assert not found.ok


def test_a_compressed_or_pickled_npz_is_unreadable(tmp_path):
    np.savez_compressed(tmp_path / "c.npz", a=np.zeros(4))
    with pytest.raises(FormatError, match="compressed"):
        inspect_file(tmp_path / "c.npz", ANY)
    np.savez(tmp_path / "p.npz", a=np.array([{}], dtype=object))
    with pytest.raises(FormatError, match="never read"):
        inspect_file(tmp_path / "p.npz", ANY)


def region(path: Path, *, dtype=DType.FLOAT32, rank: int = 3, name: str = "Fold") -> Path:
    tensor = RegionTensor(name="x", dtype=dtype, shape=(2,) * rank)
    spec = RegionSpec(
        namespace="yasp",
        name=name,
        version="1",
        inputs=(tensor,),
        outputs=(tensor,),
        aten_ops=("aten.col2im",),
        digest=digest_bytes(b"region"),
        torch_version="2.13.0",
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"r/extra/{EXTRA_FILE}", encode_region_spec(spec))
        archive.writestr("r/archive_version", "0")
    return path


def test_region(tmp_path):
    found = inspect_file(region(tmp_path / "r.pt2"), ANY)
    assert (found.kind, found.ok) == ("region", True)
    assert found.content["archive"]["archive_version"] == "0"
    assert kinds(inspect_file(region(tmp_path / "r.pt2", rank=9), ANY)) == ["rank", "rank"]
    assert kinds(inspect_file(region(tmp_path / "r.pt2", dtype=DType.UINT8), ANY)) == ["dtype", "dtype"]
    assert inspect_file(region(tmp_path / "r.pt2", dtype=DType.UINT8), Request.of("onnxruntime")).ok
    assert kinds(inspect_file(region(tmp_path / "r.pt2", name="GridSample"), ANY)) == ["builtin-name"]


def test_foreign_exported_program(tmp_path):
    with zipfile.ZipFile(tmp_path / "m.pt2", "w") as archive:
        archive.writestr("m/archive_version", "0")
        archive.writestr("m/models/model.json", "{}")
    assert kinds(inspect_file(tmp_path / "m.pt2", ANY)) == ["not-a-region"]


def candidate(**changes):
    fields = {
        "proposed_op": "yasp::Fold",
        "namespace": "yasp",
        "aten_op": "aten.col2im.default",
        "reason": CandidateReason.TARGET_ILLEGAL,
        "unsupported_reason": "no importer",
        "module_path": "fold",
        "module_class": "Fold",
        "source_line": "model.py:3",
        "node_inputs": (),
        "call_site_shapes": (),
        "region_digest": digest_bytes(b"r"),
    }
    return Candidate(**(fields | changes))


def test_candidates(tmp_path):
    path = tmp_path / "candidates.json"
    write_candidates(path, [candidate()])
    assert inspect_file(path, ANY).kind == "candidates"
    write_candidates(path, [candidate(cannot_be_plugin="data-dependent output")])
    assert kinds(inspect_file(path, ANY)) == ["cannot-be-plugin"]
    write_candidates(path, [candidate(gaia_input="plugin_candidates/Fold.pt2")])
    assert kinds(inspect_file(path, ANY)) == ["file-missing"]
    (tmp_path / "Fold.pt2").touch()
    assert inspect_file(path, ANY).ok


def test_plugins_json(tmp_path):
    row = PluginRow(
        name="Fold",
        has_plugin=False,
        placeholder="yasp::Fold",
        gaia_input="c/Fold.pt2",
        sites=2,
        namespace="yasp",
        version="1",
    )
    write_plugins(tmp_path / "plugins.json", [row])
    found = inspect_file(tmp_path / "plugins.json", ANY)
    assert kinds(found) == ["file-missing", "plugin-missing"]
    write_plugins(tmp_path / "plugins.json", [msgspec.structs.replace(row, has_plugin=True, gaia_input=None)])
    assert inspect_file(tmp_path / "plugins.json", ANY).ok


# ---- what is none of these -----------------------------------------------------------------------------------------------


STRANGERS = {
    "empty": (b"", "empty"),
    "notes.txt": (b"hello", "no ONNX model"),
    "old.pt": (pickle.dumps([1]), "a Python pickle"),
    "lfs.onnx": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a Git LFS pointer"),
    "page.tgz": (b"<!DOCTYPE html><html>", "a web page"),
    "engine.plan": (b"ftrt\0\0", "a bare TensorRT plan"),
    "cut.tgz": (b"\x1f\x8b\x08", "not an engine bundle"),
    "other.json": (b'{"a": 1}', "an object with the keys a"),
    "broken.json": (b'{"a": ', "not JSON"),
    "zip.npz": (b"PK\3\4 cut", "damaged"),
    "none.onnx": (b"\x0a\x03abc", "no ONNX model"),
    "random": (bytes(range(100, 200)), "not a file that the toolkit knows"),
}


@pytest.mark.parametrize("name", STRANGERS)
def test_a_stranger_is_named(tmp_path, name):
    content, words = STRANGERS[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FormatError) as caught:
        inspect_file(tmp_path / name, ANY)
    assert words in caught.value.message
    assert caught.value.hint


def test_a_torch_save_file_and_a_directory(tmp_path):
    with zipfile.ZipFile(tmp_path / "w.pt", "w") as archive:
        archive.writestr("w/data.pkl", pickle.dumps({}))
    with pytest.raises(FormatError, match=r"data\.pkl"):
        inspect_file(tmp_path / "w.pt", ANY)
    with pytest.raises(FormatError, match="a directory"):
        inspect_file(tmp_path, ANY)


def test_every_truncation_of_every_kind_is_refused_or_explained(tmp_path):
    """Cut anywhere, a file gives an error of ours or an inspection, never a traceback."""
    made = [
        files.engine(tmp_path / "e.tgz"),
        files.reference(tmp_path / "r.npz"),
        region(tmp_path / "r.pt2"),
        one_node(tmp_path / "m.onnx", "ReduceMax", [IMAGE, np.array([1], np.int64)], opset=18),
    ]
    for path in made:
        data = path.read_bytes()
        for cut in range(0, len(data), max(1, len(data) // 40)):
            path.write_bytes(data[:cut])
            with contextlib.suppress(FormatError):
                inspect_file(path, ANY)


@pytest.mark.parametrize("seed", range(4))
def test_damage_anywhere_is_refused_or_explained(tmp_path, seed):
    """Bytes changed, lost and added: an error of ours or an inspection, never a traceback."""
    generator = random.Random(seed)
    made = [
        files.engine(tmp_path / "e.tgz"),
        files.reference(tmp_path / "r.npz"),
        region(tmp_path / "r.pt2"),
        files.model(tmp_path / "m.onnx"),
        one_node(tmp_path / "n.onnx", "Slice", [(4, 4), *(np.array([v], np.int64) for v in (0, 2**63 - 1, 1))]),
    ]
    for path in made:
        data = path.read_bytes()
        for _ in range(60):
            broken = bytearray(data)
            for _ in range(generator.choice((1, 1, 3, 10))):
                place = generator.randrange(len(broken))
                match generator.randrange(3):
                    case 0:
                        broken[place] = generator.randrange(256)
                    case 1:
                        del broken[place : place + generator.randrange(1, 9)]
                    case 2:
                        broken[place:place] = generator.randbytes(generator.randrange(1, 9))
            path.write_bytes(broken)
            with contextlib.suppress(FormatError):
                inspect_file(path, ANY)


# ---- the command ---------------------------------------------------------------------------------------------------------


def test_the_command_exits_by_verdict_and_gives_json(tmp_path, capsys):
    good = one_node(tmp_path / "good.onnx", "Relu")
    assert run(["embedded", "inspect", str(good)]) == ExitCode.OK
    assert "no findings" in capsys.readouterr().out
    bad = one_node(tmp_path / "bad.onnx", "ReduceMax", [IMAGE, np.array([1], np.int64)], opset=18)
    assert run(["embedded", "inspect", str(bad)]) == ExitCode.VERDICT
    shown = capsys.readouterr().out
    assert "error [misparse] ReduceMax" in shown
    assert "NOT ok: 1 error, 1 warning" in shown
    assert run(["embedded", "inspect", str(bad), "-o", "json"]) == ExitCode.VERDICT
    value = json.loads(capsys.readouterr().out)
    assert (value["schema_version"], value["kind"], value["ok"]) == (1, "model", False)
    assert value["counts"] == {"error": 1, "warning": 1, "note": 0}
    assert value["findings"][0]["rule_id"] == "ReduceMax.axes-input"
    assert run(["embedded", "inspect", str(bad), "-a", "trt101"]) == ExitCode.OK
    capsys.readouterr()
    stranger = tmp_path / "notes.txt"
    stranger.write_text("hello")
    assert run(["embedded", "inspect", str(stranger), "-o", "json"]) == ExitCode.YOURS
    value = json.loads(capsys.readouterr().out)
    assert value["error"]["code"] == "unknown_file"
    assert (value["ok"], value["kind"]) == (False, None)
    assert run(["embedded", "inspect", str(good), "-a", "trt85"]) == ExitCode.YOURS


def test_many_alike_findings_are_printed_once(tmp_path, capsys):
    from onnx import TensorProto, helper, save

    nodes = [helper.make_node("Det", ["x"], [f"y{i}"], name=f"det{i}") for i in range(9)]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 2])],
        [helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, []) for i in range(9)],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), str(tmp_path / "m.onnx"))
    run(["embedded", "inspect", str(tmp_path / "m.onnx")])
    shown = capsys.readouterr().out
    assert shown.count("[missing-op]") == 1
    assert "4 more" in shown
    assert "9 errors" in shown


def test_neither_inspecting_nor_capturing_a_region_needs_torch(tmp_path):
    """As the base installation has it: no torch, no onnxruntime, no openvino."""
    stem = repros.candidates(tmp_path / "c")
    model = files.model(tmp_path / "model.onnx")
    program = f"""
import sys
for name in ("torch", "onnxruntime", "openvino", "onnxscript", "elftools"):
    sys.modules[name] = None
from ytk_client.cli.main import run
assert run(["embedded", "inspect", {str(model)!r}]) == 0
assert run(["embedded", "inspect", {str(stem)!r} + ".pt2"]) == 0
assert run(["embedded", "capture", {str(stem)!r}, "-o", {str(tmp_path / "r.zip")!r}, "--no-check"]) == 0
assert run(["embedded", "inspect", {str(tmp_path / "r.zip")!r}]) == 0
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
