"""Values that a target would change without a word: refused, with the place; what only means "to the end" is not."""

import pytest

from ytk_client.frontend import PrepareRequest, dry_run
from ytk_core.errors import UserError

pytestmark = pytest.mark.torch


def model(expression, inputs, buffer="torch.zeros(1)"):
    return f"""
class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("c", {buffer})

    def forward(self, x):
        return {expression}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x):
        return self.inner(x)

def get_fwd_args():
    return ({inputs},)
"""


INTEGERS = "torch.randint(1, 5, (2, 3))"
LOSSES = [
    ("(x * 5_000_000_000 % 7).float()", INTEGERS, "torch.zeros(1)", r"5000000000 .*2147483647"),
    ("x * x", "torch.full((2,), 100_000)", "torch.zeros(1)", r"'output' holds 10000000000"),
    ("(x + self.c).float()", INTEGERS, "torch.tensor([2**31, 3, 4])", r"the value 2147483648"),
    ("(x.double() * self.c * 1e-200).float()", "torch.randn(2)", "torch.tensor([1e200]).double()", r"infinite"),
]


@pytest.mark.parametrize(("expression", "inputs", "buffer", "words"), LOSSES)
def test_a_real_value_that_would_be_clamped_is_an_error(run_prepare, tmp_path, expression, inputs, buffer, words):
    buffer = buffer.replace("torch.tensor([1e200]).double()", "torch.tensor([1e200], dtype=torch.float64)")
    source = model(expression, inputs, buffer)
    with pytest.raises(UserError, match=words) as caught:
        run_prepare(source)
    assert caught.value.code == "target_loses"
    assert not (tmp_path / "out" / "model.onnx").exists()
    # An engine that keeps int64 and float64 takes the same model.
    report, _ = run_prepare(source, profile="onnxruntime")
    assert all(verdict.ok for verdict in report.accuracy)


def test_the_error_names_module_and_line(run_prepare):
    with pytest.raises(UserError, match=r"module inner, .*model\.py:\d+") as caught:
        run_prepare(model(*LOSSES[0][:2]))
    assert "2^31" in caught.value.hint


@pytest.mark.parametrize("expression", ["x[:, 1:9223372036854775807].float()", "torch.clamp(x.float(), max=1e30)"])
def test_a_sentinel_is_none(run_prepare, expression):
    report, _ = run_prepare(model(expression, INTEGERS))
    assert report.rows == ()


def test_a_dry_run_refuses_the_same(write_model, tmp_path):
    paths = {f"{kind}_out": tmp_path / kind for kind in ("onnx", "npz", "reference")}
    request = PrepareRequest(model=write_model(model(*LOSSES[0][:2])), **paths)
    with pytest.raises(UserError, match="5000000000"):
        dry_run(request)


def test_computing_in_a_smaller_type_is_told(run_prepare):
    report, _ = run_prepare(model("(x.double() * 2).exp().float()", "torch.randn(2)"))
    assert any("float64, which trt86 computes in float32" in note for note in report.notes)
