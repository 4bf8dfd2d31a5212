"""Quantize and dequantize pairs: whole in every graph, in a form that the target takes, and computing what torch computes."""

from collections import Counter

import onnx
import pytest
from onnx import numpy_helper

from ytk_client.frontend import PrepareRequest, dry_run
from ytk_client.inspection import Request, inspect_file

pytestmark = pytest.mark.torch

PAIR = """
import torch.ao.quantization.fx._decomposed
ops = torch.ops.quantized_decomposed

def pair(x, scale=0.05, zero=0, low=-128, high=127, dtype=torch.int8, move=lambda q: q):
    q = ops.quantize_per_tensor.default(x, scale, zero, low, high, dtype)
    return ops.dequantize_per_tensor.default(move(q), scale, zero, low, high, dtype)

def channels(x, axis=1):
    scale = torch.linspace(0.03, 0.07, x.shape[axis])
    zero = torch.arange(x.shape[axis]) - 1
    q = ops.quantize_per_channel.default(x, scale, zero, axis, -128, 127, torch.int8)
    return ops.dequantize_per_channel.default(q, scale, zero, axis, -128, 127, torch.int8)
"""
LAYER = (
    PAIR
    + """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = {layer}
        weight = self.inner.weight.detach()
        others = [axis for axis in range(weight.dim()) if axis != {axis}]
        self.register_buffer("scale", weight.abs().amax(others) / 127)
        self.register_buffer("zero", torch.zeros_like(self.scale, dtype=torch.int64))
        q = ops.quantize_per_channel.default(weight, self.scale, self.zero, {axis}, -127, 127, torch.int8)
        self.register_buffer("weight", q)

    def forward(self, x):
        weight = ops.dequantize_per_channel.default(self.weight, self.scale, self.zero, {axis}, -127, 127, torch.int8)
        y = torch.func.functional_call(self.inner, {{"weight": weight}}, (pair(x),))
        return {result}

def get_fwd_args():
    return (torch.randn({shape}),)
"""
)
LAYERS = {
    "conv2d": ("nn.Conv2d(3, 8, 3)", 0, "pair(y)", "2, 3, 8, 8", "Conv"),
    "linear with float output": ("nn.Linear(8, 4)", 0, "y", "2, 8", "Gemm"),
    "conv3d": ("nn.Conv3d(3, 4, 3)", 0, "pair(y)", "1, 3, 6, 6, 6", "Conv"),
    "conv transpose 3d": ("nn.ConvTranspose3d(3, 4, 2, stride=2)", 1, "pair(y)", "1, 3, 4, 4, 4", "ConvTranspose"),
}


def text_of(name):
    layer, axis, result, shape, _ = LAYERS[name]
    return LAYER.format(layer=layer, axis=axis, result=result, shape=shape)


def call(expression, shape="2, 3, 4"):
    return (
        PAIR
        + f"""
class Model(nn.Module):
    def forward(self, x):
        return {expression}

def get_fwd_args():
    return (torch.randn({shape}),)
"""
    )


def operators(out):
    model = onnx.load(out / "model.onnx", load_external_data=False)
    return Counter(node.op_type for node in model.graph.node)


def halves(path, target="trt86"):
    """What inspect has to say about pairs."""
    return [each for each in inspect_file(path, Request.of(target)).findings if each.kind == "quantize-pair"]


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("target", ["trt86", "onnxruntime"])
def test_a_quantized_layer_keeps_its_pairs(run_prepare, name, target):
    report, out = run_prepare(text_of(name), profile=target)
    found = operators(out)
    outputs = 1 if "pair" in LAYERS[name][2] else 0
    assert found["QuantizeLinear"] == 1 + outputs
    assert found["DequantizeLinear"] == 2 + outputs
    assert found[LAYERS[name][4]] == 1
    assert report.rows == ()
    assert halves(out / "model.onnx", target) == []


@pytest.mark.parametrize("name", LAYERS)
def test_a_carved_layer_leaves_whole_pairs_and_takes_float_weights(run_prepare, name):
    kind = LAYERS[name][0].partition("(")[0].removeprefix("nn.")
    report, out = run_prepare(text_of(name), plugins=(f"yasp::Own={kind}",))
    found = operators(out)
    outputs = 1 if "pair" in LAYERS[name][2] else 0
    assert (found["QuantizeLinear"], found["DequantizeLinear"]) == (1 + outputs, 1 + outputs)
    assert halves(out / "model.onnx") == []
    assert report.rows[0].gaia_input is not None
    model = onnx.load(out / "model.onnx", load_external_data=False)
    (node,) = [node for node in model.graph.node if node.op_type == "Own"]
    weights = [each for each in model.graph.initializer if each.name in node.input]
    assert {each.data_type for each in weights} == {onnx.TensorProto.FLOAT}


