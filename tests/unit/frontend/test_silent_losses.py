"""What the exporter translates into something else is found by numbers and carved; every loss known so far has a case."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from ytk_client.frontend import compare, faithful, torch_adapter
from ytk_core.dtypes import DType
from ytk_core.errors import UserError
from ytk_core.formats.prepare_outputs import CandidateReason, read_candidates
from ytk_core.formats.reference import read_reference
from ytk_core.formats.weights_npz import read_array

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0")]


def model(body: str, args: str, setup: str = "") -> str:
    lines = [
        "class Model(nn.Module):",
        "    def __init__(self):",
        "        super().__init__()",
        *(f"        {line}" for line in setup.splitlines()),
        "    def forward(self, x):",
        *(f"        {line}" for line in body.splitlines()),
        "def get_fwd_args():",
        f"    return ({args},)",
    ]
    return "\n".join(lines)


def region_runs(out: Path, name: str) -> None:
    program = torch.export.load(out / "plugin_candidates" / f"{name}.pt2")
    inputs = torch.load(out / "plugin_candidates" / f"{name}.inputs.pt", weights_only=True)
    result = program.module()(*inputs)
    result = result[0] if isinstance(result, tuple) else result
    want = read_array(out / "plugin_candidates" / f"{name}.io.npz", "site0/out0")
    np.testing.assert_allclose(result.numpy(), want, rtol=1e-5, atol=1e-5)


NORM = "return F.batch_norm(x, self.mean.clone(), self.var.clone(), training=True)"
NORM_STATE = """self.register_buffer("mean", torch.randn(3))
self.register_buffer("var", torch.rand(3) + 1)"""
BILINEAR = "return F.interpolate(x, size=(4, 5), mode='bilinear', antialias=True, align_corners=True)"


@pytest.mark.parametrize(
    ("name", "source", "seed", "profile"),
    [
        (name, source, seed, profile)
        for name, source in (
            ("AvgPool2d", model("return F.avg_pool2d(x.relu(), 3, divisor_override=2) + 1", "torch.randn(1, 2, 7, 7)")),
            ("UpsampleBilinear2dAa", model(BILINEAR, "torch.randn(1, 2, 9, 9)")),
            ("NativeBatchNormLegitFunctional", model(NORM, "torch.randn(2, 3, 4, 4)", NORM_STATE)),
            ("Var", model("return x.sum() + x[:, :0].var()", "torch.randn(2, 3)")),
            ("Std", model("return x + x[:, :0].std(dim=1, keepdim=True)", "torch.randn(2, 3)")),
        )
        for seed, profile in ((0, "onnxruntime"), (7, "onnxruntime"), (1, "openvino"))
    ],
)
def test_an_unfaithful_translation_is_carved(run_prepare, name, source, seed, profile):
    report, out = run_prepare(source, seed=seed, profile=profile, samples=3)
    assert [row.name for row in report.rows] == [name]
    [candidate] = read_candidates(out / "plugin_candidates" / "candidates.json")
    assert candidate.reason is CandidateReason.NUMERICS
    assert "differs from torch" in candidate.unsupported_reason
    assert candidate.source_line.startswith(str(out.parent / "model.py"))
    assert all(verdict.ok for verdict in report.accuracy)
    region_runs(out, name)


@pytest.mark.parametrize(
    "expression", ["torch.nonzero(x.sum())", "torch.argwhere(x.sum())", "torch.nonzero(x.sum() * 0)"]
)
def test_nonzero_of_a_number_keeps_torchs_shape(run_prepare, expression):
    """ONNX's NonZero gives such a result one column, torch none; its length is known only when it ran, so no plugin helps."""
    report, _ = run_prepare(model(f"return {expression}", "torch.randn(2, 3)"), profile="onnxruntime", samples=3)
    assert report.rows == ()
    assert all(verdict.ok for verdict in report.accuracy)


