"""Which shapes a kernel with dynamic axes is judged at, besides the captured ones."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ytk_core.errors import UserError
from ytk_core.formats import shape_expr
from ytk_core.formats.plugin_meta import Extent
from ytk_gaia.generator.border import Border

Shape = tuple[int, ...]
_Way = Callable[[int], int]


@dataclass(frozen=True)
class ShapeSet:
    """One shape of every tensor at the border. ``name``: ``min``, ``max`` or ``between``."""

    name: str
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]


def shapes_at(border: Border, values: Mapping[tuple[int, int], int], name: str) -> ShapeSet:
    """Give all shapes where the defining dims have the given values.

    Args:
        border: Its expressions say every other dim.
        values: Input and axis to extent.
        name: For the result.

    Raises:
        UserError: An extent would be negative.
    """
    dims = [list(t.shape) for t in border.inputs]
    for (index, axis), value in values.items():
        dims[index][axis] = value
    inputs = tuple(tuple(shape_expr.evaluate(e, dims) for e in t.extents) for t in border.inputs)
    outputs = tuple(tuple(shape_expr.evaluate(e, dims) for e in t.extents) for t in border.outputs)
    return ShapeSet(name, inputs, outputs)


def _alternatives(border: Border) -> Iterator[tuple[str, list[ShapeSet]]]:
    """Give the shapes to try for each set: the smallest, the largest, and one between where a range was given.

    A given range has an upper limit; an engine will use its ends, so they come first. Else come odd extents, which end loops in
    the middle.
    """
    captured = {place: border.inputs[place[0]].shape[place[1]] for place in border.ranges}
    given = {place for place, (_, high) in border.ranges.items() if high is not None}
    smaller: list[_Way] = [lambda n: (n + 1) // 2 | 1, lambda n: n // 2, lambda n: n // 4]
    larger: list[_Way] = [lambda n: 2 * n + 1, lambda n: 2 * n, lambda n: 4 * n]

    def values(way: _Way, end: int | None) -> dict[tuple[int, int], int]:
        found = {}
        for place, (low, high) in border.ranges.items():
            wanted = max(low, way(captured[place]) if end is None or place not in given else end)
            found[place] = wanted if high is None else min(high, wanted)
        return found

    for name, ways, end in (("min", smaller, 0), ("max", larger, sys.maxsize), ("between", smaller, None)):
        if name == "between" and not given:
            return
        tried = [values(ways[0], end), *(values(way, None) for way in ways)]
        distinct = [each for index, each in enumerate(tried) if each != captured and each not in tried[:index]]
        yield name, [shapes_at(border, each, name) for each in distinct]


def choose(border: Border, runs: Callable[[ShapeSet], str]) -> tuple[list[ShapeSet], list[str]]:
    """Choose the smallest and largest shapes that the region itself can run at.

    Args:
        border: With dynamic axes.
        runs: Gives why the region does not run at a shape, or an empty string.

    Returns:
        Shape sets besides the captured one, and notes on those that could not be found.
    """
    chosen: list[ShapeSet] = []
    notes: list[str] = []
    for name, alternatives in _alternatives(border):
        problem = ""
        known = [each.inputs for each in chosen]
        for shapes in [each for each in alternatives if each.inputs not in known]:
            try:
                problem = runs(shapes)
            except UserError as err:
                problem = err.message
            if not problem:
                chosen.append(shapes)
                break
        if problem:
            notes.append(f"not judged at another {name} shape: {problem}")
    return chosen, notes


def judged_extents(border: Border, sets: Sequence[ShapeSet], declared: Sequence[Extent] = ()) -> tuple[Extent, ...]:
    """Give the range of each dynamic input axis over the captured shape and the given sets.

    Args:
        border: Whose axes.
        sets: What the kernel is judged at besides the captured shape.
        declared: What the region says of its axes: a usual extent of 1 is not the captured one.
    """
    usual = {(each.input, each.axis): each.opt for each in declared}
    found = []
    for index, tensor in enumerate(border.inputs):
        for axis in tensor.dynamic_axes:
            values = [tensor.shape[axis], *(s.inputs[index][axis] for s in sets)]
            low, high = min(values), max(values)
            opt = usual.get((index, axis), tensor.shape[axis])
            opt = opt if low <= opt <= high else tensor.shape[axis]
            found.append(Extent(input=index, axis=axis, min=low, opt=opt, max=high))
    return tuple(found)


def bounds(range_: Any) -> tuple[int, int | None]:
    """Give the limits of a symbol as torch knows them; None: no upper limit."""
    if range_ is None:
        return 0, None
    low = int(range_.lower) if getattr(range_.lower, "is_Integer", False) else 0
    high = int(range_.upper) if getattr(range_.upper, "is_Integer", False) else None
    return max(0, low), high
