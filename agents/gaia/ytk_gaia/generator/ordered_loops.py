"""Prints nests whose iterations depend on one another, shared among threads: scatters and long scans. Pure text.

Results have the same bits with any number of threads: a scatter keeps the order of the values of each element, a scan is cut into
a number of blocks that does not depend on the threads.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from ytk_gaia.generator.schedules import (
    MIN_TILE,
    PARALLEL_WORK,
    Schedule,
    Vector,
    extent_text,
    for_loop,
    parallel_for,
)

if TYPE_CHECKING:
    from ytk_gaia.generator.nest import Nest

BLOCKS = 32
"""Blocks of a long scan; fixed, because it decides how sums are rounded."""
_SIDE_BY_SIDE = 4
"""Blocks that one thread runs at a time: a scan waits for its own last result, so that others cost it nothing."""
_LONG = 8192
"""Steps from which a scan is worth two passes."""
_FEW_ROWS = 8
_MIN_SHARE = 16
"""Iterations of a loop, or elements, below which threads have nothing to share."""


def is_store(statement: str) -> bool:
    """Whether a statement of a printed body writes to memory."""
    return statement.startswith("ytk::store(")


# ---- scatters --------------------------------------------------------------------------------------------------------


def _bounds(size: int) -> list[str]:
    text = f"(int64_t)({extent_text(size)})"
    return [f"const int64_t low = {text} * part / threads, high = {text} * (part + 1) / threads;"]


def print_scatter(nest: Nest, schedule: Schedule) -> list[str]:
    """Print a scatter: threads share a loop by which iterations never meet, or else the elements that are written.

    Args:
        nest: Its sizes are plain integers or :class:`~ytk_gaia.generator.schedules.Dynamic`.
        schedule: One thread, or several.
    """
    parts, inner = nest.parts, nest.inner
    plain = parts is not None and not nest.state and not nest.reduced and bool(inner)
    free = parts.free if parts is not None and plain else ()
    lanes = bool(free) and free[-1] == len(nest.sizes) - 1 and nest.sizes[-1] >= MIN_TILE
    lanes = lanes and schedule.vector is not Vector.SCALAR
    loops = [for_loop(f"i{k}", size) for k, size in inner]
    body = list(nest.body)
    head: list[str] = []
    if parts is not None and plain and schedule.parallel and prod(nest.sizes) >= PARALLEL_WORK:
        at = next((k for k in free if nest.sizes[k] >= _MIN_SHARE), None)
        if at is not None:
            head = _bounds(nest.sizes[at])
            loops[at] = f"for (int64_t i{at} = low; i{at} < high; ++i{at}) {{"
        elif parts.span >= _MIN_SHARE and sum(map(is_store, body)) == 1:
            head = _bounds(parts.span)
            guard = f"if (const int64_t place = {parts.place}; place >= low && place < high)"
            body = [f"{guard} {s}" if is_store(s) else s for s in body]
    if lanes and body == nest.body:
        loops.insert(len(loops) - 1, "#pragma omp simd")
    loops += [for_loop(f"r{k}", size) for k, size in enumerate(nest.reduced)]
    opened = sum(line.endswith("{") for line in loops)
    state = [f"{v.c_type} {v.name} = {v.initial};" for v in nest.state]
    lines = [*state, *loops, *body, "}" * opened]
    if not head:
        return ["{", *lines, "}"]
    # One turn per thread, whatever the schedule says: the turns are equal.
    shared = "#pragma omp parallel for schedule(static, 1) num_threads(threads)"
    return [shared, "for (int part = 0; part < threads; ++part) {", *head, *lines, "}"]


# ---- scans -----------------------------------------------------------------------------------------------------------


def cuts_scan(nest: Nest, schedule: Schedule) -> bool:
    """Whether a scan is one of few long ones, and can be cut into blocks."""
    one = bool(schedule.parallel) and len(nest.reduced) == 1 and bool(nest.joins) and not nest.outer
    return one and nest.reduced[0] >= _LONG and prod(nest.sizes) <= _FEW_ROWS


def _blocks(nest: Nest, schedule: Schedule, *, writing: bool) -> list[str]:
    """Run all blocks, several at a time; the first pass only finds the results at their ends."""
    blocks = range(_SIDE_BY_SIDE)
    lines = [parallel_for(1, BLOCKS // _SIDE_BY_SIDE, schedule)]
    lines += [for_loop("group", BLOCKS, _SIDE_BY_SIDE)]
    for u in blocks:
        for v in nest.state:
            start = f"{v.name}_at[group + {u}]" if writing else v.initial
            lines.append(f"{v.c_type} {v.name}_{u} = {start};")
    lines.append(f"[[maybe_unused]] constexpr bool writing = {'true' if writing else 'false'};")
    body = [f"if (writing) {s}" if is_store(s) else s for s in nest.body]
    steps = {True: ["{{", "const int64_t r0 = {at};"], False: ["if (const int64_t r0 = {at}; r0 < length) {{"]}
    for whole in (True, False):
        # All of the blocks of a group are whole except at the end.
        lines.append(f"if ((group + {_SIDE_BY_SIDE}) * steps <= length) {{" if whole else "} else {")
        lines.append(for_loop("step", "steps"))
        for u in blocks:
            lines += [line.format(at=f"(group + {u}) * steps + step") for line in steps[whole]]
            lines += [f"auto& {v.name} = {v.name}_{u};" for v in nest.state]
            lines += [*body, "}"]
        lines.append("}")
    lines.append("}")
    if not writing:
        lines += [f"{v.name}_at[group + {u}] = {v.name}_{u};" for u in blocks for v in nest.state]
    return [*lines, "}"]


def print_cut_scan(nest: Nest, schedule: Schedule) -> list[str]:
    """Print a scan in two passes over blocks: the results at their ends, then everything from what came before.

    Args:
        nest: One for which :func:`cuts_scan` holds; the last state variable says whether a scan has begun, and ``joins``
            puts the results of a block (``other_<name>``) after those of the ones before.
        schedule: How blocks are shared.
    """
    begun = nest.state[-1].name
    lines = [for_loop(f"i{k}", size) for k, size in nest.inner] or ["{"]
    lines += [f"const int64_t length = {extent_text(nest.reduced[0])}, steps = (length + {BLOCKS - 1}) / {BLOCKS};"]
    lines += [f"{v.c_type} {v.name}_at[{BLOCKS}];" for v in nest.state]
    lines += _blocks(nest, schedule, writing=False)
    lines += ["{", *(f"{v.c_type} {v.name} = {v.initial};" for v in nest.state), for_loop("block", BLOCKS)]
    for v in nest.state:
        lines += [f"const auto other_{v.name} = {v.name}_at[block];", f"{v.name}_at[block] = {v.name};"]
    taken = [f"{v.name} = other_{v.name};" for v in nest.state]
    lines += [
        f"if (other_{begun} && !{begun}) {{",
        *taken,
        f"}} else if (other_{begun}) {{",
        *nest.joins,
        "}",
        "}",
        "}",
    ]
    lines += _blocks(nest, schedule, writing=True)
    return [*lines, "}" * max(1, len(nest.inner))]
