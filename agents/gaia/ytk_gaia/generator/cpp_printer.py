"""The printer of loop bodies for CPUs, and the runtime headers that its text needs."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from importlib import resources
from typing import Any

from ytk_gaia.generator import loop_printer
from ytk_gaia.generator.nest import Nest


@functools.cache
def _header(name: str) -> str:
    return resources.files("ytk_gaia").joinpath("cpp", name).read_text(encoding="utf-8")


@functools.cache
def _special_operations() -> frozenset[str]:
    defined = r"YTK_(?:SPECIAL[12]|POLYNOMIAL)\((\w+),"
    return frozenset(re.findall(defined, _header("ytk_special.h"))) - {"name"}


def runtime_header(source: str = "") -> str:
    """Give what goes into a bundle's header: ``ytk_loops.h``, and the special functions where ``source`` calls one."""
    called = set(re.findall(r"\bytk::op_(\w+)", source))
    special = _header("ytk_special.h") if called & _special_operations() else ""
    return _header("ytk_loops.h") + special


@functools.cache
def printable_operations() -> frozenset[str]:
    """Give the scalar operations that the runtime headers define (``op_<name>``)."""
    return frozenset(re.findall(r"\bop_(\w+)", _header("ytk_loops.h"))) | _special_operations()


class CppLoopPrinter(loop_printer.LoopPrinter):
    """Scalar operations as calls of the functions in ``ytk_loops.h``."""

    @classmethod
    def printable(cls) -> frozenset[str]:
        """Give the operations of the runtime headers."""
        return printable_operations()

    def indirect_indexing(self, var: str, size: Any, check: bool = True, wrap_neg: bool = True) -> Any:
        """Turn a computed value into an index, and remember how many values it can have."""
        symbol = super().indirect_indexing(var, size, check, wrap_neg)
        self._nest.bounds[symbol.name] = size
        return symbol

    def store(self, name: str, index: Any, value: str, mode: str | None = None) -> None:
        """Write one element, or add to it; remember which."""
        super().store(name, index, value, mode)
        self._nest.targets.append(self._nest.stores[-1][1])

    def scan(self, dtypes: Any, combine_fn: Callable[..., Any], values: Any) -> tuple[str, ...]:
        """Carry partial results; print as well how those of one stretch follow those of another."""
        first = not self._nest.state
        carried = super().scan(dtypes, combine_fn, values)
        others = tuple(f"other_{name}" for name in carried)
        # Statements of their own: what the body has computed is not there.
        known, self._known = self._known, [{}]
        with self._block() as block:
            result = combine_fn(carried, others)
        self._known = known
        result = tuple(result) if isinstance(result, tuple | list) else (result,)
        fresh = [self._new() for _ in result]
        lets = [f"const auto {n} = {r};" for n, r in zip(fresh, result, strict=True)]
        moves = [f"{c} = {n};" for c, n in zip(carried, fresh, strict=True)]
        self._nest.joins = [*block, *lets, *moves] if first else []
        return carried


def print_rows(
    operation: Any,
    pointer_of: Callable[[str], str],
    dtype_of: Callable[[str], Any],
    outer: int,
    jams: tuple[int, ...] = (),
) -> Nest | None:
    """Print one computed buffer with its first loops outside; see :func:`ytk_gaia.generator.loop_printer.print_rows`."""
    return loop_printer.print_rows(CppLoopPrinter, operation, pointer_of, dtype_of, outer, jams)
