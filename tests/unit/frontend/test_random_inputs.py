"""Models that draw random numbers: refused with the ways out, or given their noise as inputs."""

from __future__ import annotations

import json
import random

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from ytk_client.frontend.growth import is_random
from ytk_client.frontend.random_inputs import METADATA_KEY
from ytk_core.errors import UserError
from ytk_core.formats.reference import read_reference

pytestmark = pytest.mark.torch

ARGS = "def get_fwd_args():\n    return (torch.randn(2, 6, 4),)\n"


def forward(expression: str) -> str:
    return f"class Model(nn.Module):\n    def forward(self, x):\n        return {expression}\n{ARGS}"


VAE = """
class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.spread = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        mean, spread = self.mean(x), self.spread(x)
        return mean + torch.exp(0.5 * spread) * torch.randn_like(mean)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = Encoder(), nn.Linear(3, 4)

    def forward(self, x, *, guide):
        latent = F.dropout(self.encoder(x), 0.25, training=True)
        return {"out": self.decoder(latent) + guide, "start": torch.empty(2, 3).uniform_(-1, 1)}

def get_fwd_args():
    return {"x": torch.randn(2, 4), "guide": torch.randn(4)}
"""


@pytest.mark.parametrize(
    ("expression", "operator"),
    [
        ("torch.rand_like(x) + x", "aten.rand_like"),
        ("F.dropout(x, 0.5, training=True)", "dropout"),
        ("torch.multinomial(x.abs().flatten(1), 2)", "aten.multinomial"),
        # Two runs of these agree: what counts is that the operator draws.
        ("torch.rand_like(x) * 0 + x", "aten.rand_like"),
        ("torch.randint(1, 2, (6, 4)) * x", "aten.randint"),
        ("torch.cdist(x + torch.randn_like(x), x)", "aten.randn_like"),
    ],
)
def test_a_model_that_draws_is_refused_with_both_ways_out(run_prepare, tmp_path, expression, operator):
    with pytest.raises(UserError) as caught:
        run_prepare(forward(expression))
    error = caught.value
    assert error.code == "random_draw"
    assert operator in error.message
    assert "'(top)'" in error.message
    assert "model.py:7" in error.message
    assert ".eval()" in error.hint
    assert "--random-inputs" in error.hint
    assert not (tmp_path / "out").exists()


def test_the_module_that_draws_is_named(run_prepare):
    with pytest.raises(UserError) as caught:
        run_prepare(VAE)
    assert "aten.randn_like (2 more after it) in module 'encoder' at" in caught.value.message
    assert "model.py:13" in caught.value.message


def test_dropout_in_eval_mode_is_not_random(run_prepare):
    report, _ = run_prepare(
        "class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.all = nn.Sequential(nn.Dropout(0.5), nn.AlphaDropout(0.5), nn.RReLU(), nn.Dropout1d(0.2))\n"
        "        self.lstm = nn.LSTM(4, 4, 2, dropout=0.5)\n"
        "        self.attention = nn.MultiheadAttention(4, 2, dropout=0.3)\n"
        "    def forward(self, x):\n        y = self.lstm(self.all(x))[0]\n"
        "        return self.attention(y, y, y)[0] + F.scaled_dot_product_attention(x, x, x, dropout_p=0.0)\n" + ARGS,
        samples=1,
    )
    assert report.random_inputs == ()


def test_the_mark_of_an_operator_decides_not_its_values():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    aten = torch.ops.aten

    def call(target, *args):
        return is_random(graph.call_function(target, args))

    assert call(aten.rand_like.default, x)
    assert call(aten.bernoulli_.float, x, 0.0)
    assert call(aten.dropout.default, x, 0.5, True)
    assert not call(aten.dropout.default, x, 0.5, False)
    assert not call(aten.dropout.default, x, 0.0, True)
    assert call(aten.scaled_dot_product_attention.default, x, x, x, None, 0.1)
    assert not call(aten.scaled_dot_product_attention.default, x, x, x)
    assert not call(aten.sin.default, x)


# ---- noise as inputs -------------------------------------------------------------------------------------------------


def run(path, feeds):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return dict(zip([each.name for each in session.get_outputs()], session.run(None, dict(feeds)), strict=True))


