"""Results that are laid out in another way than row-major: written where they belong, instead of copied at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import sympy

from ytk_gaia.generator import inductor_adapter as inductor
from ytk_gaia.generator.lowering import static_int
from ytk_gaia.generator.memory_plan import Plan
from ytk_gaia.generator.schedules import Dynamic

Copy = tuple[int, str, Any]
"""Index of the output, buffer, layout."""


def without_copies(
    plan: Plan, copies: Sequence[Copy], in_place: Mapping[str, int]
) -> tuple[list[Copy], dict[str, tuple[int, Any]]]:
    """Part copies of results into those that are needed and those that need not be.

    Args:
        plan: Names and sizes.
        copies: As :func:`ytk_gaia.generator.memory_plan.find_results` found them.
        in_place: Roots that are outputs already.

    Returns:
        The copies that are left, and for the other buffers their output and layout.
    """
    left: list[Copy] = []
    found: dict[str, tuple[int, Any]] = {}
    for index, name, layout in copies:
        sizes = plan.extents(layout.size)
        fixed = not any(isinstance(n, Dynamic) for n in sizes) and all(
            sympy.sympify(n).is_Integer for n in layout.stride
        )
        strides = [int(n) for n in layout.stride] if fixed else []
        pairs = sorted((stride, n) for stride, n in zip(strides, sizes, strict=False) if n != 1)
        dense = fixed and all(stride == prod(n for _, n in pairs[:k]) for k, (stride, _) in enumerate(pairs))
        whole = name in plan.storage and plan.storage[name] == (sympy.Integer(prod(sizes)), layout.dtype)
        aliased = name in in_place or name in found or any(plan.root(v) == name for v in (*plan.views, *plan.roots))
        if dense and whole and not aliased and not static_int(layout.offset) and 0 not in sizes:
            found[name] = (index, layout)
        else:
            left.append((index, name, layout))
    return left, found


def row_major(layout: Any, index: Any) -> Any:
    """Give the row-major index of the element that ``index`` is in memory of a dense layout."""
    found, following = sympy.Integer(0), 1
    for size, stride in reversed(list(zip(map(int, layout.size), map(int, layout.stride), strict=True))):
        found += following * inductor.ModularIndexing(index, stride, size) if size != 1 else 0
        following *= size
    return found
