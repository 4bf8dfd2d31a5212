"""Between what an extent may lie that a graph writes as an expression of its open axes: ``2*s0 + 1``, ``s0//2``."""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Callable, Mapping

Bounds = tuple[int, int]
"""The least and the greatest value."""

_MAX_CASES = 65_536
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
}
_FUNCTIONS: dict[str, Callable[[int, int], int]] = {
    "max": max,
    "min": min,
    "mod": lambda a, b: a % b,
    "pythonmod": lambda a, b: a % b,
    "floordiv": lambda a, b: a // b,
    "cleandiv": lambda a, b: a // b,
    "ceildiv": lambda a, b: -(-a // b),
}
"""By the names that torch's and sympy's printers give them, in lower case."""


class _UnknownError(Exception):
    """A word that is not understood, or a symbol without a range."""


def bounds(text: str, symbols: Mapping[str, Bounds]) -> Bounds | None:
    """Give the least and the greatest value of an expression.

    Exact where all cases can be tried (65,536 of them), else by the ends of the ranges: exact for sums, products and quotients, as
    wide as can be for remainders.

    Args:
        text: A name, a number, or an expression of both, as it stands as an extent in a graph.
        symbols: By name: the range of a symbol.

    Returns:
        None where it has a symbol without a range, or an operation that is not known; and where there are more cases and a symbol stands
        in two places, for whose ends do not go together: ``s0 - s0//2`` would seem to fall below 0.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        names = sorted(
            {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and not _is_called(node, tree)}
        )
        ranges = [range(symbols[name][0], symbols[name][1] + 1) for name in names]
        if math.prod(map(len, ranges)) <= _MAX_CASES:
            values = [_value(tree, dict(zip(names, case, strict=True)))[0] for case in itertools.product(*ranges)]
            return (min(values), max(values)) if values else None
        words = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in names]
        return _between(tree, symbols) if len(words) == len(names) else None
    except (SyntaxError, KeyError, ZeroDivisionError, RecursionError, _UnknownError):
        return None


def _is_called(name: ast.Name, tree: ast.expr) -> bool:
    return any(isinstance(node, ast.Call) and node.func is name for node in ast.walk(tree))


def _value(tree: ast.expr, known: Mapping[str, int]) -> Bounds:
    return _between(tree, {name: (value, value) for name, value in known.items()})


def _between(node: ast.expr, symbols: Mapping[str, Bounds]) -> Bounds:
    match node:
        case ast.Constant(value=int(value)) if type(value) is int:
            return value, value
        case ast.Name(id=name):
            return symbols[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            low, high = _between(operand, symbols)
            return -high, -low
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _combined(_OPERATORS[type(op)], _between(left, symbols), _between(right, symbols))
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int(power))) if 0 <= power <= 8:
            base = _between(left, symbols)
            result = (1, 1)
            for _ in range(power):
                result = _combined(_OPERATORS[ast.Mult], result, base)
            return result
        case ast.Call(func=ast.Name(id=name), args=[argument]) if name.lower() in {"floor", "ceiling"}:
            return _rounded(argument, symbols, up=name.lower() == "ceiling")
        case ast.Call(func=ast.Name(id=name), args=[first, *others]) if name.lower() in _FUNCTIONS:
            result = _between(first, symbols)
            for other in others:
                result = _combined(_FUNCTIONS[name.lower()], result, _between(other, symbols))
            return result
    raise _UnknownError


def _rounded(node: ast.expr, symbols: Mapping[str, Bounds], *, up: bool) -> Bounds:
    """Give the bounds of a quotient that is rounded; what is no quotient is whole already."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        divide = _FUNCTIONS["ceildiv" if up else "floordiv"]
        return _combined(divide, _between(node.left, symbols), _between(node.right, symbols))
    return _between(node, symbols)


def _combined(function: Callable[[int, int], int], left: Bounds, right: Bounds) -> Bounds:
    """Combine ranges: what grows or falls in each operand is extreme at the ends."""
    if function is _OPERATORS[ast.Mod] or function in {_FUNCTIONS["mod"], _FUNCTIONS["pythonmod"]}:
        if left[0] == left[1] and right[0] == right[1]:
            return left[0] % right[0], left[0] % right[0]
        if right[0] <= 0:
            raise _UnknownError
        return 0, right[1] - 1
    if right[0] <= 0 <= right[1] and function in {
        _OPERATORS[ast.FloorDiv],
        _FUNCTIONS["floordiv"],
        _FUNCTIONS["ceildiv"],
        _FUNCTIONS["cleandiv"],
    }:
        raise _UnknownError
    ends = [function(a, b) for a in left for b in right]
    return min(ends), max(ends)
