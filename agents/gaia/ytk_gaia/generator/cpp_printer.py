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


def print_rows(
    operation: Any,
    pointer_of: Callable[[str], str],
    dtype_of: Callable[[str], Any],
    outer: int,
    jams: tuple[int, ...] = (),
) -> Nest | None:
    """Print one computed buffer with its first loops outside; see :func:`ytk_gaia.generator.loop_printer.print_rows`."""
    return loop_printer.print_rows(CppLoopPrinter, operation, pointer_of, dtype_of, outer, jams)
