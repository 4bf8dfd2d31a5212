"""Prints the loops of a nest as a schedule says: vector lanes, rows side by side, threads. Pure text; knows nothing of torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from ytk_gaia.generator.ordered_loops import cuts_scan, print_cut_scan, print_scatter
from ytk_gaia.generator.schedules import (
    LANES,
    MIN_TILE,
    Dynamic,
    Schedule,
    Vector,
    extent_text,
    for_loop,
    parallel_depth,
    parallel_for,
    product_text,
    tile_size,
)
from ytk_gaia.generator.tile_printer import tile_loops

if TYPE_CHECKING:
    from ytk_gaia.generator.nest import Jam, Nest

_MAX_UNROLLED = 8
"""Positions beside the inside of a split loop, and iterations of a short innermost loop, that are printed one by one."""
_MAX_TOGETHER = 4
"""Columns beyond whole vectors that are computed along with the last of these."""
_SIMD = "#pragma omp simd"


def _close(count: int) -> str:
    return "}" * count


def _reduced_loops(nest: Nest) -> list[str]:
    return [for_loop(f"r{k}", size) for k, size in enumerate(nest.reduced)]


def _state(nest: Nest) -> list[str]:
    return [f"{v.c_type} {v.name} = {v.initial};" for v in nest.state]


def _threads(nest: Nest, schedule: Schedule, loops: Sequence[int], *, simd: bool = False) -> list[str]:
    """Print the pragma for the nest's first ``loops`` (their trip counts), or nothing."""
    depth = parallel_depth(nest, schedule, len(loops))
    return [parallel_for(depth, prod(int(n) for n in loops[:depth]), schedule, simd=simd)] if depth else []


def _at(variable: str, places: Iterable[int], body: Sequence[str]) -> list[str]:
    """Print the body once per place, the variable a constant: the compiler decides what depends on it."""
    return [line for place in places for line in ("{", f"constexpr int64_t {variable} = {place};", *body, "}")]


_LET = re.compile(r"(?:\[\[maybe_unused\]\] )?const auto (t\d+) = ")
_NAME = re.compile(r"\b[itrs]\d+\b")


def _hoisted(body: Sequence[str], variable: str) -> tuple[list[str], list[str]]:
    """Part a body into what is the same for every value of ``variable`` and the rest.

    The compiler cannot: a store might change what a load before the loop has read. Nests never read what they write.
    """
    outside: list[str] = []
    inside: list[str] = []
    moving = {variable}
    for statement in body:
        made = _LET.match(statement)
        fixed = made is not None and not moving.intersection(_NAME.findall(statement))
        (outside if fixed else inside).append(statement)
        if made is not None and not fixed:
            moving.add(made[1])
    return outside, inside


# ---- pointwise -------------------------------------------------------------------------------------------------------


def _pointwise(nest: Nest, schedule: Schedule) -> list[str]:
    inner, body = nest.inner, nest.body
    if not inner:
        return ["{", *body, "}"]
    simd = schedule.vector is not Vector.SCALAR
    last, size = inner[-1]
    short = not isinstance(size, Dynamic) and size <= _MAX_UNROLLED
    if simd and schedule.vector is Vector.ACROSS and short and len(inner) > 1 and inner[-2][1] >= MIN_TILE:
        # Lanes run along the loop around a short one: repeated pixels, interleaved pairs.
        inner, body = inner[:-1], _at(f"i{last}", range(size), body)
    loops = [for_loop(f"i{k}", n) for k, n in inner]
    before: list[str] = []
    # Not out of a loop that may not run at all: what it loads need not exist.
    if body is nest.body and not isinstance(inner[-1][1], Dynamic):
        before, body = _hoisted(body, f"i{last}")
    if len(loops) == 1:
        shared = _threads(nest, schedule, [inner[0][1]], simd=simd)
        return ["{", *before, *(shared or ([_SIMD] if simd else [])), *loops, *body, _close(2)]
    # The innermost loop keeps its vector lanes: only a nest of one loop shares it out as well.
    lines = _threads(nest, schedule, [n for _, n in inner[:-1]])
    loops[-1:] = [*before, *([_SIMD] if simd else []), loops[-1]]
    return [*lines, *loops, *body, _close(len(inner))]


def _inside(last: int, low: int, high: int, body: Sequence[str]) -> list[str]:
    """Run the inside in whole vectors: the last block overlaps the one before, which writes the same values again."""
    variable = f"i{last}"
    if high - low < LANES:
        return [_SIMD, f"for (int64_t {variable} = {low}; {variable} < {high}; ++{variable}) {{", *body, "}"]
    return [
        f"for (int64_t block = {low}; block < {high}; block += {LANES}) {{",
        f"const int64_t first = block < {high - LANES} ? block : {high - LANES};",
        _SIMD,
        f"for (int l = 0; l < {LANES}; ++l) {{",
        f"const int64_t {variable} = first + l;",
        *body,
        "}}",
    ]


