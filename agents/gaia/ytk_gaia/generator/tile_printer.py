"""Prints a nest that transposes in tiles: see :mod:`ytk_gaia.generator.tiles`. Pure text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ytk_gaia.generator.schedules import extent_text, for_loop

if TYPE_CHECKING:
    from ytk_gaia.generator.nest import Nest, Tile

_ROWS = 16
"""Iterations along what is read: a cache line of floats."""


def tile_loops(nest: Nest, tile: Tile) -> tuple[list[int], list[str]]:
    """Give the trip counts of the loops that threads may share, and the loops with the body inside, braces closed."""
    a, b = tile.written, tile.read
    others = [(k, n) for k, n in nest.inner if k not in {a, b}]
    wide, high = nest.sizes[a], nest.sizes[b]
    lines = [for_loop(f"i{k}", n) for k, n in others]
    lines += [for_loop("down", high, _ROWS), for_loop("over", wide, tile.columns)]
    fits = f"down + {_ROWS} <= {extent_text(high)} && over + {tile.columns} <= {extent_text(wide)}"
    lines += [f"if ({fits}) {{", *_inside(a, b, str(tile.columns), str(_ROWS), nest.body), "} else {"]
    lines.append(f"const int64_t rows = down + {_ROWS} <= {extent_text(high)} ? {_ROWS} : {extent_text(high)} - down;")
    columns = f"{extent_text(wide)} - over"
    lines.append(f"const int64_t columns = over + {tile.columns} <= {extent_text(wide)} ? {tile.columns} : {columns};")
    lines += [*_inside(a, b, "columns", "rows", nest.body), "}"]
    return [*(int(n) for _, n in others), -(-int(high) // _ROWS)], [*lines, "}" * (len(others) + 2)]


def _inside(a: int, b: int, columns: str, rows: str, body: list[str]) -> list[str]:
    return [
        f"for (int64_t k = 0; k < {rows}; ++k) {{",
        f"const int64_t i{b} = down + k;",
        "#pragma omp simd",
        f"for (int64_t l = 0; l < {columns}; ++l) {{",
        f"const int64_t i{a} = over + l;",
        *body,
        "}",
        "}",
    ]
