"""Where masks hold, and how finalists are compared: pure parts."""

from __future__ import annotations

import pytest

from ytk_gaia.evaluator import finals
from ytk_gaia.generator import inductor_adapter as inductor
from ytk_gaia.generator.index_split import find_interior

pytestmark = pytest.mark.torch

H, W = inductor.loop_symbol("i0"), inductor.loop_symbol("i1")


def holds(condition, h, w):
    return condition.subs({H: h, W: w}) >= 0


@pytest.mark.parametrize(
    "conditions",
    [
        [W - 1, 54 - W],
        [2 * W - 3, 101 - 3 * W],
        [H - 1, 30 - H, W - 2],
        [W + 4, 90 - W],
    ],
)
def test_inside_every_inner_condition_holds_and_just_outside_one_fails(conditions):
    size = 56
    found = find_interior(conditions, [H, W], size)
    inner = [c for c in conditions if c in found.inner]
    assert inner == [c for c in conditions if W in c.free_symbols]
    assert found.outer == {c for c in conditions if W not in c.free_symbols}
    for w in range(size):
        assert all(holds(c, 0, w) for c in inner) == (found.low <= w < found.high)


def test_what_cannot_be_split_stays_masked():
    floor = inductor.FloorDiv(W, 2) - 3
    assert find_interior([floor], [H, W], 56) is None
    assert find_interior([W - H], [H, W], 56) is None
    assert find_interior([W - 50], [H, W], 56) is None  # six elements are no vector
    assert find_interior([], [H, W], 56) is None
    mixed = find_interior([floor, W - 4], [H, W], 56)
    assert mixed.inner == {W - 4}


def test_the_first_of_one_step_is_the_last_of_the_next():
    assert [list(finals.turns(3, step)) for step in range(3)] == [[0, 1, 2], [1, 2, 0], [2, 0, 1]]


def test_a_real_difference_is_decided_and_noise_is_a_tie():
    slow_moments = [1000, 1010, 990, 5000, 1005, 995, 8000, 1002, 998, 1001] * 2
    faster = finals.paired_ratio([t * 9 // 10 for t in slow_moments], slow_moments, "a")
    assert faster.to == "a"
    assert faster.decided
    assert faster.low <= faster.median <= faster.high < 0.91
    # The same kernel, each time in another moment of noise.
    noise = finals.paired_ratio(slow_moments, [slow_moments[(k * 7 + 3) % 20] for k in range(20)], "b")
    assert not noise.decided
    assert noise.low <= 1 <= noise.high
    assert finals.paired_ratio(slow_moments, slow_moments, "c") == finals.paired_ratio(slow_moments, slow_moments, "c")
    assert finals.best_of([[5, 1, 9], [2, 3, 4], [9, 9, 1]]) == 1
