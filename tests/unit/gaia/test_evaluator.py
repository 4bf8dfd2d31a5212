"""The judge against kernels that cheat or misbehave, and against honest ones."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from functools import partial

import msgspec
import numpy as np
import pytest

from ytk_core.archspec import ArchSpec
from ytk_core.dtypes import DType
from ytk_gaia.evaluator import judge, rounds
from ytk_gaia.evaluator.options import JudgeOptions
from ytk_gaia.evaluator.verdicts import Verdict, read_evaluation, write_evaluation
from ytk_gaia.task_format import Sample, Task, TaskTensor, read_task, write_task

from fakes.judge_kernels import ARCH, COLUMNS, HONEST, HONEST_KERNELS, ROWS, Case, cheats, kernel, make_task
from fakes.judge_limits import BUDGET_S, PATIENT, end_soon


@dataclass
class Judged:
    cases: dict[str, Case]
    results: dict
    evaluation: object
    connections: int


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """Judge all of them in one go: the compiler and the empty kernel are paid for once."""
    directory = tmp_path_factory.mktemp("judge")
    secret = directory / "task.npz"
    secret.write_bytes(b"expected outputs")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        cases = cheats(secret, listener.getsockname()[1])
        texts = {name: case.text for name, case in cases.items()} | HONEST_KERNELS
        options = JudgeOptions(budget_s=BUDGET_S, threads=2, mode="required", limits=PATIENT, in_full=True)
        with pytest.MonkeyPatch.context() as patch:
            end_soon(patch, rounds, "endless_loop")
            evaluation = judge.evaluate(make_task(), texts, ARCH, directory, options)
        connections = 0
        try:
            listener.accept()[0].close()
            connections = 1
        except BlockingIOError:
            pass
    return Judged(cases, {c.id: c for c in evaluation.candidates}, evaluation, connections)


@pytest.mark.parametrize("name", sorted(cheats("", 1)))
def test_a_cheat_gets_its_verdict(judged, name):
    case, result = judged.cases[name], judged.results[name]
    assert case.words, "a verdict without its reason is no explanation"
    assert result.verdict is case.verdict, f"{result.verdict}: {result.reason}\n{result.log}"
    for word in case.words:
        assert word in result.reason
    assert result.median_ms is None


@pytest.mark.parametrize("name", HONEST_KERNELS)
def test_an_honest_kernel_passes(judged, name):
    result = judged.results[name]
    assert result.verdict is Verdict.PASSED, f"{result.reason}\n{result.log}"
    # Two processes for a verdict; the faster half gets more, and the finalists' times are those of the finals.
    assert result.processes >= 2
    assert len(result.times_ms) in {2 * 4, result.processes * 4}
    assert 0 < result.min_ms <= result.median_ms
    assert 0 < result.worst_error <= 1


def test_a_slow_kernel_is_measured_as_slow(judged):
    assert judged.results["honest_slow"].min_ms >= 1.5
    assert judged.results["honest"].min_ms < 1.5


def test_nobody_reached_the_network(judged):
    assert judged.connections == 0


def test_the_evaluation_says_how_it_was_made(judged, tmp_path):
    evaluation = judged.evaluation
    assert evaluation.sandbox == "bubblewrap"
    assert set(evaluation.self_test.values()) == {"rejected"}
    assert evaluation.conditions.threads == 2
    assert evaluation.call_overhead_ms > 0
    write_evaluation(tmp_path / "evaluation.json", evaluation)
    assert read_evaluation(tmp_path / "evaluation.json") == evaluation


# ---- the judge's parts -----------------------------------------------------------------------------------------------


def loose(task, atol):
    limits = tuple(msgspec.structs.replace(s, atol=(atol,)) for s in task.spec.samples)
    return Task(msgspec.structs.replace(task.spec, samples=limits), task.samples)


def test_a_task_that_a_constant_passes_proves_nothing(tmp_path):
    options = JudgeOptions(mode="optional", budget_s=BUDGET_S, limits=PATIENT)
    evaluation = judge.evaluate(loose(make_task(), 100.0), {"honest": kernel(HONEST)}, ARCH, tmp_path, options)
    assert evaluation.candidates[0].verdict is Verdict.NO_EVIDENCE
    assert "zeros" in evaluation.candidates[0].reason


def test_an_exhausted_budget_is_no_evidence(tmp_path):
    options = JudgeOptions(mode="optional", budget_s=0.0)
    evaluation = judge.evaluate(make_task(), {"honest": kernel(HONEST)}, ARCH, tmp_path, options)
    assert evaluation.candidates[0].verdict is Verdict.NO_EVIDENCE
    assert "budget" in evaluation.candidates[0].reason


def test_the_identity_is_right_where_the_region_is_the_identity():
    from ytk_gaia.evaluator.compare import self_test

    task = make_task()
    same = tuple(Sample(s.inputs, (s.inputs[0].astype(np.float64),)) for s in task.samples)
    found = self_test(Task(task.spec, same))
    assert found["identity"].startswith("right")
    assert found["zeros"] == "rejected"


@pytest.mark.parametrize(
    ("got", "want", "right"),
    [
        ([np.nan], [np.nan], True),
        ([np.nan], [1.0], False),
        ([1.0], [np.nan], False),
        ([np.inf], [np.inf], True),
        ([-np.inf], [np.inf], False),
        ([np.inf], [1.0], False),
        ([1.0], [1.0 + 1e-7], True),
        ([1.0], [1.001], False),
    ],
)
def test_comparison_of_special_values(got, want, right):
    from ytk_gaia.evaluator.compare import compare

    tensor = TaskTensor(name="y", dtype=DType.FLOAT32, shape=(1,))
    assert compare(np.array(got), np.array(want), tensor, 1e-6, 1e-6, None).right is right


def test_a_bool_that_is_neither_zero_nor_one_is_wrong():
    from ytk_gaia.evaluator.compare import compare, decode

    tensor = TaskTensor(name="y", dtype=DType.BOOL, shape=(2,))
    got = decode(np.array([1, 2], dtype=np.uint8), tensor)
    assert not compare(got, np.array([True, True]), tensor, 0, 0, None).right


def test_a_skipped_element_may_differ_but_not_be_nan():
    from ytk_gaia.evaluator.compare import compare

    tensor = TaskTensor(name="y", dtype=DType.FLOAT32, shape=(2,))
    check = partial(compare, want=np.array([1.0, 2.0]), tensor=tensor, atol=1e-6, rtol=0, skip=np.array([True, False]))
    assert check(np.array([9.0, 2.0])).right
    assert not check(np.array([np.nan, 2.0])).right
    assert not check(np.array([1.0, 9.0])).right


def test_a_task_survives_writing_and_reading(tmp_path):
    task = make_task()
    masked = Sample(task.samples[0].inputs, task.samples[0].outputs, {0: np.eye(ROWS, COLUMNS, dtype=bool)})
    task = Task(task.spec, (masked, *task.samples[1:]))
    write_task(tmp_path, task)
    again = read_task(tmp_path)
    assert again.spec == task.spec
    assert np.array_equal(again.samples[0].skip[0], masked.skip[0])
    for a, b in zip(again.samples, task.samples, strict=True):
        assert all(np.array_equal(p, q) for p, q in zip((*a.inputs, *a.outputs), (*b.inputs, *b.outputs), strict=True))


def test_an_arch_spec_of_a_gpu_is_the_users_error(tmp_path):
    from ytk_core.errors import UserError

    gpu = ArchSpec.parse("arm64-sm87-dos6010-cu114-trt86")
    with pytest.raises(UserError):
        judge.evaluate(make_task(), {"honest": kernel(HONEST)}, gpu, tmp_path, JudgeOptions(mode="optional"))
