"""Reductions of very much to very little: many blocks reduce a part each, then one warp per result joins the parts. Pure text.

One block alone would leave the rest of the GPU idle. Parts are joined in the order of their places, so two runs agree bit by bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ytk_gaia.generator.cuda_schedules import (
    WARP,
    Printed,
    decode,
    join_lanes,
    output_variables,
    reduced_variables,
    state_lines,
)
from ytk_gaia.generator.nest import Nest, NestKind
from ytk_gaia.generator.schedules import Dynamic, product_text

THREADS = 256
_MOST_PARTS = 256
_STEPS = 16
"""Per thread of a part."""
_FEW_RESULTS, _MUCH = 32, 1 << 15
_WORD = 8


def parts_of(nest: Nest) -> int:
    """Give into how many parts each result of a reduction is cut; 0: it is no such reduction."""
    fixed = not any(isinstance(n, Dynamic) for n in (*nest.sizes, *nest.reduced))
    if nest.kind is not NestKind.REDUCTION or not nest.joins or not fixed:
        return 0
    results, each = prod(nest.sizes), prod(nest.reduced)
    if results > _FEW_RESULTS or each < _MUCH:
        return 0
    return int(min(_MOST_PARTS, -(-each // (THREADS * _STEPS))))


def scratch_bytes(nest: Nest) -> int:
    """Give the bytes of the parts' states."""
    return int(prod(nest.sizes)) * parts_of(nest) * len(nest.state) * _WORD


def _places(nest: Nest) -> list[str]:
    room = prod(nest.sizes) * parts_of(nest) * _WORD
    return [
        f"{v.c_type}* const all_{v.name} = ({v.c_type}*)(pairs_memory + {k * room});" for k, v in enumerate(nest.state)
    ]


def print_parts(nest: Nest) -> Printed:
    """Print the first kernel: a block per part."""
    parts, count, warps = parts_of(nest), prod(nest.reduced), THREADS // WARP
    each = -(-count // parts)
    lines = [
        *(f"__shared__ {v.c_type} warps_{v.name}[{warps}];" for v in nest.state),
        *_places(nest),
        f"const I lane = threadIdx.x % {WARP}, warp = threadIdx.x / {WARP};",
        f"for (I item = blockIdx.x; item < {prod(nest.sizes) * parts}; item += gridDim.x) {{",
        f"const I part = item % {parts}, result = item / {parts}; (void)result;",
        *decode(output_variables(nest), nest.sizes, "result"),
        *state_lines(nest),
        f"const I end = part == {parts - 1} ? (I){count} : (I)((part + 1) * {each});",
        f"for (I step = part * {each} + (I)threadIdx.x; step < end; step += {THREADS}) {{",
        *decode(reduced_variables(nest), nest.reduced, "step"),
        *nest.body,
        "}",
        *join_lanes(nest),
        "if (lane == 0) {",
        *(f"warps_{v.name}[warp] = {v.name};" for v in nest.state),
        "}",
        "__syncthreads();",
        "if (threadIdx.x == 0) {",
        f"for (int other = 1; other < {warps}; ++other) {{",
        *(f"const {v.c_type} other_{v.name} = warps_{v.name}[other];" for v in nest.state),
        *nest.joins,
        "}",
        *(f"all_{v.name}[item] = {v.name};" for v in nest.state),
        "}",
        "__syncthreads();",
        "}",
    ]
    return Printed(lines, str(prod(nest.sizes) * parts), 1, THREADS)


def print_joined(nest: Nest, tail: Sequence[Nest] = ()) -> Printed:
    """Print the second kernel: a warp per result, whose first lane also does what follows result by result."""
    parts, count = parts_of(nest), product_text(nest.sizes)
    lines = [
        *_places(nest),
        f"const I lane = threadIdx.x % {WARP};",
        f"for (I result = (I)blockIdx.x * {THREADS // WARP} + (I)threadIdx.x / {WARP}; result < {count}; result += (I)gridDim.x * {THREADS // WARP}) {{",
        *decode(output_variables(nest), nest.sizes, "result"),
        *state_lines(nest),
        f"for (I part = lane; part < {parts}; part += {WARP}) {{",
        *(f"const {v.c_type} other_{v.name} = all_{v.name}[result * {parts} + part];" for v in nest.state),
        *nest.joins,
        "}",
        *join_lanes(nest),
        "if (lane == 0) {",
        *nest.epilogue,
        *(line for each in tail for line in ("{", *each.body, "}")),
        "}",
        "}",
    ]
    return Printed(lines, count, THREADS // WARP, THREADS)
