"""Repros: what capture puts in, what a hostile one may not do, and what replay says."""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path

import msgspec
import numpy as np
import pytest

from ytk_client.inspection import Request, inspect_file
from ytk_client.repro import replay as replaying
from ytk_client.repro import tree
from ytk_client.repro.capture_module import capture_module
from ytk_client.repro.capture_region import capture_region, without_folder
from ytk_client.repro.format import Raised, read_repro, write_repro
from ytk_core.errors import CandidateError, FormatError, UserError
from ytk_core.formats.kernel_bundle import render_bundle
from ytk_core.formats.plugin_meta import DeploymentTarget
from ytk_core.formats.weights_npz import write_weights

from fakes import client_files as files
from fakes import kernel_bundles, repros
from fakes.repros import REGION, candidates, changed

# ---- regions -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["r.zip", "r"])
def test_a_region_round_trips(tmp_path, name):
    captured = capture_region(candidates(tmp_path / "c"), site=1)
    write_repro(tmp_path / name, captured)
    again = read_repro(tmp_path / name)
    assert again.repro == captured.repro
    assert again.sources == {"region.py": REGION}
    assert again.repro.inputs[0].shape == (2, 36, 64)  # the site's own, not the first one's
    assert all((again.arrays[key] == captured.arrays[key]).all() for key in captured.arrays)
    write_repro(tmp_path / name, captured)  # a second time, over itself
    found = inspect_file(tmp_path / name, Request.of())
    assert (found.kind, found.ok) == ("repro", True)


def test_a_zip_is_deterministic_and_holds_no_pickle(tmp_path):
    captured = capture_region(candidates(tmp_path / "c"))
    for name in ("a.zip", "b.zip"):
        write_repro(tmp_path / name, captured)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.namelist() == ["repro.json", "source/region.py", "tensors.npz"]


@pytest.mark.parametrize("suffix", ["", ".pt2", ".io.npz", ".reference.py", ".inputs.pt"])
def test_any_file_of_the_region_names_it(tmp_path, suffix):
    stem = candidates(tmp_path / "c")
    assert capture_region(stem.with_name(stem.name + suffix)).repro.name == "yasp::Fold"


def test_capture_says_what_is_missing(tmp_path):
    stem = candidates(tmp_path / "c")
    with pytest.raises(UserError, match="there is no site 2") as caught:
        capture_region(stem, site=2)
    assert caught.value.hint == "Give --site 0 to 1."
    with pytest.raises(UserError) as caught:
        capture_region(stem.with_name("Fald"))
    assert "Fold" in caught.value.hint
    stem.with_name("Fold.reference.py").unlink()
    with pytest.raises(FormatError):
        capture_region(stem)
    assert without_folder("/home/someone/model.py:3: a / b") == "model.py:3: a / b"


def test_the_output_path_is_not_overwritten_unless_a_repro(tmp_path):
    captured = capture_region(candidates(tmp_path / "c"))
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("x")
    with pytest.raises(UserError, match="no repro"):
        write_repro(tmp_path / "precious", captured)
    assert (tmp_path / "precious" / "file").read_text() == "x"


# ---- what a replay says --------------------------------------------------------------------------------------------------


@pytest.fixture
def repro(tmp_path):
    write_repro(tmp_path / "fold.zip", capture_region(candidates(tmp_path / "c"), site=1))
    return tmp_path / "fold.zip"


@pytest.fixture
def answering(monkeypatch):
    """Let the child answer with these arrays, or raise."""

    def install(answer, arrays=None):
        def run_task(_ref, _task, workdir, **_more):
            if isinstance(answer, Exception):
                raise answer
            if arrays is not None:
                write_weights(workdir / "out.npz", arrays)
            return answer

        monkeypatch.setattr(replaying, "run_task_locally", run_task)

    return install


