"""Extents of a region's border: fixed or dynamic, and output shapes as expressions over input dims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch

from ytk_core.errors import UserError
from ytk_gaia.generator import inductor_adapter as inductor

_FIX = "Prepare the model so that all sites agree in this axis, or with fixed input shapes."


def captured_extent(extent: Any, where: str) -> int:
    """Give the extent that was captured: of a dynamic one, its example's.

    Raises:
        UserError: ``dynamic_shape``: it depends on values, not on shapes.
    """
    if isinstance(extent, int):
        return extent
    hint = extent.node.hint
    if hint is None:
        msg = f"{where} has the data-dependent extent {extent}; a kernel's shapes follow from its inputs' shapes"
        raise UserError(msg, code="dynamic_shape", hint="Move what decides this extent out of the region.")
    return int(hint)


def dynamic_axes(value: torch.Tensor) -> tuple[int, ...]:
    """Give the axes of a fake tensor whose extents are symbols."""
    return tuple(axis for axis, extent in enumerate(value.shape) if not isinstance(extent, int))


class DimSymbols:
    """Which input dim defines which symbol of a program.

    Args:
        inputs: The fake values of the border's inputs, in order.
    """

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        self._names: dict[Any, str] = {}
        self.places: dict[tuple[int, int], Any] = {}
        """Input and axis to the symbol that it defines."""
        for index, value in enumerate(inputs):
            for axis in dynamic_axes(value):
                symbol = value.shape[axis].node.expr
                if symbol.is_Symbol and symbol not in self._names:
                    self._names[symbol] = f"in{index}.d{axis}"
                    self.places[index, axis] = symbol

    def expressions(self, value: torch.Tensor, where: str) -> tuple[str, ...]:
        """Give the extents of a tensor as shape expressions of the contract.

        Raises:
            UserError: ``dynamic_shape``: the contract's shape expressions cannot say it.
        """
        return tuple(str(n) if isinstance(n, int) else self._text(n.node.expr, where) for n in value.shape)

    def _text(self, expression: Any, where: str) -> str:
        def operands() -> list[str]:
            return [self._text(part, where) for part in expression.args]

        if expression.is_Integer:
            return str(int(expression)) if expression >= 0 else f"({int(expression)})"
        if expression in self._names:
            return self._names[expression]
        if isinstance(expression, inductor.FloorDiv | inductor.CleanDiv):
            top, bottom = operands()
            return f"({top} // {bottom})"
        if isinstance(expression, sympy.Add | sympy.Mul):
            return f"({(' + ' if isinstance(expression, sympy.Add) else ' * ').join(operands())})"
        if isinstance(expression, sympy.Pow) and expression.exp.is_Integer and 1 < expression.exp <= 4:
            return f"({' * '.join([self._text(expression.base, where)] * int(expression.exp))})"
        name = {"Max": "max", "Min": "min"}.get(type(expression).__name__)
        if name:
            texts = operands()
            while len(texts) > 1:
                texts[:2] = [f"{name}({texts[0]}, {texts[1]})"]
            return texts[0]
        msg = f"{where} has the extent {expression}, which a plugin's shape expressions cannot say"
        raise UserError(msg, code="dynamic_shape", hint=_FIX)


def check_axes(where: str, declared: Sequence[int], value: torch.Tensor) -> None:
    """Hold the declared dynamic axes against the program's.

    Raises:
        UserError: ``axis_specialised``: an operator of the region fixed an axis that is declared dynamic.
    """
    found = dynamic_axes(value)
    for axis in declared:
        if axis not in found:
            msg = f"{where} axis {axis} is declared dynamic, but an operator of the region fixes it at {value.shape[axis]}"
            raise UserError(msg, code="axis_specialised", hint=_FIX)
