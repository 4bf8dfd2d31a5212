"""The comparison with torch: it catches a fault wherever it is, names it, and then nothing is written."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from ytk_client.frontend import compare, weights
from ytk_core.errors import NotAvailableError, UserError
from ytk_core.formats.reference import read_reference

pytestmark = pytest.mark.torch

EXAMPLES = Path(__file__).parents[3] / "examples"
DISTANCE = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.centres = nn.Parameter(torch.randn(60, 40))
    def forward(self, x):
        return torch.cdist(x, self.centres, compute_mode="donot_use_mm_for_euclid_dist").exp()

def get_fwd_args():
    return (torch.randn(5, 40),)
"""


def spoil(monkeypatch, name: str, amount: float) -> None:
    """Let the weight file hold another value than the model, as a faulty exporter would."""
    honest = weights._array

    def array(value):
        found = np.array(honest(value))
        if value.name == name:
            found.flat[0] += amount
        return found

    monkeypatch.setattr(weights, "_array", array)


def test_a_wrong_weight_is_caught_and_located(run_prepare, monkeypatch, tmp_path):
    spoil(monkeypatch, "encoder.4.weight", 0.05)
    with pytest.raises(UserError, match="differs from torch") as caught:
        run_prepare(EXAMPLES / "fold" / "model.py")
    assert caught.value.code == "export_differs"
    assert "'encoder.4'" in caught.value.message
    assert "aten.conv2d" in caught.value.message
    assert "max difference" in caught.value.message
    assert list(tmp_path.rglob("*")) == []


def test_a_wrong_weight_that_only_the_plugin_reads_is_caught(run_prepare, monkeypatch):
    """No evaluator runs the placeholder, so its weights are compared as they are."""
    spoil(monkeypatch, "centres", 0.5)
    with pytest.raises(UserError, match="'centres'") as caught:
        run_prepare(DISTANCE)
    assert caught.value.code == "export_differs"


def test_earlier_outputs_survive_a_failed_run(run_prepare, monkeypatch):
    _, out = run_prepare(DISTANCE)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    spoil(monkeypatch, "centres", 0.5)
    with pytest.raises(UserError):
        run_prepare(DISTANCE)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("only", ["onnxruntime", "openvino", "onnx.reference"])
def test_every_evaluator_accepts_the_examples(run_prepare, monkeypatch, only):
    factories = [(name, factory) for name, factory in compare._EVALUATORS if name == only]
    monkeypatch.setattr(compare, "_EVALUATORS", tuple(factories))
    report, _ = run_prepare(EXAMPLES / "volume_lifter" / "model.py", samples=1)
    assert report.evaluator == only
    assert all(verdict.ok for verdict in report.accuracy)


def test_without_any_evaluator_nothing_is_written(run_prepare, monkeypatch, tmp_path):
    monkeypatch.setattr(compare, "_EVALUATORS", ())
    with pytest.raises(NotAvailableError) as caught:
        run_prepare(EXAMPLES / "fold" / "model.py")
    assert caught.value.code == "no_evaluator"
    assert list(tmp_path.rglob("*")) == []


def test_half_precision_models_are_compared_in_their_own_tolerance(run_prepare):
    report, out = run_prepare(
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(32, 32).half()
            def forward(self, x):
                return self.layer(x.half()).float()

        def get_fwd_args():
            return (torch.randn(4, 32),)
        """
    )
    assert report.rows == ()
    assert read_reference(out / "model.reference.npz").outputs[0].dtype == "float32"
    model = onnx.load(str(out / "model.onnx"))
    assert {value.data_type for value in model.graph.initializer} == {onnx.TensorProto.FLOAT16}


def test_bfloat16_stays_inside_the_network_and_the_reference_holds_bits(run_prepare):
    """For a target that has bfloat16."""
    _, out = run_prepare(
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(64, 32).bfloat16()
            def forward(self, x):
                return self.layer(x)

        def get_fwd_args():
            return (torch.randn(4, 64).bfloat16(),)
        """,
        profile="trt1015",
    )
    reference = read_reference(out / "model.reference.npz")
    assert reference.inputs[0].dtype == "bfloat16"
    assert reference.samples[0].outputs["output"].dtype == np.uint16


def test_an_evaluator_that_loads_but_does_not_run_is_passed_over(run_prepare, monkeypatch):
    def broken(path: Path):
        evaluator = compare._OnnxRuntime(path)
        monkeypatch.setattr(evaluator, "run", lambda _feeds: 1 / 0)
        return evaluator

    monkeypatch.setattr(compare, "_EVALUATORS", (("onnxruntime", broken), ("onnx.reference", compare._OnnxReference)))
    report, _ = run_prepare(EXAMPLES / "fold" / "model.py", samples=1)
    assert report.evaluator == "onnx.reference"


# ---- small elements beside large ones ---------------------------------------------------------------------------------


