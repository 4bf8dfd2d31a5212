"""A fixed part of the conformance run, in this process, and proofs that its judge and its runner see what they must."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from ytk_client.frontend import comparison, torch_adapter
from ytk_core.targets import load_profile

from conformance import opdb, page, results
from conformance.examine import Call, examine
from conformance.outcome import EntryFinding, Outcome, SampleFinding
from conformance.pool import Job, Pool

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

NATIVE = [
    "add",
    "einsum",
    "softmax_with_dtype",
    "nn_functional_conv2d",
    "nn_functional_group_norm",
    "nn_functional_interpolate_bilinear",
    "gather",
    "fft_rfft",
    "polar",
    "nonzero",
    "argwhere",
    "bitwise_right_shift",
    "nn_functional_max_unpool2d",
]
CARVED = [
    "cdist",
    "mode",
    "linalg_svd",
    "lgamma",
    "igamma",
    "nn_functional_avg_pool2d",
    "linalg_eig",
]
REFUSED = ["to_sparse", "sparse_sampled_addmm", "item"]
NOISY = {"randn_like": Outcome.NATIVE, "exponential": Outcome.NATIVE, "svd_lowrank": Outcome.CARVED}
ON_TRT86 = {
    "fft_rfft": Outcome.CARVED,
    "bitwise_and": Outcome.CARVED,
    "add": Outcome.NATIVE,
    "nonzero": Outcome.NATIVE,
    "masked_select": Outcome.NATIVE,
    "unique": Outcome.NATIVE,
    "bfloat16": Outcome.CARVED,
    "bincount": Outcome.REFUSED,
}
IN_FLOAT64 = {"argwhere": Outcome.NATIVE, "full": Outcome.NATIVE, "index_fill": Outcome.NATIVE, "item": Outcome.REFUSED}


def finding(name: str, profile: str, samples: int = 1, wanted: torch.dtype = torch.float32) -> EntryFinding:
    entry = opdb.entries()[name]
    dtype = opdb.dtype_for(entry, wanted)
    assert dtype is not None
    target = load_profile(profile)
    found = [examine(call, call.tensors, target) for call in opdb.calls(entry, dtype, samples)]
    return EntryFinding(name=name, dtype="float32", samples=tuple(found))


@pytest.mark.parametrize(
    ("profile", "name", "outcome"),
    [
        *(("onnxruntime", name, Outcome.NATIVE) for name in NATIVE),
        *(("onnxruntime", name, Outcome.CARVED) for name in CARVED),
        *(("onnxruntime", name, Outcome.REFUSED) for name in REFUSED),
        *(("trt86", name, outcome) for name, outcome in ON_TRT86.items()),
    ],
)
def test_entry(profile, name, outcome):
    found = finding(name, profile)
    assert found.outcome is outcome, found.samples
    assert {sample.opset for sample in found.samples} <= {0, 17 if profile == "trt86" else 18}


@pytest.mark.parametrize(("name", "outcome"), sorted(IN_FLOAT64.items()))
def test_entry_in_float64(name, outcome):
    found = finding(name, "onnxruntime", wanted=torch.float64)
    assert found.outcome is outcome, found.samples


@pytest.mark.parametrize(("name", "outcome"), sorted(NOISY.items()))
def test_what_draws_is_examined_with_its_noise_as_input(name, outcome):
    found = finding(name, "onnxruntime")
    assert found.outcome is outcome, found.samples
    assert found.samples[0].random


def test_what_is_refused_for_other_reasons_is_not_called_random():
    assert not finding("item", "onnxruntime").samples[0].random


# ---- the judge -------------------------------------------------------------------------------------------------------


def test_the_judge_sees_a_wrong_graph_that_prepare_is_content_with(monkeypatch):
    monkeypatch.setattr(comparison.Comparison, "run", lambda *_args: [])
    call = Call(lambda x: functional.avg_pool2d(x, 3, divisor_override=2), [torch.randn(1, 2, 7, 7)], {})
    found = examine(call, call.tensors, load_profile("onnxruntime"))
    assert (found.outcome, found.code) == (Outcome.WRONG, "judge")
    assert "values differ" in found.reason


def test_the_judge_sees_an_exception_that_is_no_error_of_ours(monkeypatch):
    monkeypatch.setattr(torch_adapter, "optimize", lambda _model: 1 / 0)
    call = Call(torch.sin, [torch.randn(3)], {})
    found = examine(call, call.tensors, load_profile("onnxruntime"))
    assert (found.outcome, found.code) == (Outcome.CRASH, "ZeroDivisionError")


def test_the_judge_sees_a_region_that_computes_something_else(monkeypatch):
    from conformance import examine as examining

    honest = examining.regions.export_body
    monkeypatch.setattr(
        examining.regions,
        "export_body",
        lambda body, inputs, axes: honest(body, [each + 1 for each in inputs], axes) and _Off(),
    )
    call = Call(torch.special.i0, [torch.randn(3)], {})
    found = examine(call, call.tensors, load_profile("onnxruntime"))
    assert (found.outcome, found.code) == (Outcome.WRONG, "region_differs")


class _Off:
    def module(self):
        return lambda x: x + 1


# ---- the runner ------------------------------------------------------------------------------------------------------


def test_the_runner_survives_an_operator_that_dies_and_one_that_hangs():
    pool = Pool(1, limit_s=5.0, source="conformance.faulty")
    found: dict[str, EntryFinding] = {}
    try:
        jobs = [Job(name, "float32", "onnxruntime", 1) for name in ("dies", "agrees", "spins", "agrees")]
        pool.run(jobs, lambda each: found.setdefault(each.name, each) and None)
    finally:
        pool.close()
    assert {name: each.outcome for name, each in found.items()} == {
        "dies": Outcome.CRASH,
        "agrees": Outcome.NATIVE,
        "spins": Outcome.HANG,
    }


# ---- results and page ------------------------------------------------------------------------------------------------


def test_an_entry_is_as_good_as_its_worst_captured_sample():
    def entry(*outcomes: Outcome) -> Outcome:
        samples = tuple(SampleFinding(outcome=outcome) for outcome in outcomes)
        return EntryFinding(name="x", dtype="float32", samples=samples).outcome

    assert entry(Outcome.NATIVE, Outcome.CARVED) is Outcome.CARVED
    assert entry(Outcome.BLOCKED, Outcome.NATIVE) is Outcome.NATIVE
    assert entry(Outcome.REFUSED, Outcome.WRONG, Outcome.NATIVE) is Outcome.WRONG
    assert entry() is Outcome.BLOCKED


def test_results_survive_writing(tmp_path):
    sample = SampleFinding(outcome=Outcome.CARVED, inputs="float32[2]", cpu_s=1.5, opset=18)
    run = results.Run(
        profile="trt86",
        dtype="float32",
        samples=1,
        versions={"torch": "2"},
        entries=(EntryFinding(name="x", dtype="float32", samples=(sample,)),),
    )
    results.write(tmp_path / "run.json", run)
    read = results.read(tmp_path / "run.json")
    assert read.entries[0].samples[0].inputs == "float32[2]"
    assert results.counts(read) == results.counts(run)


def test_the_page_is_that_of_the_results():
    assert page.PAGE.read_text(encoding="utf-8") == page.render(page.load()), "run `make support`"


def test_the_committed_results_hold_nothing_that_must_not_happen():
    for run in page.load():
        counts = results.counts(run)
        assert not any(counts[outcome] for outcome in (Outcome.WRONG, Outcome.CRASH, Outcome.HANG)), run.profile
