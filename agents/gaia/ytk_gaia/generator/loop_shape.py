"""How the loops of one nest are cut up: digits of a loop variable, so that divisions in its index expressions disappear.

Upsampling reads ``x[i // 2]`` and a window partition ``x[i // 7, i % 7]``. With the loop written as two (``i = 2 * a + b``)
such an index is linear again: the inner loops read contiguously and need no division. The same cut lines a flattened loop up
with its neighbours, so that nests can share their outer loops.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import sympy

from ytk_gaia.generator import inductor_adapter as inductor

_MAX_LOOPS = 8


@dataclass(frozen=True)
class LoopShape:
    """Digits of every loop variable, outermost first; a variable of one digit is as it was.

    Attributes:
        sizes: Per output loop its digits' extents.
        reduced: Per reduced loop likewise.
    """

    sizes: tuple[tuple[Any, ...], ...]
    reduced: tuple[tuple[Any, ...], ...]

    @classmethod
    def whole(cls, sizes: Sequence[Any], reduced: Sequence[Any]) -> LoopShape:
        """Give the shape that cuts nothing."""
        return cls(tuple((n,) for n in sizes), tuple((n,) for n in reduced))

    @property
    def loops(self) -> list[Any]:
        """Extents of the output loops after the cut."""
        return [n for digits in self.sizes for n in digits]

    @property
    def reduced_loops(self) -> list[Any]:
        """Extents of the reduced loops after the cut."""
        return [n for digits in self.reduced for n in digits]

    def cut_at(self, outer: int) -> LoopShape | None:
        """Cut so that the first loops together have ``outer`` iterations; None where no loop divides there."""
        done, found = 1, []
        for digits in self.sizes:
            kept = []
            for size in digits:
                number = int(size) if sympy.sympify(size).is_Integer else None
                if done != outer:
                    if number is None or not number:
                        return None
                    if done * number > outer:
                        head = outer // done
                        if head * done != outer or number % head:
                            return None
                        kept += [sympy.Integer(head), sympy.Integer(number // head)]
                        done = outer
                        continue
                    done *= number
                kept.append(size)
            found.append(tuple(kept))
        return LoopShape(tuple(found), self.reduced) if done == outer else None


def composed(digits: Sequence[Sequence[Any]], variables: Sequence[Any]) -> list[Any]:
    """Give each original index as an expression of the variables of its digits."""
    found, at = [], 0
    for sizes in digits:
        value: Any = sympy.Integer(0)
        for size in sizes:
            value = value * size + variables[at]
            at += 1
        found.append(value)
    return found


def _cuts(expressions: Iterable[Any], variable: Any) -> set[int]:
    """Give the strides at which index expressions take ``variable`` apart."""
    found: set[int] = set()
    for expression in expressions:
        for atom in expression.atoms(inductor.FloorDiv, inductor.ModularIndexing):
            if atom.args[0] != variable or not all(a.is_Integer for a in atom.args[1:]):
                continue
            divisor = int(atom.args[1])
            found.add(divisor)
            if isinstance(atom, inductor.ModularIndexing):
                found.add(divisor * int(atom.args[2]))
    return found


def _digits(size: Any, cuts: set[int]) -> tuple[Any, ...]:
    if not sympy.sympify(size).is_Integer:
        return (size,)
    chain = [1]
    for cut in sorted(cuts):
        if 1 < cut < int(size) and cut % chain[-1] == 0 and int(size) % cut == 0 and cut != chain[-1]:
            chain.append(cut)
    chain.append(int(size))
    return tuple(sympy.Integer(b // a) for a, b in zip(chain[-2::-1], chain[:0:-1], strict=True))


def find_shape(
    expressions: Sequence[Any],
    variables: Sequence[Any],
    sizes: Sequence[Any],
    reduction_variables: Sequence[Any],
    reduced: Sequence[Any],
) -> LoopShape:
    """Choose digits by which divisions and remainders of single loop variables become variables of their own.

    Args:
        expressions: Index expressions of the body over the variables.
        variables: Of the output loops, outermost first.
        sizes: Their extents.
        reduction_variables: Of the reduced loops.
        reduced: Their extents.
    """
    divided = [e for e in map(sympy.sympify, expressions) if e.has(inductor.FloorDiv, inductor.ModularIndexing)]
    whole = LoopShape.whole(sizes, reduced)
    if not divided:
        return whole
    shape = LoopShape(
        tuple(_digits(n, _cuts(divided, v)) for v, n in zip(variables, sizes, strict=True)),
        tuple(_digits(n, _cuts(divided, v)) for v, n in zip(reduction_variables, reduced, strict=True)),
    )
    return shape if len(shape.loops) + len(shape.reduced_loops) <= _MAX_LOOPS else whole


def divisions(expressions: Iterable[Any]) -> int:
    """Count the divisions and remainders in index expressions."""
    kinds = (inductor.FloorDiv, inductor.ModularIndexing)
    return sum(len(sympy.sympify(e).atoms(*kinds)) for e in expressions)


def row_offset(index: Any, leading: Sequence[tuple[Any, int]], ranges: dict[Any, Any]) -> tuple[int, int, int] | None:
    """Take an index apart as ``stride * row + rest``, where ``row`` numbers the iterations of the leading loops.

    Args:
        index: Expression over loop variables.
        leading: Variable and extent of each leading loop, outermost first.
        ranges: Extent of every other variable that may occur.

    Returns:
        The stride, and the least and greatest value of the rest; None where the index has no such form.
    """
    index = sympy.expand(sympy.sympify(index))
    variables = {v for v, _ in leading}
    stride: int | None = None
    rest = index
    following = 1
    for variable, size in reversed(leading):
        if size != 1:
            factor = index.coeff(variable)
            if not factor.is_Integer or int(factor) % following:
                return None
            if stride is None:
                stride = int(factor) // following
            elif int(factor) != stride * following:
                return None
            rest = sympy.expand(rest - factor * variable)
        following *= size
    if stride is None or stride <= 0 or rest.free_symbols & variables:
        return None
    low = high = 0
    constant, terms = rest.as_coeff_add()
    if not constant.is_Integer:
        return None
    low = high = int(constant)
    for term in terms:
        factor, variable = term.as_coeff_Mul()
        if not factor.is_Integer or variable not in ranges or not sympy.sympify(ranges[variable]).is_Integer:
            return None
        reach = int(factor) * (int(ranges[variable]) - 1)
        low, high = low + min(0, reach), high + max(0, reach)
    return stride, low, high


def count(sizes: Sequence[Any]) -> int:
    """Give the product of static extents."""
    return prod(int(n) for n in sizes)
