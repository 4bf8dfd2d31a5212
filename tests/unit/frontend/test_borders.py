"""Types that engines have no word for, inputs that forward writes to, and memory that it does not set."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from ytk_core.errors import UserError
from ytk_core.formats.reference import read_reference

pytestmark = pytest.mark.torch


def model(expression: str, args: str, *, more: str = "", names: str = "x") -> str:
    return (
        f"class Model(nn.Module):\n    def forward(self, {names}):\n{more}        return {expression}\n"
        f"def get_fwd_args():\n    return ({args},)\n"
    )


def outcome(run_prepare, source: str, **options):
    """Prepare for ONNX Runtime, run the graph there on the reference, and give report, reference and graph."""
    report, out = run_prepare(source, profile="onnxruntime", **options)
    reference = read_reference(out / "model.reference.npz")
    if not report.rows:
        session = onnxruntime.InferenceSession(str(out / "model.onnx"), providers=["CPUExecutionProvider"])
        wanted = {each.name for each in session.get_inputs()}
        for sample in reference.samples:
            names = list(sample.outputs)
            got = session.run(names, {name: each for name, each in sample.inputs.items() if name in wanted})
            for array, name in zip(got, names, strict=True):
                np.testing.assert_allclose(array, sample.outputs[name], rtol=1e-4, atol=1e-5)
    return report, reference, onnx.load(str(out / "model.onnx"))


def test_complex_inputs_and_outputs_are_pairs_of_real_numbers(run_prepare):
    source = model(
        "x * torch.conj(y) + x.abs()", "torch.randn(3, 4) + 2j, torch.randn(4, dtype=torch.cfloat)", names="x, y"
    )
    report, reference, _ = outcome(run_prepare, source, samples=3)
    assert report.rows == ()
    assert [(each.name, each.dtype, each.shape) for each in reference.inputs] == [
        ("x", "float32", (3, 4, 2)),
        ("y", "float32", (4, 2)),
    ]
    assert reference.outputs[0].shape == (3, 4, 2)
    first, second, _ = (sample.inputs["x"] for sample in reference.samples)
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(second[..., 1], 2)  # a constant part stays one


def test_a_complex_input_can_enter_a_region(run_prepare):
    report, _, _ = outcome(run_prepare, model("F.silu(x)", "torch.randn(3, dtype=torch.cfloat)"))
    assert report.candidates[0].cannot_be_plugin is None
    assert report.candidates[0].node_inputs[0].dtype == "float32"


@pytest.mark.parametrize(
    ("dtype", "common"),
    [("int16", "int32"), ("uint16", "int32"), ("uint32", "int64"), ("uint64", "int64"), ("float8_e5m2", "float32")],
)
def test_rare_types_cross_the_border_in_a_common_one(run_prepare, dtype, common):
    source = model(
        f"(x.to(torch.int32) + 1).float(), x.to(torch.int32).to(torch.{dtype})",
        f"torch.tensor([3, 1, 4]).to(torch.{dtype})",
    )
    _, reference, _ = outcome(run_prepare, source, samples=3)
    assert reference.inputs[0].dtype == common
    assert [each.dtype for each in reference.outputs] == ["float32", common]
    np.testing.assert_array_equal(reference.samples[0].inputs["x"], [3, 1, 4])
    np.testing.assert_array_equal(reference.samples[0].outputs["output_1"], [3, 1, 4])


def test_an_input_that_forward_writes_to_has_its_new_value_as_an_output(run_prepare):
    more = "        cache[:, 1] = x\n        cache.mul_(2)\n"
    source = model("cache.sum(1)", "torch.ones(2), torch.arange(6.0).view(2, 3)", more=more, names="x, cache")
    _, reference, graph = outcome(run_prepare, source)
    assert [value.name for value in graph.graph.output] == ["output", "cache_updated"]
    sample = reference.samples[0]
    np.testing.assert_array_equal(sample.inputs["cache"], [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(sample.outputs["cache_updated"], [[0, 2, 4], [6, 2, 10]])


def test_batch_norm_in_training_form_gives_the_new_statistics_out(run_prepare):
    source = model(
        "F.batch_norm(x, mean, var, training=True, momentum=0.5)",
        "torch.randn(4, 3), torch.zeros(3), torch.ones(3)",
        names="x, mean, var",
    )
    _, reference, _ = outcome(run_prepare, source)
    assert [each.name for each in reference.outputs] == ["output", "mean_updated", "var_updated"]
    sample = reference.samples[0]
    np.testing.assert_allclose(sample.outputs["mean_updated"], sample.inputs["x"].mean(0) / 2, rtol=1e-5, atol=1e-6)


def test_a_buffer_that_forward_writes_to_is_refused_still(run_prepare):
    source = (
        "class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.norm = nn.BatchNorm1d(3)\n"
        "    def forward(self, x):\n        self.norm.train()\n        return self.norm(x)\n"
        "def get_fwd_args():\n    return (torch.randn(4, 3),)\n"
    )
    with pytest.raises(UserError) as caught:
        run_prepare(source)
    assert caught.value.code == "model_mutates_state"
    assert "running_mean" in caught.value.message


def test_memory_that_is_all_overwritten_is_no_matter(run_prepare):
    more = "        y = torch.empty(2, 3)\n        y[0], y[1] = x, -x\n"
    report, _, _ = outcome(run_prepare, model("y", "torch.randn(3)", more=more))
    assert report.notes == ()


@pytest.mark.parametrize("unset", ["torch.empty_like(x)", "x.new_empty(3)", "torch.empty_strided((3,), (2,))"])
def test_an_output_that_depends_on_unset_memory_is_told(run_prepare, unset):
    report, reference, _ = outcome(run_prepare, model(f"x + {unset}", "torch.randn(3)"))
    assert "does not set" in report.notes[0]
    sample = reference.samples[0]
    np.testing.assert_array_equal(sample.outputs["output"], sample.inputs["x"])


@pytest.mark.parametrize(
    "expression",
    [
        "torch.diagonal_scatter(x, y[0], 1), x.diagonal_scatter(x[0], 0, 1, 0)",
        "F.cross_entropy(x[0], torch.tensor(1)), F.cross_entropy(x[0], torch.tensor(2), reduction='none')",
        "F.cross_entropy(x[0], x[1].softmax(0), label_smoothing=0.1)",
        "torch.masked_select(x, x > 0), torch.masked_select(x[0], x > 0), x[x > 9]",
        "torch.unique_consecutive((x > 0).int(), return_inverse=True, return_counts=True)",
    ],
)
def test_operators_with_a_form_of_ours_are_native(run_prepare, expression):
    source = model(expression, "torch.randn(3, 3), torch.randn(2, 2)", names="x, y")
    report, _, _ = outcome(run_prepare, source, samples=1)
    assert report.rows == ()
