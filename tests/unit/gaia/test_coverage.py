"""A fixed slice of torch's operator database through ``ytk_gaia.coverage``: each entry gives the outcome that is written here."""

from __future__ import annotations

import json
import warnings

import pytest
from click.testing import CliRunner

from ytk_gaia import coverage, coverage_forms

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

SLICE = {
    "cumsum": coverage.MATCH,
    "erfinv": coverage.MATCH,
    "index_fill": coverage.MATCH,
    "linalg.inv": coverage.MATCH,
    "scatter_reduce.amax": coverage.MATCH,
    "special.zeta": coverage.MATCH,
    "special.airy_ai": coverage.MATCH,
    "special.hermite_polynomial_h": coverage.MATCH,
    "linalg.eigvals": coverage.NO_KERNEL,
}


def test_a_fixed_slice_of_the_database():
    ops = coverage.database()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcomes = list(coverage.measure(list(SLICE), ops, coverage_forms.form("cpp")))
    assert {o.entry: o.status for o in outcomes} == SLICE, outcomes
    found = coverage.summary(outcomes, len(ops))
    assert found["captured"] == len(SLICE)
    assert found["match_share"] == sum(s == coverage.MATCH for s in SLICE.values()) / len(SLICE)
    assert all(o.reason for o in outcomes if o.status != coverage.MATCH)


CUDA_SLICE = {
    "add": coverage.MATCH,
    "cumsum": coverage.MATCH,
    "nn.functional.layer_norm": coverage.MATCH,
    "index_add": coverage.MATCH,
    "scatter_reduce.amax": coverage.MATCH,
    "sort": coverage.MATCH,
    "argmax": coverage.MATCH,
    "erfinv": coverage.MATCH,
    "special.airy_ai": coverage.NO_KERNEL,
}


def test_a_fixed_slice_compiles_for_a_gpu_and_passes_on_the_emulation():
    ops = coverage.database()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcomes = list(coverage.measure(list(CUDA_SLICE), ops, coverage_forms.form("cuda"), "-O0"))
    assert {o.entry: o.status for o in outcomes} == CUDA_SLICE, outcomes


def test_a_wrong_kernel_is_wrong(monkeypatch):
    """A seeded fault: the printer adds where it should subtract."""
    from ytk_gaia.generator.loop_printer import LoopPrinter

    monkeypatch.setattr(LoopPrinter, "sub", lambda self, a, b: self._default("add", (a, b), {}), raising=False)
    (outcome,) = coverage.measure(["sub"], coverage.database(), coverage_forms.form("cpp"), "-O0")
    assert outcome.status == coverage.WRONG
    assert "off by" in outcome.reason


def test_results_are_kept_and_a_budget_ends_the_run(tmp_path):
    out = tmp_path / "coverage.json"
    kept = coverage.Outcome("abs", coverage.MATCH)
    lost = coverage.Outcome("linalg.svd", coverage.NO_KERNEL, "aten._linalg_svd")
    out.write_text(json.dumps(coverage.summary([kept, lost], 2)))
    done = CliRunner().invoke(coverage.main, [str(out), "--only", "^(abs|linalg.svd|neg)$", "--budget", "-1"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout.splitlines()[-1])["measured"] == 2
    assert coverage._earlier(out, retry=True) == [kept]