@pytest.fixture
def trusting(monkeypatch):
    """Let torch's own translation of erfcx be used: 0 or NaN for a large argument."""
    from ytk_client.frontend import torch_adapter, translations

    monkeypatch.setattr(translations, "DISTRUSTED", ())
    # A registry of its own: others have put theirs into the one of the process.
    registry = torch_adapter._registry.__wrapped__(False)
    monkeypatch.setattr(torch_adapter, "torchlib_registry", lambda: registry)


SPREAD = (
    "class Model(nn.Module):\n    def forward(self, x):\n        return {}\n"
    "def get_fwd_args():\n    return (torch.linspace(-8, 9, 64).view(4, 16),)\n"
)


@pytest.mark.usefixtures("trusting")
def test_a_small_wrong_element_beside_a_huge_one_is_seen(run_prepare):
    report, _ = run_prepare(SPREAD.format("torch.special.erfcx(x)"), profile="onnxruntime", samples=1)
    [candidate] = report.candidates
    assert candidate.reason == "numerics"
    assert candidate.aten_op == "aten::special_erfcx"
    assert "further off than rounding explains" in candidate.unsupported_reason


@pytest.mark.parametrize(
    "amount",
    [1e-3, 0.05],
)
def test_a_seeded_fault_that_is_small_beside_the_largest_element_is_seen(run_prepare, monkeypatch, amount):
    """One weight of one channel, beside others whose values are in the hundred thousands."""
    source = """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(64, 64)
                with torch.no_grad():
                    self.layer.weight[2:] *= 1e5
            def forward(self, x):
                return self.layer(x)

        def get_fwd_args():
            return (torch.randn(16, 64),)
        """
    report, _ = run_prepare(source)
    assert report.rows == ()
    spoil(monkeypatch, "layer.weight", amount)
    with pytest.raises(UserError) as caught:
        run_prepare(source)
    assert caught.value.code == "export_differs"
    assert "further off than rounding explains" in caught.value.message
    assert "'layer'" in caught.value.message


@pytest.mark.parametrize(
    "body",
    [
        # Long sums that cancel, in many layers, at a scale of thousands.
        "        for w in self.w:\n            x = x @ w\n        return x",
        # Small differences of large numbers: all that is left is rounding.
        "        return (x * 1e4 + self.w[0][:4]) - x * 1e4, torch.cat([x * 1e4, (x + 1) ** 2 - x * x - 2 * x])",
        # No softmax below the least normal number: without AVX-512, onnxruntime's gives 0 there, and its logarithm -inf.
        "        return torch.cumsum(x @ self.w[0] * 300, 1), (x * 10).softmax(1).log(), torch.logsumexp(x * 300, 1)",
        "        return F.layer_norm(x * 1e3 + 1e4, (512,)) * 50, torch.exp(x * 9), torch.linalg.vector_norm(x, dim=1) * 1e3",
        "        return torch.erf(x) * 30, torch.tan(x * 3), F.gelu(x * 40), torch.sin(x * 1e3) * 99, x.var(1) * 1e3, F.silu(x * 99)",
        "        return (x.half() @ self.w[0].half() * 30).float(), torch.special.expm1(x * 5), torch.asinh(x * 1e3)",
    ],
)
def test_rounding_is_no_difference(run_prepare, body):
    report, _ = run_prepare(
        "class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.w = nn.ParameterList([torch.randn(512, 512) * 0.1 for _ in range(4)])\n"
        f"    def forward(self, x):\n{body}\n"
        "def get_fwd_args():\n    return (torch.randn(4, 512),)\n",
        samples=3,
        profile="onnxruntime",
    )
    assert report.rows == ()


def test_what_the_target_refuses_within_an_operator_is_carved(run_prepare):
    """ONNX Runtime takes the loss apart, and has no name and no bfloat16 for one of the parts."""
    report, _ = run_prepare(
        "class Model(nn.Module):\n    def forward(self, x, y):\n        return F.cross_entropy(x, y)\n"
        "def get_fwd_args():\n    return (torch.randn(2, 3).bfloat16(), torch.tensor([0, 2]))\n",
        profile="onnxruntime",
    )
    assert [candidate.aten_op for candidate in report.candidates] == ["aten::cross_entropy_loss"]


def test_bfloat16_graphs_run_in_the_engine_they_are_for(run_prepare):
    """What fails only when it runs shows there, and nowhere else."""
    report, _ = run_prepare(
        "class Model(nn.Module):\n    def forward(self, x, at):\n        y = x.reshape(2, 2).reshape(4)\n"
        "        return y.scatter_add(0, at, y), y\n"
        "def get_fwd_args():\n    return (torch.randn(4).bfloat16(), torch.tensor([0, 2, 2, 1]))\n",
        profile="onnxruntime",
    )
    assert report.evaluator == "onnxruntime"
    assert [candidate.aten_op for candidate in report.candidates] == ["aten::scatter_add"]