def test_a_replay_compares_every_output(repro, answering):
    want = read_repro(repro).arrays["out/out0"]
    answering({"outputs": 1, "torch": "2.13.0"}, {"out0": want})
    found = replaying.replay(repro)
    assert (found.ok, found.versions) == (True, {"torch": "2.13.0"})
    off = want.copy()
    off[0, 1, 2, 3] += 0.5
    answering({"outputs": 1}, {"out0": off})
    assert replaying.replay(repro).outputs[0].max_abs == pytest.approx(0.5)
    assert not replaying.replay(repro).ok
    assert replaying.replay(repro, atol=0.6, rtol=0.0).ok
    answering({"outputs": 2}, {"out0": want, "out1": want})
    assert replaying.replay(repro).note == "2 outputs instead of 1"
    assert not replaying.replay(repro).ok
    answering({"outputs": 0}, {})
    assert not replaying.replay(repro).ok
    answering({"raised": {"type": "ValueError", "message": "x"}, "torch": "2"})
    assert not replaying.replay(repro).ok
    answering(CandidateError("launch gave 3"))
    assert (replaying.replay(repro).ok, replaying.replay(repro).note) == (False, "launch gave 3")


def test_an_expected_exception_is_judged_by_its_type(tmp_path, answering):
    captured = capture_region(candidates(tmp_path / "c"))
    header = msgspec.structs.replace(captured.repro, raised=Raised(type="ValueError", message="at 0x1"), outputs=())
    arrays = {"in/in0": captured.arrays["in/in0"]}
    write_repro(tmp_path / "r", changed(captured, repro=header, arrays=arrays))
    for answer, ok in (
        ({"raised": {"type": "ValueError", "message": "at 0x2"}}, True),
        ({"raised": {"type": "KeyError", "message": "at 0x1"}}, False),
        ({"outputs": 0}, False),
    ):
        answering(answer, {})
        assert replaying.replay(tmp_path / "r").ok is ok


def test_an_export_that_was_tried_is_compared_too(tmp_path, answering):
    captured = capture_region(candidates(tmp_path / "c"))
    error = Raised(type="DispatchError", message="no function for aten.i0")
    write_repro(
        tmp_path / "r",
        changed(captured, repro=msgspec.structs.replace(captured.repro, exports=False, export_error=error)),
    )
    good = {"out0": captured.arrays["out/out0"]}
    for found, ok in (
        ({"type": "DispatchError", "message": "other words"}, True),
        ({"type": "KeyError", "message": "no function for aten.i0"}, False),
        (None, False),
    ):
        answering({"outputs": 1, "torch": "2", "export_error": found}, good)
        assert replaying.replay(tmp_path / "r").ok is ok
    write_repro(tmp_path / "plain", captured)
    answering({"outputs": 1, "torch": "2", "export_error": {"type": "KeyError", "message": ""}}, good)
    asked = replaying.replay(tmp_path / "plain", export=True)
    assert (asked.ok, asked.exports) == (True, False)  # nothing was captured to compare it with


def test_a_kernel_for_something_else_is_refused_before_it_runs(repro, tmp_path):
    for kernel, words in (
        (kernel_bundles.split(), "outputs"),
        (kernel_bundles.gather(), "inputs"),
        (files.kernel(deployment_target=DeploymentTarget.TENSORRT), "TensorRT"),
    ):
        path = tmp_path / "other.module_source.py"
        path.write_text(render_bundle(kernel))
        with pytest.raises(UserError, match=words):
            replaying.replay(repro, kernel=path)
    with pytest.raises(UserError, match="does not run"):
        replaying.replay(repro, kernel=files.plugin(tmp_path / "arm", arch="arm64-cpu82-linux-glibc236-ov20264"))


# ---- modules -------------------------------------------------------------------------------------------------------------


def test_a_module_with_nested_arguments_state_and_neighbours(tmp_path):
    captured = capture_module(repros.project(tmp_path / "p"), "head", call=1)
    assert set(captured.sources) == {"model.py", "neighbour.py"}
    assert {tensor.name for tensor in captured.repro.state} == {"linear.weight", "linear.bias", "count"}
    assert captured.arrays["state/count"] == 1  # before the second call
    assert captured.repro.attributes["gain"] == 3
    assert sum(array.nbytes for array in captured.arrays.values()) < 1000  # nothing of the big layer
    write_repro(tmp_path / "m.zip", captured)
    assert "parameters" in {finding.kind for finding in inspect_file(tmp_path / "m.zip", Request.of()).findings}


