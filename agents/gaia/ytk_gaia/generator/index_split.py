"""Splitting a loop where its masks hold throughout: padding costs only at the edges.

A tap of a convolution or a window of a pool is masked by conditions on loop variables. Over most of the innermost loop all of
them hold; printed without masks, that part has no branches and vectorises.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from ytk_gaia.generator import inductor_adapter as inductor

_MIN_INTERIOR = 8


@dataclass(frozen=True)
class Interior:
    """Where the conditions on the innermost variable hold.

    Attributes:
        low: First index inside.
        high: First index after.
        inner: Conditions (expressions that are not negative) on the innermost variable alone.
        outer: Conditions on outer variables alone: the same for the whole inner loop.
    """

    low: int
    high: int
    inner: frozenset[Any]
    outer: frozenset[Any]


@dataclass
class Split:
    """A nest's body in three forms.

    Attributes:
        interior: Where they apply.
        inside: C++ condition that all outer conditions hold.
        free: Statements with no mask: inside in every loop.
        middle: Statements with the outer masks only.
        sides: Statements with the inner masks only.
    """

    interior: Interior
    inside: str
    free: list[str]
    middle: list[str]
    sides: list[str]


def _linear(condition: Any, variable: Any) -> tuple[int, Any] | None:
    """Give slope and rest of a condition that is linear in the variable, else None."""
    nonlinear = condition.atoms(inductor.FloorDiv, inductor.ModularIndexing, sympy.Mod, sympy.Pow)
    if any(variable in term.free_symbols for term in nonlinear):
        return None
    slope = sympy.expand(condition).coeff(variable)
    rest = sympy.expand(condition - slope * variable)
    if not slope.is_Integer or variable in rest.free_symbols:
        return None
    return int(slope), rest


def find_interior(conditions: Iterable[Any], variables: Sequence[Any], size: Any) -> Interior | None:
    """Find where along the innermost variable all conditions that can be split off hold.

    Args:
        conditions: Expressions that a mask needs to be not negative.
        variables: Loop variables, outermost first.
        size: Extent of the innermost loop.

    Returns:
        None where there is nothing to gain.
    """
    if not variables or not sympy.sympify(size).is_Integer:
        return None
    variable, low, high = variables[-1], 0, int(size)
    inner, outer = set(), set()
    for condition in conditions:
        found = _linear(sympy.sympify(condition), variable)
        if found is None:
            continue
        slope, rest = found
        if slope == 0:
            outer.add(condition)
        elif rest.is_Integer:
            inner.add(condition)
            if slope > 0:
                low = max(low, -(int(rest) // slope))
            else:
                high = min(high, int(rest) // -slope + 1)
    if not (inner or outer) or high - low < _MIN_INTERIOR:
        return None
    return Interior(low, high, frozenset(inner), frozenset(outer))
