"""Sampled inputs and expectations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ytk_core.errors import UserError
from ytk_gaia.evaluator.compare import judge_sample, self_test
from ytk_gaia.generator import region_input
from ytk_gaia.generator.samples import build_task, input_ranges

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::FutureWarning")]


class Call(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def region_of(module, args):
    program = torch.export.export(module.eval(), args)
    return region_input.bind(program, region_input.derive_spec(program, "region"))


def task_of(module, args, **options):
    return build_task(region_of(module, args), **({"seed": 1, "longest_reduction": 8} | options))


def raw(arrays):
    return [np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in arrays]


def torch_answers(module, task, index):
    inputs = [torch.from_numpy(a.copy()) for a in task.samples[index].inputs]
    result = module(*inputs)
    results = result if isinstance(result, tuple) else (result,)
    return raw([r.numpy() for r in results])


def test_expectations_are_float64_and_torch_itself_passes():
    module = Call(lambda x, w: torch.softmax(x @ w, -1))
    task = task_of(module, (torch.randn(5, 8), torch.randn(8, 6)))
    assert task.spec.expectation == "float64"
    names = [s.name for s in task.spec.samples]
    assert names[:5] == ["permuted", "almost", "one-hot", "large", "small"]
    # Two samples that differ in one element, one after the other: who recognises inputs by a part of them is wrong.
    first, second = (task.samples[k].inputs for k in (0, 1))
    assert sum(int((a != b).sum()) for a, b in zip(first, second, strict=True)) == 1
    assert sum(s.timed for s in task.spec.samples) == 10
    assert set(self_test(task).values()) == {"rejected"}
    for index, sample in enumerate(task.samples):
        assert sample.outputs[0].dtype == np.float64
        comparison = judge_sample(task, index, torch_answers(module, task, index))
        assert comparison.right, comparison.where
        # The limit leaves room for another order of summation, and none for another precision.
        assert 0 < task.spec.samples[index].atol[0] < 1e-2 * np.abs(sample.outputs[0]).max()


def test_a_half_precision_answer_is_wrong():
    module = Call(lambda x, w: x @ w)
    task = task_of(module, (torch.randn(5, 8), torch.randn(8, 6)))
    index = next(i for i, s in enumerate(task.spec.samples) if s.timed)
    x, w = (torch.from_numpy(a) for a in task.samples[index].inputs)
    answer = (x.bfloat16() @ w.bfloat16()).float().numpy()
    assert not judge_sample(task, index, raw([answer])).right


def test_the_same_seed_gives_the_same_task_and_another_seed_another():
    args = (torch.randn(4, 4),)
    module = Call(torch.exp)
    one, two, three = (task_of(module, args, seed=s) for s in (1, 1, 2))
    assert all(np.array_equal(a.inputs[0], b.inputs[0]) for a, b in zip(one.samples, two.samples, strict=True))
    assert not np.array_equal(one.samples[-1].inputs[0], three.samples[-1].inputs[0])


def test_samples_differ_from_one_another():
    task = task_of(Call(torch.exp), (torch.randn(4, 4),))
    seen = {s.inputs[0].tobytes() for s in task.samples}
    assert len(seen) == len(task.samples)


def test_indices_stay_in_the_range_of_the_example():
    region = region_of(Call(F.embedding), (torch.tensor([[3, 17], [5, 9]]), torch.randn(20, 4)))
    (indices, _) = input_ranges(region)
    assert (indices.kind, indices.low, indices.high) == ("int", 3, 17)
    task = build_task(region, seed=1, longest_reduction=1)
    assert all(s.inputs[0].min() >= 3 and s.inputs[0].max() <= 17 for s in task.samples)


def test_a_sampling_grid_reaches_just_outside():
    module = Call(lambda x, g: F.grid_sample(x, g, align_corners=False))
    task = task_of(module, (torch.randn(1, 2, 3, 4, 5), torch.rand(1, 2, 3, 4, 3)))
    grids = np.stack([s.inputs[1] for s in task.samples])
    assert grids.min() < -1.1
    assert grids.max() > 1.1
    assert np.abs(grids).max() <= 1.2


def test_a_variance_stays_positive():
    norm = nn.BatchNorm2d(3)
    norm.running_var.copy_(torch.tensor([0.5, 1.0, 2.0]))
    task = task_of(norm, (torch.randn(2, 3, 4, 4),))
    names = [t.name for t in task.spec.inputs]
    variances = [s.inputs[names.index("b_running_var")] for s in task.samples]
    assert all((v > 0).all() for v in variances)
    assert all(np.isfinite(s.outputs[0]).all() for s in task.samples)


def test_samples_that_overflow_are_left_out_with_a_note():
    task = task_of(Call(torch.exp), (torch.randn(30, 30),))
    assert "large" not in [s.name for s in task.spec.samples]
    assert any("large" in note and "overflows" in note for note in task.spec.notes)


@pytest.mark.parametrize(
    "function", [torch.linalg.inv, lambda x: torch.linalg.inv_ex(x).inverse], ids=["raises", "inf"]
)
def test_samples_with_a_singular_matrix_are_left_out_and_nothing_else_is(function):
    task = task_of(Call(function), (torch.randn(2, 5, 5),))
    assert "one-hot" not in [s.name for s in task.spec.samples]
    assert any("one-hot" in note and "singular" in note for note in task.spec.notes)
    assert "large" in [s.name for s in task.spec.samples]
    # Elsewhere an infinity is a value like another, which a kernel has to give.
    infinite = task_of(Call(torch.log), (torch.rand(6, 6),))
    sample = infinite.samples[[s.name for s in infinite.spec.samples].index("one-hot")]
    assert np.isinf(sample.outputs[0]).any()


def _topk(x):
    return x.topk(4, dim=-1)


@pytest.mark.parametrize(
    "function",
    [
        _topk,
        lambda x: x.sort(-1),
        lambda x: x.kthvalue(3, -1),
        lambda x: x.median(-1),
        lambda x: x.T.sort(0, descending=True),
    ],
    ids=["topk", "sort", "kthvalue", "median", "another dim"],
)
def test_which_of_equal_values_comes_first_is_not_judged(function):
    task = task_of(Call(function), (torch.randint(0, 4, (6, 9)).float(),))
    k = [s.name for s in task.spec.samples].index("one-hot")
    sample = task.samples[k]
    values, free = sample.outputs[0].astype(np.float32), sample.skip[1]
    assert free.any()
    assert not judge_sample(task, k, raw([values + 1, sample.outputs[1]])).right
    # Another index of the same value is right; what is no index at all is not.
    # That is any place on the axis, whichever of them torch happened to take.
    for place, right in ((0, True), (8, True), (9, False), (-1, False)):
        other = np.where(free, place, sample.outputs[1])
        assert judge_sample(task, k, raw([values, other])).right is right
    distinct = task.samples[-1]
    assert 1 not in distinct.skip
    wrong = distinct.outputs[1].copy()
    wrong.reshape(-1)[0] ^= 1
    assert not judge_sample(task, len(task.samples) - 1, raw([distinct.outputs[0].astype(np.float32), wrong])).right


def test_a_stable_sort_has_an_order():
    task = task_of(Call(lambda x: torch.sort(x, stable=True, dim=-1)), (torch.randn(6, 9),))
    assert not any(1 in s.skip for s in task.samples)


def test_integer_outputs_are_exact():
    task = task_of(Call(lambda x: (x.argmax(-1), x > 0)), (torch.randn(6, 9),))
    sample = task.samples[-1]
    assert sample.outputs[0].dtype == np.int64
    assert sample.outputs[1].dtype == np.bool_
    assert task.spec.samples[-1].atol == (0.0, 0.0)
    wrong = sample.outputs[0].copy()
    wrong[3] ^= 1
    assert not judge_sample(task, len(task.samples) - 1, raw([wrong, sample.outputs[1]])).right


def test_bfloat16_is_sampled_as_bits():
    task = task_of(Call(lambda x: x * 2), (torch.randn(4, 4).bfloat16(),))
    assert task.samples[0].inputs[0].dtype == np.uint16
    assert task.samples[0].outputs[0].dtype == np.float64


def test_a_given_tolerance_is_relative_to_the_largest_value():
    task = task_of(Call(lambda x: x * 3), (torch.randn(8, 8),), tolerance=1e-2)
    limits, sample = task.spec.samples[-1], task.samples[-1]
    assert limits.atol[0] == pytest.approx(1e-2 * np.abs(sample.outputs[0]).max())
    assert task.spec.tolerance_source.startswith("given")


def test_a_discontinuous_element_is_skipped_not_forgiven_everywhere():
    # Where float32 rounds across an integer the answer is a whole step off.
    module = Call(lambda x: torch.floor(x * 3000.001) * 0.1)
    task = task_of(module, (torch.rand(100, 100),))
    masks = [m for s in task.samples for m in s.skip.values()]
    assert masks
    assert all(m.mean() < 0.02 for m in masks)
    timed = [s for s in task.spec.samples if s.timed]
    assert all(s.atol[0] < 0.05 for s in timed)


def test_a_region_that_never_gives_a_stable_answer_is_refused():
    with pytest.raises(UserError, match="stable") as caught:
        task_of(Call(lambda x: torch.exp(x * 1000)), (torch.rand(30, 30),))
    assert caught.value.code == "no_samples"
