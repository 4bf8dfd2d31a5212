"""At which shapes a kernel with dynamic axes is judged, and what it may then promise."""

from ytk_core.dtypes import DType
from ytk_core.formats.plugin_meta import Extent
from ytk_gaia.generator.border import Border, KernelTensor
from ytk_gaia.generator.extents import choose, judged_extents


def border(shape, ranges):
    axes = tuple(axis for _, axis in ranges)
    extents = tuple(f"in0.d{axis}" if axis in axes else str(n) for axis, n in enumerate(shape))
    tensor = KernelTensor("x", DType.FLOAT32, shape, axes, extents)
    return Border((tensor,), (tensor,), (0,), ranges=ranges)


def runs(_shapes):
    return ""


def test_the_ends_of_a_given_range_are_judged_and_promised():
    given = border((4, 3), {(0, 0): (1, 8)})
    sets, notes = choose(given, runs)
    assert [(each.name, each.inputs[0][0]) for each in sets] == [("min", 1), ("max", 8), ("between", 3)]
    assert notes == []
    assert judged_extents(given, sets) == (Extent(input=0, axis=0, min=1, opt=4, max=8),)


def test_the_usual_extent_is_the_declared_one_not_the_captured_one():
    # An extent of 1 cannot be captured: it would be taken for a constant.
    given = border((8, 3), {(0, 0): (1, 8)})
    sets, _ = choose(given, runs)
    declared = [Extent(input=0, axis=0, min=1, opt=1, max=8)]
    assert judged_extents(given, sets, declared) == (Extent(input=0, axis=0, min=1, opt=1, max=8),)


def test_an_end_that_the_region_does_not_take_is_not_promised():
    given = border((4, 3), {(0, 0): (1, 8)})
    sets, notes = choose(given, lambda shapes: "too small" if shapes.inputs[0][0] < 2 else "")
    assert notes == []
    assert judged_extents(given, sets)[0].min == 2


def test_an_open_range_is_judged_at_odd_extents_on_both_sides():
    opened = border((6, 3), {(0, 0): (2, None)})
    sets, _ = choose(opened, runs)
    assert [(each.name, each.inputs[0][0]) for each in sets] == [("min", 3), ("max", 13)]


def test_a_range_of_two_extents_leaves_nothing_between():
    sets, notes = choose(border((2, 3), {(0, 0): (1, 2)}), runs)
    assert [(each.name, each.inputs[0][0]) for each in sets] == [("min", 1)]
    assert notes == []
