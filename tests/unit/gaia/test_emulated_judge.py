"""The judge of CUDA kernels without a GPU: a right kernel passes with static facts, every fault gets its named reason."""

from __future__ import annotations

import pytest

from ytk_core.archspec import ArchSpec
from ytk_gaia.evaluator import emulated
from ytk_gaia.evaluator.options import JudgeOptions
from ytk_gaia.evaluator.verdicts import Verdict

from fakes import cuda_kernels
from fakes.judge_limits import BUDGET_S, PATIENT, end_soon

ORIN = ArchSpec.parse("arm64-sm87-dos6010-cu114-trt86")


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory):
    """All kernels in one evaluation: a bad one must not take the others down."""
    patch = pytest.MonkeyPatch()
    end_soon(patch, emulated, "endless")
    candidates = {fault.name: cuda_kernels.faulty(fault) for fault in cuda_kernels.FAULTS}
    candidates |= {"right": cuda_kernels.right()}
    options = JudgeOptions(budget_s=BUDGET_S, mode="optional", limits=PATIENT)
    try:
        workdir = tmp_path_factory.mktemp("emulated")
        yield emulated.evaluate({0: cuda_kernels.make_task()}, candidates, ORIN, workdir, options)
    finally:
        patch.undo()


def result(evaluation, name):
    return next(c for c in evaluation.candidates if c.id == name)


def test_a_right_kernel_passes_and_nothing_is_measured(evaluation):
    found = result(evaluation, "right")
    assert (found.verdict, found.reason) == (Verdict.PASSED, "")
    assert found.median_ms is None
    assert found.times_ms == ()
    assert evaluation.emulated
    assert "not measured" in evaluation.notes[0]
    (kernel,) = found.device.kernels
    assert kernel.name == "row_sums"
    assert 8 <= kernel.registers <= 64
    assert (kernel.spill_bytes, kernel.shared_bytes) == (0, 8)
    assert 0 < kernel.occupancy <= 1


@pytest.mark.parametrize("fault", cuda_kernels.FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_named(evaluation, fault):
    found = result(evaluation, fault.name)
    assert found.verdict is fault.verdict, (found.verdict, found.reason, found.log)
    assert fault.reason in found.reason, found.reason