def _edges(last: int, low: int, high: int, size: int, body: Sequence[str]) -> list[str]:
    """Run what is beside the inside: a few positions as constants, by which the compiler decides their masks; more as a loop."""
    places = [*range(low), *range(high, size)]
    if len(places) <= _MAX_UNROLLED:
        return _at(f"i{last}", places, body)
    following = f"i{last} + 1 == {low} ? {high} : i{last} + 1"
    return [f"for (int64_t i{last} = {0 if low else high}; i{last} < {size}; i{last} = {following}) {{", *body, "}"]


def _split_pointwise(nest: Nest, schedule: Schedule) -> list[str]:
    """Run the inside of the innermost loop without masks, and its edges with them."""
    assert nest.split is not None
    split, last, size = nest.split, len(nest.sizes) - 1, int(nest.sizes[-1])
    low, high, inner = split.interior.low, split.interior.high, nest.inner
    lines = _threads(nest, schedule, [n for _, n in inner[:-1]])
    lines += [for_loop(f"i{k}", extent) for k, extent in inner[:-1]]
    lines += [f"if ({split.inside}) {{", *_inside(last, low, high, split.free)]
    lines += _edges(last, low, high, size, split.sides)
    if split.interior.outer:
        lines += ["} else {", *_inside(last, low, high, split.middle), *_edges(last, low, high, size, nest.body)]
    return [*lines, "}", _close(len(inner) - 1)]


def _jammed_pointwise(nest: Nest, schedule: Schedule, jam: Jam) -> list[str]:
    """Run several rows side by side inside the vector loop."""
    inner, (at, extent), (last, size) = nest.inner, nest.inner[-2], nest.inner[-1]
    row, end = f"i{at}", extent_text(extent)
    before, body = _hoisted(jam.body, f"i{last}")
    lines = _threads(nest, schedule, [n for _, n in inner[:-2]])
    lines += [for_loop(f"i{k}", n) for k, n in inner[:-2]]
    lines += ["{", "int64_t next = 0;", f"for (; next + {jam.rows} <= {end}; next += {jam.rows}) {{"]
    lines += [f"const int64_t {row} = next;", *before, _SIMD, for_loop(f"i{last}", size), *body, "}}"]
    lines += [f"for (int64_t {row} = next; {row} < {end}; ++{row}) {{"]
    lines += [_SIMD, for_loop(f"i{last}", size), *nest.body, "}}", "}"]
    return [*lines, _close(len(inner) - 2)]


# ---- reductions ------------------------------------------------------------------------------------------------------


def _plain_reduction(nest: Nest) -> list[str]:
    return [*_state(nest), *_reduced_loops(nest), *nest.body, _close(len(nest.reduced))]


def _along_reduction(nest: Nest) -> list[str]:
    """Vectorise along the last reduced dim with a fixed number of running results, joined pairwise at the end."""
    size, last = nest.reduced[-1], len(nest.reduced) - 1
    # Several vectors: one alone would wait for its own last sum.
    lanes = 4 * LANES if size >= 8 * LANES else LANES
    dynamic = isinstance(size, Dynamic)
    whole = f"({extent_text(size)} / {lanes} * {lanes})" if dynamic else str(size - size % lanes)
    rest = f"({extent_text(size)} % {lanes})" if dynamic else str(size % lanes)
    names = [v.name for v in nest.state]
    arrays = [f"{v.c_type} {v.name}_lanes[{lanes}];" for v in nest.state]
    arrays += [f"for (int l = 0; l < {lanes}; ++l) {v.name}_lanes[l] = {v.initial};" for v in nest.state]
    references = [f"[[maybe_unused]] auto& {name} = {name}_lanes[l];" for name in names]
    lines = [*arrays, *_reduced_loops(nest)[:-1]]
    lines += [for_loop("base", whole, lanes), _SIMD, f"for (int l = 0; l < {lanes}; ++l) {{"]
    lines += [f"const int64_t r{last} = base + l;", *references, *nest.body, "}", "}"]
    if dynamic or size % lanes:
        lines += [f"for (int l = 0; l < {rest}; ++l) {{", f"const int64_t r{last} = {whole} + l;"]
        lines += [*references, *nest.body, "}"]
    lines.append(_close(last))
    half = lanes // 2
    while half:
        for v in nest.state:
            joined = (v.combine or "").format(a=f"{v.name}_lanes[l]", b=f"{v.name}_lanes[l + {half}]")
            lines.append(f"for (int l = 0; l < {half}; ++l) {v.name}_lanes[l] = {joined};")
        half //= 2
    lines += [f"{v.c_type} {v.name} = {v.name}_lanes[0];" for v in nest.state]
    return lines


