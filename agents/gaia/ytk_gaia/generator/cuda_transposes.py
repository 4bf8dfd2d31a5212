"""Pointwise nests that read in another order than they write: through tiles in shared memory, so that both are in runs of 32.

A row of a tile has one element of padding: the threads that go down a column then use 32 banks instead of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from ytk_gaia.generator.cuda_schedules import Printed, decode
from ytk_gaia.generator.nest import Nest, NestKind, loop_variables
from ytk_gaia.generator.schedules import extent_text, product_text

SIDE = 32
THREADS = 256
_LEAST = 16
_MOST_TILES = 4


@dataclass(frozen=True)
class Tiled:
    """A nest that goes through tiles.

    Attributes:
        nest: As printed.
        across: Number of the loop along which the loads run in memory.
        loads: Text of each load that goes through a tile, and the C++ type of its value.
    """

    nest: Nest
    across: int
    loads: tuple[tuple[str, str], ...]

    @property
    def nests(self) -> tuple[Nest, ...]:
        """The one nest."""
        return (self.nest,)


def _runs_along(index: Any, variables: Sequence[Any]) -> int | None:
    """Give the number of the loop along which an index moves by single elements."""
    found = sympy.expand(sympy.sympify(index))
    return next((k for k, v in enumerate(variables) if found.coeff(v) == 1), None)


def find_tiles(nest: Nest, text_of: Callable[[str, Any], tuple[str, str]]) -> Tiled | None:
    """Give the nest through tiles; None where it reads as it writes, or reads only where a mask allows it.

    Args:
        nest: Any nest.
        text_of: Buffer and index to the text of the load in the body, and its C++ type.
    """
    if nest.kind is not NestKind.POINTWISE or type(nest) is not Nest or nest.reduced or len(nest.sizes) < 2:
        return None
    variables = loop_variables(len(nest.sizes))
    last = len(variables) - 1
    masked = any("[&]" in line for line in nest.body)
    if masked or {_runs_along(index, variables) for _, index in nest.stores} != {last}:
        return None
    turned: dict[int, list[tuple[str, str]]] = {}
    for name, index in dict.fromkeys((n, sympy.sympify(i)) for n, i in nest.loads):
        along = _runs_along(index, variables)
        both = along is not None and variables[last] in index.free_symbols and index.free_symbols <= set(variables)
        if along is not None and both and along != last:
            turned.setdefault(along, []).append(text_of(name, index))
    if not turned:
        return None
    across, loads = max(turned.items(), key=lambda item: len(item[1]))
    if min(int(nest.sizes[across]), int(nest.sizes[last])) < _LEAST or len(loads) > _MOST_TILES:
        return None
    if not all(any(text in line for line in nest.body) for text, _ in loads):
        return None
    return Tiled(nest, across, tuple(loads))


def print_tiles(tiled: Tiled) -> Printed:
    """Print the kernel: a block per tile, whose warps read its rows one way and write them the other."""
    nest, last = tiled.nest, len(tiled.nest.sizes) - 1
    rows, columns = extent_text(nest.sizes[tiled.across]), extent_text(nest.sizes[last])
    others = [k for k in range(last) if k != tiled.across]
    tiles = [f"((({n}) + {SIDE - 1}) / {SIDE})" for n in (rows, columns)]
    count = f"{product_text([nest.sizes[k] for k in others])} * {tiles[0]} * {tiles[1]}"
    down, right = f"i{tiled.across}", f"i{last}"
    body = list(nest.body)
    for number, (text, _) in enumerate(tiled.loads):
        body = [line.replace(text, f"tile{number}[column][step]") for line in body]
    lines = [
        *(f"__shared__ {c} tile{k}[{SIDE}][{SIDE + 1}];" for k, (_, c) in enumerate(tiled.loads)),
        f"const int column = threadIdx.x % {SIDE};",
        f"for (I item = blockIdx.x; item < {count}; item += gridDim.x) {{",
        "I rest_tile = item;",
        f"const I tile_right = rest_tile % ({tiles[1]}); rest_tile /= ({tiles[1]});",
        f"const I tile_down = rest_tile % ({tiles[0]}); rest_tile /= ({tiles[0]});",
        *decode([f"i{k}" for k in others], [nest.sizes[k] for k in others], "rest_tile"),
        f"for (int step = threadIdx.x / {SIDE}; step < {SIDE}; step += {THREADS // SIDE}) {{",
        f"const I {down} = tile_down * {SIDE} + column, {right} = tile_right * {SIDE} + step;",
        f"if ({down} < {rows} && {right} < {columns}) {{",
        *(f"tile{k}[step][column] = {text};" for k, (text, _) in enumerate(tiled.loads)),
        "}",
        "}",
        "__syncthreads();",
        f"for (int step = threadIdx.x / {SIDE}; step < {SIDE}; step += {THREADS // SIDE}) {{",
        f"const I {down} = tile_down * {SIDE} + step, {right} = tile_right * {SIDE} + column;",
        f"if ({down} < {rows} && {right} < {columns}) {{",
        *body,
        "}",
        "}",
        "__syncthreads();",
        "}",
    ]
    return Printed(lines, count, 1, THREADS)
