"""Prints types, index expressions and conditions on extents as text of the C family: the same for C++ and CUDA C++."""

from __future__ import annotations

import re
from typing import Any

import sympy
import torch

from ytk_gaia.generator import inductor_adapter as inductor
from ytk_gaia.generator.lowering import CannotLowerError

# What a value is while it is computed with: halves are widened on load and rounded on store.
COMPUTE_TYPE: dict[Any, str] = {
    torch.float64: "double",
    torch.float32: "float",
    torch.float16: "float",
    torch.bfloat16: "float",
    torch.int64: "int64_t",
    torch.int32: "int32_t",
    torch.int16: "int16_t",
    torch.int8: "int8_t",
    torch.uint8: "uint8_t",
    torch.bool: "bool",
}
STORAGE_TYPE: dict[Any, str] = {
    **COMPUTE_TYPE,
    torch.float16: "ytk::half",
    torch.bfloat16: "ytk::bfloat16",
}


def c_type(dtype: Any, table: dict[Any, str] = COMPUTE_TYPE) -> str:
    """Give the C++ type of a torch dtype.

    Raises:
        CannotLowerError: There is none (complex, quantised, unsigned above 8 bits).
    """
    try:
        return table[dtype]
    except KeyError as err:
        raise CannotLowerError([f"dtype {dtype}"]) from err


_DYNAMIC = re.compile(r"[su]\d+")


class IndexPrinter(inductor.CppPrinter):  # type: ignore[misc]  # torch carries no types
    """Index expressions as C++ over int64_t, with no help from libtorch's headers."""

    def _print_Integer(self, expr: Any) -> str:  # noqa: N802 -- sympy's dispatch
        return f"{int(expr)}L"

    def _print_Symbol(self, expr: Any) -> str:  # noqa: N802
        # torch's names of dynamic extents (s77) would meet those of a reduction's running results (s0).
        return f"extent_{expr.name}" if _DYNAMIC.fullmatch(expr.name) else str(expr.name)

    def _quotient(self, numerator: Any, divisor: Any) -> str:
        top, bottom = self.doprint(numerator), self.doprint(divisor)
        if numerator.is_nonnegative and divisor.is_positive:
            return f"(({top}) / ({bottom}))"
        return f"ytk::floor_divide({top}, {bottom})"

    def _remainder(self, numerator: str, divisor: Any, *, plain: bool) -> str:
        bottom = self.doprint(divisor)
        return f"(({numerator}) % ({bottom}))" if plain else f"ytk::floor_modulo({numerator}, {bottom})"

    def _print_FloorDiv(self, expr: Any) -> str:  # noqa: N802
        return self._quotient(*expr.args)

    def _print_CleanDiv(self, expr: Any) -> str:  # noqa: N802
        return self._quotient(*expr.args)

    def _print_ModularIndexing(self, expr: Any) -> str:  # noqa: N802
        x, divisor, modulus = expr.args
        top = self.doprint(x) if divisor == 1 else self._quotient(x, divisor)
        return self._remainder(top, modulus, plain=bool(x.is_nonnegative and divisor.is_positive))

    def _print_PythonMod(self, expr: Any) -> str:  # noqa: N802
        return self._remainder(self.doprint(expr.args[0]), expr.args[1], plain=bool(expr.args[0].is_nonnegative))


def print_index(expression: Any) -> str:
    """Print an index or size expression as C++."""
    return str(IndexPrinter().doprint(sympy.sympify(expression)))


_RELATIONS: dict[Any, str] = {
    sympy.Eq: "==",
    sympy.Ne: "!=",
    sympy.StrictLessThan: "<",
    sympy.LessThan: "<=",
    sympy.StrictGreaterThan: ">",
    sympy.GreaterThan: ">=",
}


def print_condition(condition: Any) -> str:
    """Print a condition on extents as C++.

    Raises:
        CannotLowerError: It is of a form that guards do not take.
    """
    if condition in {sympy.true, sympy.false}:
        return str(condition == sympy.true).lower()
    for kind, sign in _RELATIONS.items():
        if isinstance(condition, kind):
            return f"({print_index(condition.lhs)} {sign} {print_index(condition.rhs)})"
    joined = {sympy.And: " && ", sympy.Or: " || "}.get(condition.func)
    if joined:
        return f"({joined.join(map(print_condition, condition.args))})"
    if isinstance(condition, sympy.Not):
        return f"!{print_condition(condition.args[0])}"
    raise CannotLowerError([f"condition {condition} on an extent"])