@dataclass(frozen=True)
class _Part:
    """Neighbouring outputs from ``start`` on (C++), ``width`` of them (C++ where it is not fixed), at most ``room``."""

    start: str
    width: int | str
    room: int


def _tile_of_results(nest: Nest, parts: Sequence[_Part], rows: int) -> list[str]:
    """Reduce for ``rows`` rows from ``row0`` and each part's outputs: one running result each.

    The reduced loops are outside and the lanes inside; with a fixed width the compiler keeps all running results in registers.
    """
    last = len(nest.sizes) - 1

    def each(part: _Part, number: int, body: Sequence[str], *, simd: bool) -> list[str]:
        lines = [_SIMD] if simd else []
        lines += [f"for (int64_t l = 0; l < {part.width}; ++l) {{", f"const int64_t i{last} = {part.start} + l;"]
        for k in range(rows):
            references = [f"[[maybe_unused]] auto& {v.name} = {v.name}_tile{number}_{k}[l];" for v in nest.state]
            row = [f"[[maybe_unused]] const int64_t i{last - 1} = row0 + {k};"] if rows > 1 else []
            lines += ["{", *row, *references, *body, "}"]
        return [*lines, "}"]

    lines = []
    for number, part in enumerate(parts):
        for k in range(rows):
            for v in nest.state:
                name = f"{v.name}_tile{number}_{k}"
                lines.append(f"{v.c_type} {name}[{part.room}];")
                lines.append(f"for (int64_t l = 0; l < {part.width}; ++l) {name}[l] = {v.initial};")
    lines += _reduced_loops(nest)
    for number, part in enumerate(parts):
        lines += each(part, number, nest.body, simd=True)
    lines.append(_close(len(nest.reduced)))
    for number, part in enumerate(parts):
        lines += each(part, number, nest.epilogue, simd=False)
    return lines


