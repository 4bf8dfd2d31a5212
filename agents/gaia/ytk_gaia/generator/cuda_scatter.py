"""Which loop variables of a scatter may run in parallel: those by which two iterations can never meet at one element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy


def _terms(index: Any, bounds: Mapping[str, Any]) -> list[tuple[Any, int, int]] | None:
    """Give (symbol, coefficient, number of values) of each term of a linear index; None: it is of another form."""
    terms = []
    for term in sympy.Add.make_args(sympy.expand(index)):
        if term.is_Integer:
            continue
        coefficient, symbols = term.as_coeff_Mul()
        if not symbols.is_Symbol or not coefficient.is_Integer or coefficient <= 0:
            return None
        count = bounds.get(symbols.name)
        if count is None or not sympy.sympify(count).is_Integer:
            return None
        terms.append((symbols, int(coefficient), int(count)))
    symbols = [symbol for symbol, _, _ in terms]
    return terms if len(set(symbols)) == len(symbols) else None


def separable(
    targets: Sequence[Any], variables: Sequence[Any], sizes: Sequence[int], bounds: Mapping[str, Any]
) -> list[int]:
    """Give the positions of the variables that decide by themselves where an iteration writes.

    A variable ``v`` of ``n`` values with coefficient ``c`` does so if the index is a number of mixed radix in which ``v`` is a
    digit: the smaller terms together stay below ``c``, and every larger one is a multiple of ``c * n``. Two iterations with
    different values of ``v`` then never write to the same element.

    Args:
        targets: Index expressions of all stores of the nest.
        variables: Loop variables.
        sizes: Their extents.
        bounds: Name of a value computed in the body to the number of values that it can have.
    """
    if len(set(targets)) != 1:
        return []  # none, or two places, of which nothing is known in relation to one another
    known = {v.name: n for v, n in zip(variables, sizes, strict=True)} | dict(bounds)
    found = set(range(len(variables)))
    for target in targets:
        terms = _terms(target, known)
        if terms is None:
            return []
        digits = {symbol: (c, n) for symbol, c, n in terms}
        for position, variable in enumerate(variables):
            if variable not in digits:
                if int(sizes[position]) != 1:
                    found.discard(position)
                continue
            c, n = digits[variable]
            smaller = sum(other * (m - 1) for symbol, (other, m) in digits.items() if symbol != variable and other < c)
            larger = [other for symbol, (other, _) in digits.items() if symbol != variable and other >= c]
            if smaller >= c or any(other % (c * n) for other in larger):
                found.discard(position)
    return sorted(found)
