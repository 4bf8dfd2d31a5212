"""Transposes: which two loops of a nest are contiguous in what it reads and in what it writes, so that they run in tiles.

Row by row one side is read at a stride that leaves its cache lines, pages and sets behind before the next row wants them again. In
tiles of a cache line each way every line is used up at once.
"""

from __future__ import annotations

from typing import Any

import sympy

from ytk_gaia.generator.nest import Nest, NestKind, Tile, loop_variables

_COLUMNS, _FEW_COLUMNS = 16, 8
_SET_ELEMENTS = 1024
"""Lines at a stride of a multiple of this (4 KiB of floats) share one set of a first-level cache, which has eight ways or more."""
_MIN_EXTENT = 16


def _contiguous(index: Any, variables: list[Any]) -> list[int]:
    expanded = sympy.expand(sympy.sympify(index))
    return [k for k, v in enumerate(variables) if expanded.coeff(v) == 1]


def find_tile(nest: Nest) -> Tile | None:
    """Give the loops to tile, or None where everything is read as it is written."""
    if nest.kind is not NestKind.POINTWISE or nest.split is not None or len(nest.inner) < 2 or not nest.stores:
        return None
    variables = loop_variables(len(nest.sizes))
    written = {k for _, index in nest.stores for k in _contiguous(index, variables)}
    if len(written) != 1:
        return None
    (lanes,) = written
    for _, index in nest.loads:
        read = _contiguous(index, variables)
        stride = sympy.expand(sympy.sympify(index)).coeff(variables[lanes])
        if len(read) != 1 or read[0] == lanes or stride == 0:
            continue
        if min(lanes, read[0]) < nest.outer or min(nest.sizes[lanes], nest.sizes[read[0]]) < _MIN_EXTENT:
            continue
        crowded = stride.is_Integer and int(stride) % _SET_ELEMENTS == 0
        return Tile(lanes, read[0], _FEW_COLUMNS if crowded else _COLUMNS)
    return None