def _across_reduction(nest: Nest, schedule: Schedule) -> list[str]:
    """Vectorise over neighbouring outputs: a tile of running results, the reduced loops outside, the tile inside."""
    inner, size = nest.inner, nest.sizes[-1]
    if schedule.jam > 1 and len(inner) > 1 and inner[-2][1] > 1 and size >= LANES:
        return _blocked_reduction(nest, schedule)
    tile = tile_size(size)
    lines = _threads(nest, schedule, [*(n for _, n in inner[:-1]), -(-size // tile)])
    lines += [for_loop(f"i{k}", extent) for k, extent in inner[:-1]] + [for_loop("tile", size, tile)]
    if size % tile == 0 and not isinstance(size, Dynamic):
        return [*lines, *_tile_of_results(nest, [_Part("tile", tile, tile)], 1), _close(len(inner))]
    end = extent_text(size)
    lines.append(f"const int64_t count = tile + {tile} <= {end} ? {tile} : {end} - tile;")
    return [*lines, *_tile_of_results(nest, [_Part("tile", "count", tile)], 1), _close(len(inner))]


def _blocked_reduction(nest: Nest, schedule: Schedule) -> list[str]:
    """Reduce in blocks of rows by lanes, as a matrix product does: what a row and a column have in common is loaded once."""
    inner, size = nest.inner, nest.sizes[-1]
    at, extent = inner[-2]
    rows = min(schedule.jam, int(extent))
    end, width = extent_text(extent), extent_text(size)
    lines = _threads(nest, schedule, [*(n for _, n in inner[:-2]), -(-extent // rows)])
    lines += [for_loop(f"i{k}", n) for k, n in inner[:-2]] + [for_loop("row0", extent, rows)]
    exact = not isinstance(extent, Dynamic) and extent % rows == 0

    def columns(count: int) -> list[str]:
        whole = _Part("tile", LANES, LANES)
        if isinstance(size, Dynamic):
            found = [f"for (int64_t tile = 0; tile + {LANES} <= {width}; tile += {LANES}) {{"]
            found += [*_tile_of_results(nest, [whole], count), "}", "{"]
            found += [f"const int64_t tile = {width} / {LANES} * {LANES};", f"const int64_t rest = {width} - tile;"]
            return [*found, *_tile_of_results(nest, [_Part("tile", "rest", LANES)], count), "}"]
        rest = size % LANES
        # A few columns more go with the last whole vector: alone they would cost as much as it does.
        together = 0 < rest <= _MAX_TOGETHER
        end = size - rest - (LANES if together else 0)
        found = [for_loop("tile", str(end), LANES), *_tile_of_results(nest, [whole], count), "}"] if end else []
        parts = [_Part(str(end), LANES, LANES)] if together else []
        parts += [_Part(str(size - rest), rest, rest)] if rest else []
        return [*found, "{", *_tile_of_results(nest, parts, count), "}"] if parts else found

    if exact:
        lines += columns(rows)
    else:
        lines += [f"if (row0 + {rows} <= {end}) {{", *columns(rows), "} else {"]
        lines += [f"for (int64_t i{at} = row0; i{at} < {end}; ++i{at}) {{", *columns(1), "}}"]
    return [*lines, _close(len(inner) - 1)]


def _reduction(nest: Nest, schedule: Schedule) -> list[str]:
    if schedule.vector is Vector.ACROSS and nest.inner and nest.sizes[-1] >= MIN_TILE:
        return _across_reduction(nest, schedule)
    joinable = bool(nest.state) and all(v.combine for v in nest.state)
    along = schedule.vector is not Vector.SCALAR and joinable and nest.reduced[-1] >= LANES
    inner = _along_reduction(nest) if along else _plain_reduction(nest)
    return _rows(nest, schedule, [*inner, *nest.epilogue])


def _rows(nest: Nest, schedule: Schedule, body: Sequence[str]) -> list[str]:
    """Run ``body`` for every output row, rows in parallel."""
    lines = _threads(nest, schedule, [n for _, n in nest.inner])
    lines += [for_loop(f"i{k}", size) for k, size in nest.inner]
    return [*lines, *body, _close(len(nest.inner))] if nest.inner else ["{", *body, "}"]


# ---- the rest --------------------------------------------------------------------------------------------------------


def _sort(nest: Nest, schedule: Schedule, scratch: str) -> list[str]:
    keys = nest.sort
    if keys is None:
        msg = "a sort nest without keys"
        raise ValueError(msg)
    pair, count = keys.pair_type, product_text(nest.reduced)
    inner = [
        f"{pair}* const {keys.buffer} = ({pair}*)({scratch});",
        *_reduced_loops(nest),
        *keys.fill,
        _close(len(nest.reduced)),
        f"ytk::sort_pairs<{'true' if keys.descending else 'false'}>({keys.buffer}, {count});",
        *_reduced_loops(nest),
        *nest.body,
        _close(len(nest.reduced)),
    ]
    return _rows(nest, schedule, inner)


def print_loops(nest: Nest, schedule: Schedule, sort_scratch: str = "") -> list[str]:
    """Print one nest with its loops.

    Args:
        nest: Sizes must be plain integers or :class:`Dynamic`. The first ``nest.outer`` loops are the caller's, threads included.
        schedule: How to run it.
        sort_scratch: C++ pointer to memory of the running thread, for a sort.

    Returns:
        C++ statements that use ``threads``, ``workspace`` and the pointers of the nest.
    """
    kind = nest.kind.value
    if kind == "reduction":
        return _reduction(nest, schedule)
    if kind == "scan":
        return (
            print_cut_scan(nest, schedule)
            if cuts_scan(nest, schedule)
            else _rows(nest, schedule, _plain_reduction(nest))
        )
    if kind == "sort":
        return _sort(nest, schedule, sort_scratch)
    if kind == "scatter":
        return print_scatter(nest, schedule)
    if schedule.split and nest.split is not None:
        return _split_pointwise(nest, schedule)
    jam = nest.jams.get(schedule.jam)
    if jam is not None:
        return _jammed_pointwise(nest, schedule, jam)
    if nest.tile is not None and schedule.jam > 1 and schedule.vector is not Vector.SCALAR:
        counts, lines = tile_loops(nest, nest.tile)
        return [*_threads(nest, schedule, counts), *lines]
    return _pointwise(nest, schedule)


def print_shared_rows(
    nests: Sequence[Nest], outer: int, schedule: Schedule, sort_scratch: str, declarations: Sequence[str]
) -> list[str]:
    """Print nests that take turns in every iteration of loops that they share.

    Args:
        nests: In order of execution; each with its leading loops outside (``nest.outer``), of ``outer`` iterations together.
        outer: How many; the running one is ``shared``.
        schedule: How the inner loops are run; outer ones are shared among threads unless it says one thread.
        sort_scratch: See :func:`print_loops`.
        declarations: C++ statements at the start of each iteration.
    """
    lines = [parallel_for(1, outer, schedule)] if schedule.parallel else []
    lines += [for_loop("shared", outer), *declarations]
    for nest in nests:
        lines.append("{")
        following = 1
        for k in range(nest.outer - 1, -1, -1):
            digit = f"shared / {following}" if following > 1 else "shared"
            digit = f"{digit} % {int(nest.sizes[k])}" if k else digit
            lines.append(f"[[maybe_unused]] const int64_t i{k} = {digit};")
            following *= int(nest.sizes[k])
        lines += [*print_loops(nest, schedule, sort_scratch), "}"]
    return [*lines, "}"]