@pytest.mark.parametrize(
    "expression",
    [
        "pair(x, zero=7)",
        "pair(x, 0.03, 128, 0, 255, torch.uint8)",
        "pair(pair(x, zero=7).relu(), zero=-3)",
        "pair(x, move=lambda q: q.transpose(1, 2).reshape(2, 12))",
        "pair(x, move=lambda q: torch.cat([q, q], 1)[:, 1:5].unsqueeze(0))",
        "channels(x)",
        "ops.dequantize_per_tensor.tensor(ops.quantize_per_tensor.tensor(x, x.amax() / 127, torch.zeros((), dtype=torch.int64), -128, 127, torch.int8), x.amax() / 127, torch.zeros((), dtype=torch.int64), -128, 127, torch.int8)",
        "pair(x.half()).half() + 1",
    ],
)
def test_a_form_that_the_target_refuses_is_computed_in_float(run_prepare, expression):
    report, out = run_prepare(call(expression))
    assert report.rows == ()
    found = operators(out)
    assert found["QuantizeLinear"] == found["DequantizeLinear"]
    assert halves(out / "model.onnx") == []
    assert all(verdict.ok for verdict in report.accuracy)


DYNAMIC = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        scale, zero = ops.choose_qparams.tensor(x, -128, 127, 1e-5, torch.int8)
        q = ops.quantize_per_tensor.tensor(x, scale, zero, -128, 127, torch.int8)
        return self.linear(ops.dequantize_per_tensor.tensor(q, scale, zero, -128, 127, torch.int8)), zero

def get_fwd_args():
    return ({inputs},)
"""


@pytest.mark.parametrize("target", ["trt86", "onnxruntime"])
@pytest.mark.parametrize(
    "inputs", ["torch.randn(2, 4)", "torch.rand(2, 4) + 1", "-torch.rand(2, 4)", "torch.zeros(2, 4)"]
)
def test_parameters_that_are_computed_at_run_time_need_no_plugin(run_prepare, target, inputs):
    report, out = run_prepare(PAIR + DYNAMIC.format(inputs=inputs), profile=target)
    assert report.rows == ()
    assert operators(out)["QuantizeLinear"] == 0
    assert all(verdict.ok for verdict in report.accuracy)


def test_where_the_target_takes_the_form_it_stays(run_prepare):
    _, out = run_prepare(call("pair(x, 0.03, 128, 0, 255, torch.uint8)"), profile="onnxruntime")
    assert operators(out) == {"QuantizeLinear": 1, "DequantizeLinear": 1}


@pytest.mark.parametrize("target", ["trt86", "onnxruntime"])
def test_a_narrower_range_is_kept_though_the_exporter_drops_it(run_prepare, target):
    # In the samples nothing is cut off at this scale: comparing values cannot find the loss.
    _, out = run_prepare(call("pair(x * 0.01, low=-8, high=7)"), profile=target)
    model = onnx.load(out / "model.onnx", load_external_data=False)
    (clip,) = [node for node in model.graph.node if node.op_type == "Clip"]
    known = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    known |= {
        node.output[0]: numpy_helper.to_array(node.attribute[0].t)
        for node in model.graph.node
        if node.op_type == "Constant"
    }
    assert [float(known[name]) for name in clip.input[1:]] == pytest.approx([-0.4, 0.35])


@pytest.mark.parametrize(
    "selector",
    ["call:quantized_decomposed.quantize_per_tensor", "call:quantized_decomposed.dequantize_per_tensor.default"],
)
@pytest.mark.parametrize("target", ["trt86", "onnxruntime"])
def test_half_a_pair_cannot_be_selected(run_prepare, selector, target):
    report, out = run_prepare(call("pair(x).exp()"), plugins=(f"yasp::Half={selector}",), profile=target)
    assert operators(out) == {"Half": 1, "Exp": 1}
    assert report.candidates[0].op_inventory == {"aten::mul": 2, "aten::round": 1, "aten::clamp": 1}
    assert report.rows[0].gaia_input is not None


def test_a_dry_run_says_what_would_be_rewritten(write_model, tmp_path):
    model = write_model(call("pair(pair(x, zero=7).exp(), zero=5)"))
    request = PrepareRequest(model=model, **{f"{kind}_out": tmp_path / kind for kind in ("onnx", "npz", "reference")})
    found = [(each.op, each.becomes, each.count) for each in dry_run(request).rewritten]
    assert ("quantize/dequantize pair", ("the same in float",), 2) in found
