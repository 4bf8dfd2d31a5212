"""How the loops of a nest become the threads of a CUDA kernel. Pure text; knows nothing of torch.

A schedule decides which threads do which iterations. Partial results are joined in one fixed order, so two runs agree bit by bit.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from ytk_gaia.generator.schedules import Dynamic, extent_text, product_text

if TYPE_CHECKING:
    from ytk_gaia.generator.nest import Nest

WARP = 32
MAX_BLOCKS = 4096
"""More are started over in a loop: enough to fill any GPU several times."""
SORT_BLOCKS = 128
"""Rows that are sorted at the same time where the pairs of one do not fit shared memory."""
SHARED_PAIRS_BYTES = 32 << 10
PAIR_BYTES = 16
_SCATTER_THREADS = 8192
_SCATTER_WORK = 1 << 22
"""Iterations over all owners together: each owner looks at every iteration, and does the few that are its own."""


class Rows(enum.StrEnum):
    """Who computes one output of a reduction."""

    THREAD = "thread"
    WARP = "warp"
    BLOCK = "block"


@dataclass(frozen=True)
class CudaSchedule:
    """One way to run every nest of a kernel.

    Attributes:
        rows: Who computes one output of a reduction that is long enough to share out.
        threads: Per block.
        fuse: Whether nests that only pass rows to one another are one kernel, and scans and sorts are shared out.
        vector: Elements that a thread moves at once, where nests are fused and memory allows it.
    """

    rows: Rows
    threads: int = 256
    fuse: bool = False
    vector: int = 1

    @property
    def name(self) -> str:
        """Word for candidate ids."""
        return f"{self.rows}-t{self.threads}{f'-v{self.vector}' if self.fuse else ''}"


SCHEDULES: tuple[CudaSchedule, ...] = (
    CudaSchedule(Rows.WARP, fuse=True, vector=4),
    CudaSchedule(Rows.WARP),
    CudaSchedule(Rows.BLOCK, fuse=True, vector=4),
    CudaSchedule(Rows.BLOCK),
    CudaSchedule(Rows.WARP, 128, fuse=True, vector=8),
    CudaSchedule(Rows.THREAD),
    CudaSchedule(Rows.BLOCK, fuse=True, vector=1),
    CudaSchedule(Rows.WARP, 128),
)


@dataclass(frozen=True)
class Scatter:
    """How a scatter is shared out.

    Attributes:
        parallel: Positions of the loop variables (output loops, then reduced ones) whose iterations never meet.
        owners: Threads among which the elements are shared out, where others may meet; each goes through every iteration.
        atomic: Whether all iterations run in parallel with atomics, in whatever order: the result does not show it.
    """

    parallel: tuple[int, ...] = ()
    owners: int = 1
    atomic: bool = False


@dataclass(frozen=True)
class Printed:
    """The body of a device function and how it is started.

    Attributes:
        lines: Statements over ``I`` (the index type) and the nest's pointers.
        items: C++ text of the number of work items; nothing is started where it is 0.
        per_block: Items per block.
        threads: Threads per block.
        most_blocks: How many blocks at most.
    """

    lines: list[str]
    items: str
    per_block: int
    threads: int
    most_blocks: int = MAX_BLOCKS


def owners_for(shared_out: int, rest: int, elements: int) -> int:
    """Give the number of owners of a scatter.

    Args:
        shared_out: Iterations that run in parallel anyway.
        rest: Iterations that each owner goes through.
        elements: Of the buffer, as far as ``shared_out`` does not tell them apart.
    """
    wanted = min(elements, -(-_SCATTER_THREADS // max(1, shared_out)), _SCATTER_WORK // max(1, rest * shared_out))
    return 1 << (max(1, wanted).bit_length() - 1)  # a power of two: owning an element is a mask


def decode(variables: Sequence[str], sizes: Sequence[int], source: str) -> list[str]:
    """Print the loop variables that an item number stands for, the last one running fastest."""
    lines = [f"I rest_{source} = {source};"] if len(variables) > 1 else []
    for position in reversed(range(len(variables))):
        name, size = variables[position], extent_text(sizes[position])
        if len(variables) == 1:
            lines.append(f"const I {name} = {source};")
        elif position:
            lines += [f"const I {name} = rest_{source} % {size};", f"rest_{source} /= {size};"]
        else:
            lines.append(f"const I {name} = rest_{source};")
    return [*lines, *(f"(void){name};" for name in variables)]


def output_variables(nest: Nest) -> list[str]:
    """Give the names of the loops over results."""
    return [f"i{k}" for k in range(len(nest.sizes))]


def reduced_variables(nest: Nest) -> list[str]:
    """Give the names of the loops that are summed over."""
    return [f"r{k}" for k in range(len(nest.reduced))]


def _grid_stride(item: str, count: str) -> list[str]:
    return [
        f"for (I {item} = (I)blockIdx.x * (I)blockDim.x + (I)threadIdx.x; {item} < {count}; {item} += (I)gridDim.x * (I)blockDim.x) {{"
    ]


def state_lines(nest: Nest) -> list[str]:
    """Print what a reduction carries along, at its beginning."""
    return [f"{v.c_type} {v.name} = {v.initial};" for v in nest.state]


def _loops(nest: Nest) -> list[str]:
    return [f"for (I r{k} = 0; r{k} < {extent_text(n)}; ++r{k}) {{" for k, n in enumerate(nest.reduced)]


def _per_thread(nest: Nest, schedule: CudaSchedule, inner: Sequence[str]) -> Printed:
    """Run ``inner`` for every output, one thread each."""
    count = product_text(nest.sizes)
    lines = [*_grid_stride("item", count), *decode(output_variables(nest), nest.sizes, "item"), *inner, "}"]
    return Printed(lines, count, schedule.threads, schedule.threads)


def _steps(nest: Nest, first: str, step: str) -> list[str]:
    count = product_text(nest.reduced)
    return [
        f"for (I step = {first}; step < {count}; step += {step}) {{",
        *decode(reduced_variables(nest), nest.reduced, "step"),
    ]


def join_lanes(nest: Nest, lanes: int = WARP) -> list[str]:
    """Print how the state of so many lanes, a power of two, is joined in the first of them."""
    others = [f"const {v.c_type} other_{v.name} = ytk::shuffle_down({v.name}, by);" for v in nest.state]
    return [f"for (int by = {lanes // 2}; by > 0; by /= 2) {{", *others, *nest.joins, "}"]


def _per_warp(nest: Nest, schedule: CudaSchedule) -> Printed:
    warps, count = schedule.threads // WARP, product_text(nest.sizes)
    lines = [
        f"const I lane = threadIdx.x % {WARP};",
        f"for (I item = (I)blockIdx.x * {warps} + (I)threadIdx.x / {WARP}; item < {count}; item += (I)gridDim.x * {warps}) {{",
        *decode(output_variables(nest), nest.sizes, "item"),
        *state_lines(nest),
        *_steps(nest, "lane", str(WARP)),
        *nest.body,
        "}",
        *join_lanes(nest),
        "if (lane == 0) {",
        *nest.epilogue,
        "}",
        "}",
    ]
    return Printed(lines, count, warps, schedule.threads)


def _per_block(nest: Nest, schedule: CudaSchedule) -> Printed:
    warps, count = schedule.threads // WARP, product_text(nest.sizes)
    lines = [f"__shared__ {v.c_type} parts_{v.name}[{warps}];" for v in nest.state]
    lines += [
        f"const I lane = threadIdx.x % {WARP}, warp = threadIdx.x / {WARP};",
        f"for (I item = blockIdx.x; item < {count}; item += gridDim.x) {{",
        *decode(output_variables(nest), nest.sizes, "item"),
        *state_lines(nest),
        *_steps(nest, "threadIdx.x", "blockDim.x"),
        *nest.body,
        "}",
        *join_lanes(nest),
        "if (lane == 0) {",
        *(f"parts_{v.name}[warp] = {v.name};" for v in nest.state),
        "}",
        "__syncthreads();",
        "if (threadIdx.x == 0) {",
        f"for (int part = 1; part < {warps}; ++part) {{",
        *(f"const {v.c_type} other_{v.name} = parts_{v.name}[part];" for v in nest.state),
        *nest.joins,
        "}",
        *nest.epilogue,
        "}",
        "__syncthreads();",
        "}",
    ]
    return Printed(lines, count, 1, schedule.threads)


def _reduction(nest: Nest, schedule: CudaSchedule) -> Printed:
    if prod(nest.reduced) >= WARP and nest.joins and schedule.rows is not Rows.THREAD:
        return _per_warp(nest, schedule) if schedule.rows is Rows.WARP else _per_block(nest, schedule)
    inner = [*state_lines(nest), *_loops(nest), *nest.body, "}" * len(nest.reduced), *nest.epilogue]
    return _per_thread(nest, schedule, inner)


def shares_pairs(nest: Nest) -> bool:
    """Whether the pairs of one sorted row fit shared memory."""
    fixed = not any(isinstance(n, Dynamic) for n in nest.reduced)
    return fixed and prod(nest.reduced) * PAIR_BYTES <= SHARED_PAIRS_BYTES


def _sort(nest: Nest, schedule: CudaSchedule) -> Printed:
    keys = nest.sort
    if keys is None:
        msg = "a sort nest without keys"
        raise ValueError(msg)
    count, rows = product_text(nest.reduced), product_text(nest.sizes)
    pair, shared = keys.pair_type, shares_pairs(nest)
    place = f"__shared__ {pair} {keys.buffer}[{max(1, prod(nest.reduced))}];"
    if not shared:
        place = f"{pair}* const {keys.buffer} = ({pair}*)pairs_memory + (int64_t)blockIdx.x * ({count});"
    lines = [
        place,
        f"for (I item = blockIdx.x; item < {rows}; item += gridDim.x) {{",
        *decode(output_variables(nest), nest.sizes, "item"),
        *_steps(nest, "threadIdx.x", "blockDim.x"),
        *keys.fill,
        "}",
        f"ytk::sort_block<{'true' if keys.descending else 'false'}>({keys.buffer}, {count});",
        *_steps(nest, "threadIdx.x", "blockDim.x"),
        *nest.body,
        "}",
        "__syncthreads();",
        "}",
    ]
    return Printed(lines, rows, 1, schedule.threads, MAX_BLOCKS if shared else SORT_BLOCKS)


def _scatter(nest: Nest, schedule: CudaSchedule, how: Scatter) -> Printed:
    variables = [*output_variables(nest), *reduced_variables(nest)]
    sizes = [*nest.sizes, *nest.reduced]
    outer = [k for k in range(len(variables)) if how.atomic or k in how.parallel]
    count = f"{product_text([sizes[k] for k in outer])} * {how.owners}"
    inner = [
        f"for (I {variables[k]} = 0; {variables[k]} < {extent_text(sizes[k])}; ++{variables[k]}) {{"
        for k in range(len(variables))
        if k not in outer
    ]
    owns = f"(at) % {how.owners} == owner" if how.owners > 1 else "true"
    lines = [
        f"constexpr bool atomic = {str(how.atomic).lower()};",
        *_grid_stride("item", count),
        f"const I owner = item % {how.owners}, place = item / {how.owners};",
        f"const auto owns = [&](int64_t at) {{ (void)at; (void)owner; return {owns}; }};",
        "(void)atomic; (void)owns; (void)place;",
        *decode([variables[k] for k in outer], [sizes[k] for k in outer], "place"),
        *state_lines(nest),
        *inner,
        *nest.body,
        "}" * len(inner),
        "}",
    ]
    return Printed(lines, count, schedule.threads, schedule.threads)


def print_threads(nest: Nest, schedule: CudaSchedule, scatter: Scatter | None = None) -> Printed:
    """Print one nest as the body of a device function.

    Args:
        nest: Sizes must be plain integers or :class:`Dynamic`.
        schedule: How to run it.
        scatter: How it is shared out, for a scatter.
    """
    kind = nest.kind.value
    if kind == "reduction":
        return _reduction(nest, schedule)
    if kind == "scan":
        return _per_thread(nest, schedule, [*state_lines(nest), *_loops(nest), *nest.body, "}" * len(nest.reduced)])
    if kind == "sort":
        return _sort(nest, schedule)
    if kind == "scatter":
        return _scatter(nest, schedule, scatter or Scatter())
    return _per_thread(nest, schedule, nest.body)
