"""Which shapes a kernel with dynamic axes is judged at, besides the captured ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ytk_core.errors import UserError
from ytk_core.formats import shape_expr
from ytk_core.formats.plugin_meta import Extent
from ytk_gaia.generator.border import Border

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ShapeSet:
    """One shape of every tensor at the border. ``name``: ``min``, ``opt`` or ``max``."""

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


def _alternatives(border: Border) -> Iterator[list[ShapeSet]]:
    """Give the shapes to try for the smallest and for the largest set: odd ones first, which end loops in the middle."""
    captured = {place: border.inputs[place[0]].shape[place[1]] for place in border.ranges}
    ways: dict[str, tuple[Callable[[int], int], ...]] = {
        "min": (lambda n: (n + 1) // 2 | 1, lambda n: n // 2, lambda n: n // 4),
        "max": (lambda n: 2 * n + 1, lambda n: 2 * n, lambda n: 4 * n),
    }
    for name, functions in ways.items():
        found = []
        for function in functions:
            values = {}
            for place, (low, high) in border.ranges.items():
                wanted = max(low, function(captured[place]))
                values[place] = wanted if high is None else min(high, wanted)
            if values != captured:
                found.append(shapes_at(border, values, name))
        yield found


def choose(border: Border, runs: Callable[[ShapeSet], str]) -> tuple[list[ShapeSet], list[str]]:
    """Choose the smallest and largest shapes that the region itself can run at.

    Args:
        border: With dynamic axes.
        runs: Gives why the region does not run at a shape, or an empty string.

    Returns:
        Shape sets besides the captured one, and notes on those that could not be found.
    """
    chosen, notes = [], []
    names = iter(("min", "max"))
    for alternatives in _alternatives(border):
        name, problem = next(names), "the range allows no other"
        for shapes in alternatives:
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


def tested_extents(border: Border, sets: Sequence[ShapeSet]) -> tuple[Extent, ...]:
    """Give the range of each dynamic input axis over the captured shape and the given sets."""
    found = []
    for index, tensor in enumerate(border.inputs):
        for axis in tensor.dynamic_axes:
            values = [tensor.shape[axis], *(s.inputs[index][axis] for s in sets)]
            found.append(Extent(input=index, axis=axis, min=min(values), opt=tensor.shape[axis], max=max(values)))
    return tuple(found)


def bounds(range_: Any) -> tuple[int, int | None]:
    """Give the limits of a symbol as torch knows them; None: no upper limit."""
    if range_ is None:
        return 0, None
    low = int(range_.lower) if getattr(range_.lower, "is_Integer", False) else 0
    high = int(range_.upper) if getattr(range_.upper, "is_Integer", False) else None
    return max(0, low), high