def test_several_unfaithful_operators_are_carved_one_after_the_other(run_prepare):
    body = "y = F.avg_pool2d(x, 3, divisor_override=2)\nreturn F.avg_pool2d(y.relu(), 2, divisor_override=5)"
    report, _ = run_prepare(model(body, "torch.randn(1, 2, 9, 9)"), profile="onnxruntime")
    assert [row.sites for row in report.rows] == [1, 1]
    assert all(verdict.ok for verdict in report.accuracy)


def test_the_number_of_rounds_is_bounded(run_prepare, monkeypatch):
    monkeypatch.setattr(faithful, "MAX_ROUNDS", 0)
    with pytest.raises(UserError, match="avg_pool2d") as caught:
        run_prepare(model("return F.avg_pool2d(x, 3, divisor_override=2)", "torch.randn(1, 2, 9, 9)"))
    assert caught.value.code == "export_differs"


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_wrong_translation_of_any_operator_is_found_and_carved(run_prepare, monkeypatch, seed):
    """The detector itself: a translation that drops a constant, as the known losses drop an attribute."""
    honest = torch_adapter.optimize

    def optimize(graph):
        graph = honest(graph)
        for node in graph.graph:
            if node.op_type == "Erf":
                node.op_type = "Tanh"
        return graph

    monkeypatch.setattr(torch_adapter, "optimize", optimize)
    report, out = run_prepare(model("return x.erf().relu() * 2", "torch.randn(3, 4)"), profile="onnxruntime", seed=seed)
    assert [row.name for row in report.rows] == ["ErfRegion"]
    [candidate] = read_candidates(out / "plugin_candidates" / "candidates.json")
    assert candidate.reason is CandidateReason.NUMERICS
    region_runs(out, "ErfRegion")


def test_two_sites_that_compute_the_same_are_one_node(run_prepare):
    """The optimiser merges them; what is left is counted, not what was carved."""
    report, out = run_prepare(
        model("return torch.special.i0(x) + 1, torch.special.i0(x) * 2", "torch.randn(3)"), profile="onnxruntime"
    )
    [row] = report.rows
    assert row.sites == 1
    assert all(verdict.ok for verdict in report.accuracy)
    region_runs(out, row.name)


def test_an_output_of_a_type_that_no_file_of_ours_has_is_refused(run_prepare):
    with pytest.raises(UserError) as caught:
        run_prepare(model("return x.abs().to(torch.float8_e8m0fnu)", "torch.randn(3)"))
    assert caught.value.code == "bad_dtype"


def test_a_complex_output_becomes_pairs_of_numbers(run_prepare):
    report, out = run_prepare(model("return torch.fft.rfft(x), x", "torch.randn(6)"), profile="onnxruntime", samples=2)
    assert report.rows == ()
    reference = read_reference(out / "model.reference.npz")
    assert [each.shape for each in reference.outputs] == [(4, 2), (6,)]
    given = torch.from_numpy(reference.samples[1].inputs["x"])
    np.testing.assert_allclose(
        reference.samples[1].outputs["output_0"], torch.view_as_real(torch.fft.rfft(given)), atol=1e-6
    )


def test_a_sparse_output_is_refused(run_prepare):
    with pytest.raises(UserError, match="sparse") as caught:
        run_prepare(model("return x.to_sparse()", "torch.randn(3)"), profile="onnxruntime")
    assert caught.value.code == "model_bad_output"


def test_the_type_of_a_promoted_output_is_torchs(run_prepare):
    """Type promotion computes in float32 and converts back; the exporter's signature names what comes before that."""
    report, out = run_prepare(model("return x.abs()", "torch.randn(3).half()"), profile="onnxruntime")
    assert all(verdict.ok for verdict in report.accuracy)
    [output] = onnx.load(str(out / "model.onnx")).graph.output
    assert output.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16


def test_a_graph_with_the_right_values_in_another_type_is_no_match():
    values = np.arange(3, dtype=np.float32)
    assert compare.judge("y", values, values, dtype=DType.FLOAT32).ok
    verdict = compare.judge("y", values, values.astype(np.float16), dtype=DType.FLOAT32)
    assert not verdict.ok
    assert "float16" in verdict.note
