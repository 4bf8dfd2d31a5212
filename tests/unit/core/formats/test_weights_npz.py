"""model.npz: round trips, alignment, and the pair model.onnx + model.npz in stock engines."""

import subprocess
import sys
import textwrap
import zipfile

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ytk_core.errors import UserError
from ytk_core.formats.weights_npz import read_array, read_arrays, read_index, write_weights

DTYPES = st.sampled_from([np.dtype(t) for t in ("f4", "f2", "f8", "i1", "u1", "u2", "i4", "i8", "?", ">f4", ">i8")])
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(st.dictionaries(NAMES, hnp.arrays(DTYPES, SHAPES), max_size=5))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_round_trip(tmp_path, arrays):
    path = tmp_path / "w.npz"
    spans = write_weights(path, arrays)
    raw = path.read_bytes()
    back = read_arrays(path)
    assert {name: entry.span for name, entry in read_index(path).items()} == spans
    assert list(back) == list(arrays)
    for name, array in arrays.items():
        little = np.asarray(array, dtype=array.dtype.newbyteorder("<"))
        assert (back[name].dtype, back[name].shape) == (little.dtype, array.shape)
        assert back[name].tobytes() == little.tobytes() == raw[spans[name].offset :][: spans[name].length]
        assert spans[name].offset % 64 == 0


def test_an_array_beyond_the_old_zip_limit_is_aligned_and_read_back(tmp_path, monkeypatch):
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 1000)
    arrays = {"small": np.arange(5.0), "large": np.arange(500.0), "after": np.arange(7)}
    spans = write_weights(tmp_path / "w.npz", arrays)
    assert all(span.offset % 64 == 0 for span in spans.values())
    with np.load(tmp_path / "w.npz") as found:
        assert all(np.array_equal(found[name], array) for name, array in arrays.items())
    for name, array in arrays.items():
        assert (tmp_path / "w.npz").read_bytes()[spans[name].offset :][: array.nbytes] == array.tobytes()


def test_every_memory_layout_becomes_row_major(tmp_path):
    base = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    arrays = {
        "fortran": np.asfortranarray(base),
        "strided": base[:, ::-1, ::2],
        "broadcast": np.broadcast_to(np.float32(3), (2, 2)),
    }
    spans = write_weights(tmp_path / "w.npz", arrays)
    raw = (tmp_path / "w.npz").read_bytes()
    for name, array in arrays.items():
        assert raw[spans[name].offset :][: spans[name].length] == array.tobytes(order="C")
        np.testing.assert_array_equal(read_array(tmp_path / "w.npz", name), array)


def test_bfloat16_is_stored_as_its_bits(tmp_path):
    values = np.array([[1.0, -2.0], [np.nan, 3.5]], ml_dtypes.bfloat16)
    write_weights(tmp_path / "w.npz", {"b": values})
    assert read_index(tmp_path / "w.npz")["b"].dtype == "uint16"
    np.testing.assert_array_equal(read_array(tmp_path / "w.npz", "b"), values.view(np.uint16))


@pytest.mark.parametrize(
    "array", [np.array([{}], object), np.array(["text"]), np.zeros(2, [("x", "f4")]), np.zeros(2, complex)]
)
def test_a_dtype_that_cannot_be_stored(array, tmp_path):
    with pytest.raises(UserError, match="'bad' has dtype"):
        write_weights(tmp_path / "w.npz", {"good": np.zeros(3), "bad": array})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 60_001])
def test_a_name_that_cannot_be_stored(name, tmp_path):
    with pytest.raises(UserError, match="cannot be stored"):
        write_weights(tmp_path / "w.npz", {name: np.zeros(1)})


def test_a_full_disk_leaves_nothing(tmp_path):
    """A file size limit stands for a full disk: the write fails half-way in the same place."""
    script = textwrap.dedent("""
        import resource, signal, sys
        import numpy as np
        from ytk_core.errors import BoardError
        from ytk_core.formats.weights_npz import write_weights
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            write_weights(sys.argv[1], {"a": np.zeros(1_000_000)})
        except BoardError as err:
            sys.stdout.write(err.code)
    """)
    command = [sys.executable, "-c", script, str(tmp_path / "w.npz")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout == "disk_full", done.stderr
    assert not list(tmp_path.iterdir())


@pytest.fixture
def model(tmp_path):
    """Conv + add + bfloat16 cast, all weights external in the npz; the Reshape's shape stays inline."""
    import onnx
    from onnx import TensorProto, helper

    rng = np.random.default_rng(3)
    weights = {
        "conv.weight": rng.standard_normal((4, 3, 3, 3)).astype(np.float32),
        "scale": rng.standard_normal((1, 4, 1, 1)).astype(np.float16),
        "bias": np.float32(0.5).reshape(()),
    }
    spans = write_weights(tmp_path / "model.npz", weights)
    initializers = []
    for name, array in weights.items():
        tensor = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(array.dtype), dims=array.shape)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "model.npz"), ("offset", spans[name].offset), ("length", spans[name].length)):
            tensor.external_data.add(key=key, value=str(value))
        initializers.append(tensor)
    initializers.append(onnx.numpy_helper.from_array(np.array([1, -1], np.int64), "shape"))
    nodes = [
        helper.make_node("Conv", ["x", "conv.weight"], ["c"]),
        helper.make_node("Cast", ["scale"], ["s"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["c", "s"], ["m"]),
        helper.make_node("Add", ["m", "bias"], ["a"]),
        helper.make_node("Reshape", ["a", "shape"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 6, 6])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 64])
    graph = helper.make_graph(nodes, "g", [x], [y], initializers)
    built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "model.onnx").write_bytes(built.SerializeToString())
    sample = rng.standard_normal((1, 3, 6, 6)).astype(np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(sample[0], (3, 3), axis=(1, 2))
    conv = np.einsum("chwij,kcij->khw", windows, weights["conv.weight"])
    want = (conv * weights["scale"][0].astype(np.float32) + weights["bias"]).reshape(1, 64)
    return tmp_path / "model.onnx", weights, sample, want


def test_onnx_reads_the_weights_as_external_data(model):
    import onnx

    path, weights, _, _ = model
    onnx.checker.check_model(str(path), full_check=True)
    loaded = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    for name, array in weights.items():
        np.testing.assert_array_equal(loaded[name], array, strict=True)


def test_onnxruntime_loads_the_pair(model):
    import onnxruntime

    path, _, sample, want = model
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": sample})[0], want, rtol=1e-4, atol=1e-5)


def test_openvino_loads_the_pair(model):
    import openvino

    path, _, sample, want = model
    compiled = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    np.testing.assert_allclose(compiled([sample])[0], want, rtol=1e-4, atol=1e-5)


def test_a_wrong_offset_would_be_seen(model):
    """The three tests above can fail: a shifted offset gives other values."""
    import onnx

    path, weights, _, _ = model
    shifted = onnx.load(path, load_external_data=False)
    entry = next(e for e in shifted.graph.initializer[0].external_data if e.key == "offset")
    entry.value = str(int(entry.value) + 64)
    path.write_bytes(shifted.SerializeToString())
    loaded = onnx.numpy_helper.to_array(onnx.load(path).graph.initializer[0])
    assert not np.array_equal(loaded, weights["conv.weight"])