def test_a_module_that_raises(tmp_path):
    model = repros.project(tmp_path / "p", "(torch.randn(3, 4), torch.randn(2, 3))")
    captured = capture_module(model, "broken")
    assert captured.repro.raised.type == "RuntimeError"
    assert captured.repro.outputs == ()
    # What happens after a module is none of its business.
    assert capture_module(model, "head").repro.raised is None


def test_modules_that_cannot_be_captured(tmp_path):
    path = repros.project(tmp_path / "p")
    with pytest.raises(UserError, match="no module 'haed'") as caught:
        capture_module(path, "haed")
    assert "head" in caught.value.hint
    with pytest.raises(UserError, match="is called 0 time"):
        capture_module(path, "unused")
    with pytest.raises(UserError, match="is called 2 time"):
        capture_module(path, "head", call=2)


def test_trees():
    names = iter("abc")
    value = {"x": [1, (2.5, None)], "y": ("t", float("inf")), "t": np.zeros(2)}
    made = tree.encode(value, "argument", lambda _array: next(names), lambda item: isinstance(item, np.ndarray))
    again = tree.decode(json.loads(json.dumps(made)), {"a": "the tensor"})
    assert again == {"x": [1, (2.5, None)], "y": ("t", float("inf")), "t": "the tensor"}
    with pytest.raises(UserError, match=r"argument\['x'\] is builtins.object"):
        tree.encode({"x": object()}, "argument", str, lambda _item: False)
    for bad in ({"tensor": "b"}, {"value": []}, {"other": 1}, 3):
        with pytest.raises(UserError, match="malformed"):
            tree.decode(bad, {})


# ---- hostile files -------------------------------------------------------------------------------------------------------


def rezipped(path: Path, changes: dict[str, bytes | None]) -> Path:
    result = path.with_name("hostile.zip")
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(result, "w") as target:
        members = {name: source.read(name) for name in source.namelist()} | changes
        for name, data in members.items():
            if data is not None:
                target.writestr(name, data)
    return result


HOSTILE = {
    "path": ({"source/../../evil.py": b"x"}, "leads out"),
    "absolute": ({"/etc/evil.py": b"x"}, "leads out"),
    "pickle": ({"source/data.pkl": pickle.dumps(1)}, "belong into a repro"),
    "large": ({"source/big.py": bytes(5 * 1024**2)}, "too large"),
    "many": ({f"source/f{i}.py": b"" for i in range(300)}, "members"),
    "no header": ({"repro.json": None}, "not an .npz|neither|missing"),
    "no source": ({"source/region.py": None}, "missing"),
    "binary": ({"source/region.py": b"\xff\xfe"}, "not UTF-8"),
    "no tensors": ({"tensors.npz": None}, "no such file"),
    "version": ({"repro.json": b'{"schema_version": 99}'}, "99"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_repro_is_refused(repro, name):
    changes, words = HOSTILE[name]
    with pytest.raises(FormatError, match=words):
        inspect_file(rezipped(repro, changes), Request.of())


def test_arrays_that_are_not_those_listed_are_refused(tmp_path):
    captured = capture_region(candidates(tmp_path / "c"))
    for index, arrays in enumerate(
        (
            captured.arrays | {"in/in0": np.zeros((1, 2), np.float32)},
            captured.arrays | {"in/in0": captured.arrays["in/in0"].astype(np.float64)},
            captured.arrays | {"other": np.zeros(1)},
            {key: value for key, value in captured.arrays.items() if key != "out/out0"},
        )
    ):
        write_repro(tmp_path / f"{index}.zip", changed(captured, arrays=arrays))
        with pytest.raises(FormatError, match="not a repro"):
            read_repro(tmp_path / f"{index}.zip")
