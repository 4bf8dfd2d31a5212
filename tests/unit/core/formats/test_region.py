"""Region specs inside a .pt2, read without torch."""

import subprocess
import sys
import zipfile

import msgspec
import numpy as np
import pytest
from golden import builders

from ytk_core.dtypes import DType
from ytk_core.errors import FormatError
from ytk_core.formats.region import EXTRA_FILE, RegionTensor, encode_region_spec, read_region_spec, region_digest


def _pt2(path, members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def test_spec_in_an_archive(tmp_path):
    text = encode_region_spec(builders.region())
    _pt2(tmp_path / "r.pt2", {"r/version": "1", f"r/extra/{EXTRA_FILE}": text})
    assert read_region_spec(tmp_path / "r.pt2") == builders.region()


def test_an_archive_without_spec_is_none(tmp_path):
    _pt2(tmp_path / "r.pt2", {"r/version": "1", "r/extra/not_ytk_region.json": "{}"})
    assert read_region_spec(tmp_path / "r.pt2") is None


@pytest.mark.torch
def test_spec_in_a_real_pt2_read_by_a_process_without_torch(tmp_path):
    import torch

    program = torch.export.export(torch.nn.ReLU(), (torch.zeros(2),))
    torch.export.save(program, tmp_path / "r.pt2", extra_files={EXTRA_FILE: encode_region_spec(builders.region())})
    assert read_region_spec(tmp_path / "r.pt2") == builders.region()
    script = (
        "import sys; from ytk_core.formats.region import read_region_spec; "
        "assert read_region_spec(sys.argv[1]).name == 'Fold'; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "r.pt2")], check=True, timeout=600)


BROKEN = {
    "not a zip": lambda path: path.write_bytes(b"x" * 100),
    "two specs": lambda path: _pt2(path, {f"a/{EXTRA_FILE}": "{}", f"b/{EXTRA_FILE}": "{}"}),
    "no JSON": lambda path: _pt2(path, {f"r/extra/{EXTRA_FILE}": "{"}),
    "huge": lambda path: _pt2(path, {f"r/extra/{EXTRA_FILE}": b" " * 5_000_000}),
    "other schema": lambda path: _pt2(path, {f"r/extra/{EXTRA_FILE}": '{"schema_version": 2}'}),
    "directory": lambda path: path.mkdir(),
    "missing": lambda path: None,
}


@pytest.mark.parametrize("name", BROKEN)
def test_it_is_refused(name, tmp_path):
    path = tmp_path / "r.pt2"
    BROKEN[name](path)
    with pytest.raises(FormatError, match=r"r\.pt2"):
        read_region_spec(path)


def test_truncated(tmp_path):
    _pt2(tmp_path / "r.pt2", {f"r/extra/{EXTRA_FILE}": encode_region_spec(builders.region())})
    data = (tmp_path / "r.pt2").read_bytes()
    (tmp_path / "r.pt2").write_bytes(data[: len(data) // 2])
    with pytest.raises(FormatError, match="truncated"):
        read_region_spec(tmp_path / "r.pt2")


def test_the_digest_sees_content_and_not_names():
    spec = builders.region()
    ops = ["%0 = aten.relu(in0)"]
    digest = region_digest(ops=ops, inputs=spec.inputs, outputs=spec.outputs)
    renamed = tuple(msgspec.structs.replace(tensor, name=f"other_{i}") for i, tensor in enumerate(spec.inputs))
    assert region_digest(ops=ops, inputs=renamed, outputs=spec.outputs) == digest
    # A dynamic axis has any extent, so the captured one does not count; every other extent does.
    dynamic = (msgspec.structs.replace(spec.inputs[0], shape=(7, 576, 3136)), spec.inputs[1])
    assert region_digest(ops=ops, inputs=dynamic, outputs=spec.outputs) == digest
    others = [
        region_digest(ops=["%0 = aten.gelu(in0)"], inputs=spec.inputs, outputs=spec.outputs),
        region_digest(ops=ops, inputs=spec.inputs[::-1], outputs=spec.outputs),
        region_digest(ops=ops, inputs=spec.inputs, outputs=spec.outputs, constants={"c": np.zeros(2, np.float32)}),
        region_digest(ops=ops, inputs=spec.inputs, outputs=spec.outputs, constants={"c": np.ones(2, np.float32)}),
        region_digest(ops=ops, inputs=(RegionTensor(name="x", dtype=DType.FLOAT16, shape=(1,)),), outputs=spec.outputs),
    ]
    assert len({digest, *others}) == 6
