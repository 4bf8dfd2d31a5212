"""How the loops of a nest are run: which in parallel, which in vector lanes. Pure text; knows nothing of torch.

A schedule changes the order of independent iterations only. Sums keep one fixed order per schedule, so two runs agree bit by
bit with any number of threads.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from ytk_gaia.generator.nest import Nest

LANES = 16
"""Partial results per vectorised reduction: one AVX-512 register of floats, two of AVX2."""
_MIN_TILE = 8
_MAX_UNROLLED = 8
"""Positions beside the inside of a split loop that are printed one by one."""
_MAX_TILE = 64
_PARALLEL_WORK = 16384
"""Iterations below which starting a thread team costs more than it gives."""


class Dynamic(int):
    """An extent that is known at run time only: as a number the captured one, which decides how loops are run.

    Attributes:
        text: C++ expression of the extent; what is printed.
    """

    text: str

    def __new__(cls, captured: int, text: str) -> Self:
        """Make one of the captured extent and its expression."""
        made = super().__new__(cls, captured)
        made.text = text
        return made


def extent_text(size: int) -> str:
    """Give the C++ text of an extent."""
    return size.text if isinstance(size, Dynamic) else str(int(size))


def product_text(sizes: Sequence[int]) -> str:
    """Give the C++ text of a product of extents."""
    if any(isinstance(size, Dynamic) for size in sizes):
        return " * ".join(f"(int64_t){extent_text(size)}" for size in sizes)
    return f"{prod(sizes)}L"


class Vector(enum.StrEnum):
    """Where a reduction gets its vector lanes from."""

    SCALAR = "scalar"
    ALONG = "along"
    """Lanes run along the reduced dim and are joined at the end."""
    ACROSS = "across"
    """Lanes are neighbouring outputs, each with its own running result."""


@dataclass(frozen=True)
class Schedule:
    """One way to run every nest of a kernel.

    Attributes:
        parallel: How many outer loops are shared out among the threads; 0: one thread.
        vector: Lanes of reductions. Pointwise loops are vectorised along the innermost dim unless ``scalar``.
        split: Whether loops with masks run without them where all hold.
    """

    parallel: int
    vector: Vector
    split: bool = False

    @property
    def name(self) -> str:
        """Word for candidate ids."""
        return f"p{self.parallel}-{self.vector}{'-split' if self.split else ''}"


SCHEDULES: tuple[Schedule, ...] = (
    Schedule(2, Vector.ALONG),
    Schedule(2, Vector.ACROSS),
    Schedule(1, Vector.ACROSS),
    Schedule(0, Vector.ALONG),
    Schedule(2, Vector.ACROSS, split=True),
)


def _for(variable: str, size: int | str, step: int = 1) -> str:
    advance = f"++{variable}" if step == 1 else f"{variable} += {step}"
    limit = size if isinstance(size, str) else extent_text(size)
    return f"for (int64_t {variable} = 0; {variable} < {limit}; {advance}) {{"


def _parallel(depth: int, threads: str = "threads") -> str:
    collapse = f" collapse({depth})" if depth > 1 else ""
    return f"#pragma omp parallel for schedule(static) num_threads({threads}){collapse}"


def _reduced_loops(nest: Nest) -> list[str]:
    return [_for(f"r{k}", size) for k, size in enumerate(nest.reduced)]


def _state(nest: Nest) -> list[str]:
    return [f"{v.c_type} {v.name} = {v.initial};" for v in nest.state]


def _close(count: int) -> str:
    return "}" * count


def _parallel_depth(nest: Nest, schedule: Schedule, loops: int) -> int:
    work = prod(nest.sizes) * prod(nest.reduced)
    if work < _PARALLEL_WORK or loops == 0:
        return 0
    return min(schedule.parallel, loops)


def _pointwise(nest: Nest, schedule: Schedule) -> list[str]:
    loops = [_for(f"i{k}", size) for k, size in enumerate(nest.sizes)]
    if not loops:
        return ["{", *nest.body, "}"]
    lines: list[str] = []
    simd = schedule.vector is not Vector.SCALAR
    # The innermost loop keeps its vector lanes: only a nest of one loop shares it out as well.
    depth = _parallel_depth(nest, schedule, max(1, len(loops) - 1))
    if len(loops) == 1:
        if depth and simd:
            lines.append("#pragma omp parallel for simd schedule(static) num_threads(threads)")
        elif depth:
            lines.append(_parallel(1))
        elif simd:
            lines.append("#pragma omp simd")
        return [*lines, *loops, *nest.body, _close(1)]
    if depth:
        lines.append(_parallel(depth))
    if simd:
        loops.insert(len(loops) - 1, "#pragma omp simd")
    return [*lines, *loops, *nest.body, _close(len(nest.sizes))]


def _inside(last: int, low: int, high: int, body: Sequence[str]) -> list[str]:
    """Run the inside in whole vectors: the last block overlaps the one before, which writes the same values again."""
    variable, simd = f"i{last}", "#pragma omp simd"
    if high - low < LANES:
        return [simd, f"for (int64_t {variable} = {low}; {variable} < {high}; ++{variable}) {{", *body, "}"]
    return [
        f"for (int64_t block = {low}; block < {high}; block += {LANES}) {{",
        f"const int64_t first = block < {high - LANES} ? block : {high - LANES};",
        simd,
        f"for (int l = 0; l < {LANES}; ++l) {{",
        f"const int64_t {variable} = first + l;",
        *body,
        "}}",
    ]


def _edges(last: int, low: int, high: int, size: int, body: Sequence[str]) -> list[str]:
    """Run what is beside the inside: a few positions as constants, by which the compiler decides their masks; more as a loop."""
    places = [*range(low), *range(high, size)]
    if len(places) <= _MAX_UNROLLED:
        return [line for place in places for line in ("{", f"constexpr int64_t i{last} = {place};", *body, "}")]
    following = f"i{last} + 1 == {low} ? {high} : i{last} + 1"
    return [f"for (int64_t i{last} = {0 if low else high}; i{last} < {size}; i{last} = {following}) {{", *body, "}"]


def _split_pointwise(nest: Nest, schedule: Schedule) -> list[str]:
    """Run the inside of the innermost loop without masks, and its edges with them."""
    assert nest.split is not None
    split, last, size = nest.split, len(nest.sizes) - 1, int(nest.sizes[-1])
    low, high = split.interior.low, split.interior.high
    depth = _parallel_depth(nest, schedule, last)
    lines = [_parallel(depth)] if depth else []
    lines += [_for(f"i{k}", extent) for k, extent in enumerate(nest.sizes[:-1])]
    lines += [f"if ({split.inside}) {{", *_inside(last, low, high, split.free)]
    lines += _edges(last, low, high, size, split.sides)
    if split.interior.outer:
        lines += ["} else {", *_inside(last, low, high, split.middle), *_edges(last, low, high, size, nest.body)]
    return [*lines, "}", _close(last)]


def _plain_reduction(nest: Nest) -> list[str]:
    return [*_state(nest), *_reduced_loops(nest), *nest.body, _close(len(nest.reduced))]


def _along_reduction(nest: Nest) -> list[str]:
    """Vectorise along the last reduced dim with LANES running results, joined pairwise at the end."""
    size, last = nest.reduced[-1], len(nest.reduced) - 1
    dynamic = isinstance(size, Dynamic)
    whole = f"({extent_text(size)} / {LANES} * {LANES})" if dynamic else str(size - size % LANES)
    rest = f"({extent_text(size)} % {LANES})" if dynamic else str(size % LANES)
    names = [v.name for v in nest.state]
    arrays = [f"{v.c_type} {v.name}_lanes[{LANES}];" for v in nest.state]
    arrays += [f"for (int l = 0; l < {LANES}; ++l) {v.name}_lanes[l] = {v.initial};" for v in nest.state]
    references = [f"[[maybe_unused]] auto& {name} = {name}_lanes[l];" for name in names]
    lines = [*arrays, *_reduced_loops(nest)[:-1]]
    lines += [_for("base", whole, LANES), "#pragma omp simd", f"for (int l = 0; l < {LANES}; ++l) {{"]
    lines += [f"const int64_t r{last} = base + l;", *references, *nest.body, "}", "}"]
    if dynamic or size % LANES:
        lines += [f"for (int l = 0; l < {rest}; ++l) {{", f"const int64_t r{last} = {whole} + l;"]
        lines += [*references, *nest.body, "}"]
    lines.append(_close(last))
    half = LANES // 2
    while half:
        for v in nest.state:
            joined = (v.combine or "").format(a=f"{v.name}_lanes[l]", b=f"{v.name}_lanes[l + {half}]")
            lines.append(f"for (int l = 0; l < {half}; ++l) {v.name}_lanes[l] = {joined};")
        half //= 2
    lines += [f"{v.c_type} {v.name} = {v.name}_lanes[0];" for v in nest.state]
    return lines


def tile_size(size: int) -> int:
    """Give the tile for a dim of ``size``: its largest divisor up to 64 where that is at least 8, else 64 or all of it."""
    if isinstance(size, Dynamic):
        return _MAX_TILE if size >= _MAX_TILE else 2 * _MIN_TILE
    if size <= _MAX_TILE:
        return size
    return next((t for t in range(_MAX_TILE, _MIN_TILE - 1, -1) if size % t == 0), _MAX_TILE)


def _across_reduction(nest: Nest, schedule: Schedule) -> list[str]:
    """Vectorise over neighbouring outputs: a tile of running results, the reduced loops outside, the tile inside."""
    last, size = len(nest.sizes) - 1, nest.sizes[-1]
    tile = tile_size(size)
    outer = [_for(f"i{k}", extent) for k, extent in enumerate(nest.sizes[:-1])] + [_for("tile", size, tile)]
    depth = _parallel_depth(nest, schedule, len(outer))
    exact = size % tile == 0 and not isinstance(size, Dynamic)
    count = f"{tile}" if exact else "count"
    each = f"for (int64_t l = 0; l < {count}; ++l) {{"
    variable = f"const int64_t i{last} = tile + l;"
    references = [f"[[maybe_unused]] auto& {v.name} = {v.name}_tile[l];" for v in nest.state]
    lines = [_parallel(depth)] if depth else []
    lines += outer
    if count == "count":
        end = extent_text(size)
        lines.append(f"const int64_t count = tile + {tile} <= {end} ? {tile} : {end} - tile;")
    lines += [f"{v.c_type} {v.name}_tile[{tile}];" for v in nest.state]
    lines += [f"for (int64_t l = 0; l < {count}; ++l) {v.name}_tile[l] = {v.initial};" for v in nest.state]
    lines += [*_reduced_loops(nest), "#pragma omp simd", each, variable, *references, *nest.body, "}"]
    lines.append(_close(len(nest.reduced)))
    lines += [each, variable, *references, *nest.epilogue, "}"]
    return [*lines, _close(len(outer))]


def _reduction(nest: Nest, schedule: Schedule) -> list[str]:
    if schedule.vector is Vector.ACROSS and nest.sizes and nest.sizes[-1] >= _MIN_TILE:
        return _across_reduction(nest, schedule)
    joinable = bool(nest.state) and all(v.combine for v in nest.state)
    along = schedule.vector is not Vector.SCALAR and joinable and nest.reduced[-1] >= LANES
    inner = _along_reduction(nest) if along else _plain_reduction(nest)
    return _rows(nest, schedule, [*inner, *nest.epilogue])


def _rows(nest: Nest, schedule: Schedule, inner: Sequence[str]) -> list[str]:
    """Run ``inner`` for every output row, rows in parallel."""
    depth = _parallel_depth(nest, schedule, len(nest.sizes))
    lines = [_parallel(depth)] if depth else []
    lines += [_for(f"i{k}", size) for k, size in enumerate(nest.sizes)]
    return [*lines, *inner, _close(len(nest.sizes))] if nest.sizes else ["{", *inner, "}"]


def _sort(nest: Nest, schedule: Schedule, scratch_offset: int | str) -> list[str]:
    keys = nest.sort
    if keys is None:
        msg = "a sort nest without keys"
        raise ValueError(msg)
    pair, count = keys.pair_type, product_text(nest.reduced)
    inner = [
        f"{pair}* const {keys.buffer} = ({pair}*)(workspace + {scratch_offset}) + ytk::thread_number() * ({count});",
        *_reduced_loops(nest),
        *keys.fill,
        _close(len(nest.reduced)),
        f"ytk::sort_pairs<{'true' if keys.descending else 'false'}>({keys.buffer}, {count});",
        *_reduced_loops(nest),
        *nest.body,
        _close(len(nest.reduced)),
    ]
    return _rows(nest, schedule, inner)


def print_loops(nest: Nest, schedule: Schedule, sort_scratch: int | str = 0) -> list[str]:
    """Print one nest with its loops.

    Args:
        nest: Sizes must be plain integers or :class:`Dynamic`.
        schedule: How to run it.
        sort_scratch: Byte offset in the workspace of the sort buffers (one per thread), for a sort.

    Returns:
        C++ statements that use ``threads``, ``workspace`` and the pointers of the nest.
    """
    kind = nest.kind.value
    if kind == "reduction":
        return _reduction(nest, schedule)
    if kind == "scan":
        return _rows(nest, schedule, _plain_reduction(nest))
    if kind == "sort":
        return _sort(nest, schedule, sort_scratch)
    if kind == "scatter":
        loops = [*(_for(f"i{k}", size) for k, size in enumerate(nest.sizes)), *_reduced_loops(nest)]
        return ["{", *_state(nest), *loops, *nest.body, _close(len(loops)), "}"]
    if schedule.split and nest.split is not None:
        return _split_pointwise(nest, schedule)
    return _pointwise(nest, schedule)
