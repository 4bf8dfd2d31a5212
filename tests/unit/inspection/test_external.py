"""External data: beside the model, inside of its folder, long enough; values are read where rules need them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, save

from ytk_client.inspection import Request, Severity, inspect_file

from fakes.onnx_nodes import I64, of_kind


def model(
    folder: Path,
    *,
    op: str = "Add",
    dtype: int = TensorProto.FLOAT,
    dims=(4,),
    entries=None,
    data: bytes | None = bytes(64),
) -> Path:
    """x (op) w, with w outside of the file."""
    weight = TensorProto(name="w", data_type=dtype, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in (entries or {"location": "w.bin", "offset": "16", "length": "16"}).items():
        weight.external_data.add(key=key, value=value)
    graph = helper.make_graph(
        [helper.make_node(op, ["x", "w"], ["y"], name="node")],
        "g",
        [helper.make_tensor_value_info("x", I64 if dtype == I64 and op == "Add" else TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", I64 if dtype == I64 and op == "Add" else TensorProto.FLOAT, None)],
        initializer=[weight],
    )
    path = folder / "m.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), str(path))
    if data is not None:
        (folder / "w.bin").write_bytes(data)
    return path


def look(path: Path):
    return inspect_file(path, Request.of())


def test_good_external_data(tmp_path):
    found = look(model(tmp_path))
    assert found.findings == ()
    assert ("weights", "1 tensors, 1 in w.bin") in found.fields


BAD = [
    ({"location": "../w.bin"}, "outside"),
    ({"location": "/etc/passwd"}, "outside"),
    ({"location": "a\\w.bin"}, "outside"),
    ({"location": "other.bin"}, "not beside"),
    ({"offset": "0"}, "names no file"),
    ({"location": "w.bin", "offset": "56", "length": "16"}, "ends at byte 72"),
    ({"location": "w.bin", "offset": "-16", "length": "16"}, "ends at byte 0"),
    ({"location": "w.bin", "offset": "x"}, "no number"),
    ({"location": "w.bin", "length": "12"}, "12 bytes of data, its type and shape need 16"),
]


@pytest.mark.parametrize(("entries", "words"), BAD, ids=[words for _, words in BAD])
def test_bad_external_data(tmp_path, entries, words):
    found = look(model(tmp_path, entries=entries))
    (finding,) = of_kind(found, "external-data")
    assert words in finding.message
    assert finding.severity is Severity.ERROR
    assert not of_kind(found, "invalid")


def test_a_link_out_of_the_folder_is_refused(tmp_path):
    outside = tmp_path / "outside.bin"
    outside.write_bytes(bytes(64))
    folder = tmp_path / "model"
    folder.mkdir()
    path = model(folder, data=None)
    (folder / "w.bin").symlink_to(outside)
    assert "a link that leads out" in of_kind(look(path), "external-data")[0].message


def test_shapes_belong_inline(tmp_path):
    entries = {"location": "w.bin", "offset": "0", "length": "16"}
    path = model(
        tmp_path, op="Reshape", dtype=I64, dims=(2,), entries=entries, data=np.array([2, 2], np.int64).tobytes()
    )
    finding = of_kind(look(path), "external-shape")[0]
    assert (finding.node, finding.op, finding.severity) == ("w", "Reshape", Severity.ERROR)


@pytest.mark.parametrize(("values", "bad"), [([1, 2, 3, 4], False), ([1, 2**40, 3, 4], True)])
def test_external_int64_values_are_read(tmp_path, values, bad):
    entries = {"location": "w.bin", "offset": "0", "length": "32"}
    path = model(tmp_path, dtype=I64, entries=entries, data=np.array(values, np.int64).tobytes())
    assert bool(of_kind(look(path), "int64")) == bad


def test_large_external_int64_is_read_in_pieces(tmp_path, monkeypatch):
    from ytk_client.inspection import onnx_external

    monkeypatch.setattr(onnx_external, "_CHUNK_BYTES", 4096)
    values = np.zeros(5000, np.int64)
    values[4321] = 2**40
    entries = {"location": "w.bin", "offset": "8", "length": str(values.nbytes)}
    path = model(tmp_path, dtype=I64, dims=(5000,), entries=entries, data=bytes(8) + values.tobytes())
    assert str(2**40) in of_kind(look(path), "int64")[0].message
