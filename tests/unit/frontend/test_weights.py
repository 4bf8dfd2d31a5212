"""The ONNX points into the npz, and stock engines load the pair."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import openvino
import pytest

from ytk_client.frontend.weights import INLINE_BYTES
from ytk_core.formats.reference import read_reference
from ytk_core.formats.weights_npz import ALIGNMENT, read_index

pytestmark = pytest.mark.torch

MODEL = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 16, 1))
        self.register_buffer("order", torch.arange(600).flip(0))
    def forward(self, x):
        y = F.interpolate(self.body(x), scale_factor=2.0, mode="nearest")
        return y.reshape(1, 16, -1)[:, :, self.order % 7] + y.mean()

def get_fwd_args():
    return (torch.randn(1, 3, 9, 9),)
"""


@pytest.fixture
def out(run_prepare) -> Path:
    return run_prepare(MODEL)[1]


def external(model: onnx.ModelProto) -> dict[str, dict[str, str]]:
    tensors = [tensor for tensor in model.graph.initializer if tensor.data_location == onnx.TensorProto.EXTERNAL]
    return {tensor.name: {entry.key: entry.value for entry in tensor.external_data} for tensor in tensors}


def test_weights_point_into_the_npz(out):
    model = onnx.load(str(out / "model.onnx"), load_external_data=False)
    index = read_index(out / "model.npz")
    entries = external(model)
    assert set(entries) == set(index) == {"body.0.weight", "body.2.weight"}
    for name, entry in entries.items():
        assert entry["location"] == "model.npz"
        assert (int(entry["offset"]), int(entry["length"])) == (index[name].span.offset, index[name].span.length)
        assert int(entry["offset"]) % ALIGNMENT == 0
    with np.load(out / "model.npz") as plain:
        full = {
            tensor.name: onnx.numpy_helper.to_array(tensor)
            for tensor in onnx.load(str(out / "model.onnx")).graph.initializer
        }
        np.testing.assert_array_equal(plain["body.0.weight"], full["body.0.weight"])


def test_what_engines_read_while_parsing_stays_inline(out):
    """Integers (shapes, axes, indices) of any size that a shape could have, scales, and small tensors."""
    model = onnx.load(str(out / "model.onnx"), load_external_data=False)
    entries = external(model)
    for tensor in model.graph.initializer:
        size = int(np.prod(tensor.dims)) * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
        if tensor.data_type == onnx.TensorProto.INT64 or size <= INLINE_BYTES:
            assert tensor.name not in entries
    assert any(
        tensor.data_type == onnx.TensorProto.INT64 and np.prod(tensor.dims) * 8 > INLINE_BYTES
        for tensor in model.graph.initializer
    )


def test_onnxruntime_and_openvino_load_the_pair(out):
    [sample, _] = read_reference(out / "model.reference.npz").samples
    session = onnxruntime.InferenceSession(str(out / "model.onnx"), providers=["CPUExecutionProvider"])
    [got] = session.run(None, sample.inputs)
    np.testing.assert_allclose(got, sample.outputs["output"], rtol=1e-4, atol=1e-5)
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(str(out / "model.onnx")), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    np.testing.assert_allclose(compiled(sample.inputs)[0], sample.outputs["output"], rtol=1e-4, atol=1e-4)


def test_the_same_model_gives_the_same_bytes(out, run_prepare):
    files = ["model.onnx", "model.npz", "model.reference.npz", "fx_nodes.json", "plugins.json"]
    before = {name: (out / name).read_bytes() for name in files}
    run_prepare(MODEL)
    assert {name: (out / name).read_bytes() for name in files} == before


def test_an_unchanged_region_is_the_same_file(run_prepare):
    """Its digest is part of the key under which a generated kernel is found again."""
    fold = """
        class Model(nn.Module):
            def forward(self, x):
                return F.fold(x, (4, 4), (2, 2), stride=2)

        def get_fwd_args():
            return (torch.randn(1, 4, 4),)
        """
    _, out = run_prepare(fold)
    before = (out / "plugin_candidates/Col2im.pt2").read_bytes()
    run_prepare(fold)
    assert (out / "plugin_candidates/Col2im.pt2").read_bytes() == before