def test_noise_is_a_named_input_and_the_graph_gives_what_torch_gives_for_it(run_prepare):
    report, out = run_prepare(VAE, random_inputs=True, samples=3)
    assert [(each["name"], each["distribution"], each["shape"]) for each in report.random_inputs] == [
        ("noise_0", "normal (0, 1)", [2, 3]),
        ("noise_1", "uniform [0, 1)", [2, 3]),
        ("noise_2", "uniform [0, 1)", [2, 3]),
    ]
    first = report.random_inputs[0]
    assert (first["op"], first["module_path"]) == ("aten.randn_like", "encoder")
    assert "model.py:13" in first["source_line"]
    model = onnx.load(str(out / "model.onnx"))
    assert [value.name for value in model.graph.input] == ["x", "guide", "noise_0", "noise_1", "noise_2"]
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    assert json.loads(metadata[METADATA_KEY]) == list(report.random_inputs)
    assert not {node.op_type for node in model.graph.node} & {"RandomNormalLike", "RandomUniformLike", "Bernoulli"}

    reference = read_reference(out / "model.reference.npz")
    assert reference.info["random_inputs"] == list(report.random_inputs)
    for sample in reference.samples:
        assert sample.inputs["noise_1"].min() >= 0
        assert sample.inputs["noise_1"].max() < 1
        got = run(out / "model.onnx", sample.inputs)
        for name, want in sample.outputs.items():
            np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(got["start"], 2 * sample.inputs["noise_2"] - 1, rtol=1e-6, atol=1e-6)
    noises = [sample.inputs["noise_0"] for sample in reference.samples]
    assert not np.array_equal(noises[0], noises[1])
    # Without noise the latent is its mean, with half of it dropped: the graph really depends on it.
    still = reference.samples[0].inputs | {"noise_0": np.zeros((2, 3), np.float32)}
    assert not np.allclose(run(out / "model.onnx", still)["out"], reference.samples[0].outputs["out"])


def test_a_region_beside_a_draw_is_carved_and_its_record_is_that_of_the_noise(run_prepare):
    report, _ = run_prepare(
        forward("torch.cdist(x + torch.randn_like(x), x) + torch.bernoulli(torch.full((6,), 0.5))"), random_inputs=True
    )
    assert [row.name for row in report.rows] == ["CdistForward"]
    assert len(report.random_inputs) == 2
    assert report.candidates[0].cannot_be_plugin is None


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("torch.poisson(x.abs())", "no known function of noise: aten.poisson"),
        ("x.new_empty(3, dtype=torch.int64).random_()", "the whole range of its type"),
        ("torch.rand_like(x) + random.random() * x", "computes something else than the model"),
    ],
)
def test_what_cannot_be_an_input_is_refused_with_the_flag_too(run_prepare, expression, words):
    assert random  # the model file imports it itself
    with pytest.raises(UserError) as caught:
        run_prepare("import random\n" + forward(expression), random_inputs=True)
    assert caught.value.code == "random_draw"
    assert words in caught.value.message


def test_a_draw_in_a_branch_is_refused(run_prepare):
    source = "def noisy(x):\n    return x + torch.rand_like(x)\ndef plain(x):\n    return x.clone()\n" + forward(
        "torch.cond(x.sum() > 0, noisy, plain, (x,))"
    )
    for flag in (False, True):
        with pytest.raises(UserError) as caught:
            run_prepare(source, random_inputs=flag)
        assert caught.value.code == "random_draw"


def test_noise_of_a_dynamic_shape_is_refused(run_prepare):
    with pytest.raises(UserError) as caught:
        run_prepare(forward("x + torch.randn_like(x)"), random_inputs=True, dynamic=("x:0=2,4,8",))
    assert caught.value.code == "random_draw"
    assert "--dynamic" in caught.value.message


def test_a_model_that_seeds_itself_gets_noise_inputs_all_the_same(run_prepare):
    source = "class Model(nn.Module):\n    def forward(self, x):\n        torch.manual_seed(3)\n        return x + torch.rand_like(x)\n"
    report, _ = run_prepare(source + ARGS, random_inputs=True)
    assert len(report.random_inputs) == 1


def test_the_flag_changes_nothing_for_a_model_that_does_not_draw(run_prepare):
    report, out = run_prepare(forward("x * 2"), random_inputs=True)
    assert report.random_inputs == ()
    assert "random_inputs" not in read_reference(out / "model.reference.npz").info
