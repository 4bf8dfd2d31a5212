"""Assembles the C++ source of a kernel: argument checks, loop nests, the launcher of ``ytk_kernel.h``."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import sympy
import torch

from ytk_core.dtypes import ONNX_NUMBER
from ytk_gaia.generator import inductor_adapter as inductor
from ytk_gaia.generator.border import Border, EmittedKernel
from ytk_gaia.generator.cpp_printer import print_rows
from ytk_gaia.generator.cuda_scatter import separable
from ytk_gaia.generator.index_printer import STORAGE_TYPE, c_type, print_index
from ytk_gaia.generator.launcher_text import (
    CHECK,
    baked_constant,
    check_ranks,
    dims_table,
    dynamic_checks,
    extent_constants,
    indented,
)
from ytk_gaia.generator.lowering import LoweredRegion, static_int
from ytk_gaia.generator.memory_plan import ALIGNMENT, Places, Plan, aligned, find_results, needed, place_steps
from ytk_gaia.generator.nest import Nest, NestKind, ScatterParts, loop_variables
from ytk_gaia.generator.print_loops import print_loops, print_shared_rows
from ytk_gaia.generator.row_buffers import RowBuffers
from ytk_gaia.generator.row_fusion import Fuser, Group
from ytk_gaia.generator.schedules import Dynamic, Schedule, extent_text, product_text
from ytk_gaia.generator.tiles import find_tile


def _print_nests(plan: Plan, schedule: Schedule) -> list[Nest]:
    nests = []
    with inductor.V.set_graph_handler(plan.graph):
        for op in plan.graph.operations:
            if isinstance(op, inductor.ir.NopKernel) or 0 in plan.extents(op.get_size()):
                continue  # nothing to compute; Inductor's value ranges do not take an empty loop
            nest = print_rows(op, plan.pointer, plan.dtype, 1, _jams(schedule))
            assert nest is not None  # every nest has one iteration outside its loops
            nest.sizes, nest.reduced = plan.extents(nest.sizes), plan.extents(nest.reduced)
            if nest.kind is NestKind.SCATTER:
                nest.parts = _scatter_parts(plan, nest)
            nest.tile = find_tile(nest)
            nests.append(nest)
    return nests


def _scatter_parts(plan: Plan, nest: Nest) -> ScatterParts | None:
    """Say how threads may share a scatter; None where it reads what it writes, or writes in several places."""
    roots = {plan.root(name) for name, _ in nest.stores}
    if len(nest.targets) != 1 or len(nest.stores) != 1 or roots & {plan.root(name) for name, _ in nest.loads}:
        return None
    root, target = next(iter(roots)), nest.targets[0]
    if root not in plan.storage:
        return None
    free: list[int] = []
    if not any(isinstance(size, Dynamic) for size in nest.sizes):
        bounds = {name: inductor.fixed_extent(plan.graph, size) for name, size in nest.bounds.items()}
        free = separable(nest.targets, loop_variables(len(nest.sizes)), nest.sizes, bounds)
    return ScatterParts(tuple(free), print_index(target), plan.extent(plan.storage[root][0]))


def _jams(schedule: Schedule) -> tuple[int, ...]:
    return (schedule.jam,) if schedule.jam > 1 else ()


def _groups(plan: Plan, nests: Sequence[Nest], schedule: Schedule) -> list[Group]:
    """Let nests share their outer loops where the schedule says so."""
    if not schedule.fuse or len(nests) < 2:
        return [Group(1, (nest,)) for nest in nests]
    operations = {op.get_name(): op for op in plan.graph.operations}

    def printed(number: int, rows: int) -> Nest | None:
        nest = print_rows(operations[nests[number].buffer], plan.pointer, plan.dtype, rows, _jams(schedule))
        if nest is not None:
            nest.sizes, nest.reduced = plan.extents(nest.sizes), plan.extents(nest.reduced)
            nest.tile = find_tile(nest)
        return nest

    def span(root: str) -> int | None:
        found = plan.extent(plan.storage[root][0]) if root in plan.storage else None
        return None if isinstance(found, Dynamic) else found

    with inductor.V.set_graph_handler(plan.graph):
        return Fuser(printed, plan.root, span, plan.offset).groups(nests)


def _checks(plan: Plan, border: Border, guards: Sequence[Any], places: Places, per_thread: str) -> list[str]:
    lines = [
        f"if (nin != {len(border.inputs)} || nout != {len(border.outputs)}) return YTK_BAD_ARITY;",
        "if (ctx == nullptr || ctx->size < sizeof(ytk_context) || ctx->abi_version != YTK_ABI_VERSION) return YTK_UNSUPPORTED;",
    ]
    for kind, tensors in (("in", border.inputs), ("out", border.outputs)):
        for index, tensor in enumerate(tensors):
            number = ONNX_NUMBER[tensor.dtype]
            lines += [
                f"static const int64_t {kind}dims_table{index}[] = {dims_table(tensor)};",
                f"if (int bad = check({kind}[{index}], {number}, {len(tensor.shape)}, {kind}dims_table{index})) return bad;",
            ]
    lines += [*extent_constants(plan), *dynamic_checks(plan, border, guards), *places.declarations]
    lines.append("const int threads = ctx->threads > 0 ? ctx->threads : 1;")
    if places.end != "0" or per_thread:
        need = f"{places.end} + ({per_thread or 0}) * (int64_t)threads"
        lines += [
            f"if (ctx->workspace == nullptr || ctx->workspace_bytes < (uint64_t)({need})) return YTK_WORKSPACE_TOO_SMALL;",
            "char* const workspace = (char*)ctx->workspace;",
        ]
    return [*lines, "(void)threads;"]


def _copy_out(plan: Plan, index: int, pointer: str, layout: Any) -> list[str]:
    """Print the copy of a result that is not in place: an input passed through, a view, a transposed layout."""
    sizes = [extent_text(n) for n in plan.extents(layout.size)]
    loops = [f"for (int64_t i{k} = 0; i{k} < {n}; ++i{k}) {{" for k, n in enumerate(sizes)]
    source: Any = sympy.Integer(static_int(layout.offset))
    target: Any = sympy.Integer(0)
    for k, (size, stride) in enumerate(zip(layout.size, layout.stride, strict=True)):
        variable = inductor.loop_symbol(f"i{k}")
        source, target = source + variable * stride, target * size + variable
    assign = f"ytk::store(y{index}[{print_index(target)}], ytk::load({pointer}[{print_index(source)}]));"
    return [*loops, assign, "}" * len(loops)]


def _declarations(
    plan: Plan, border: Border, roots: set[str], in_place: dict[str, int], offsets: dict[str, str]
) -> list[str]:
    lines = []
    for index, tensor in enumerate(border.inputs):
        c = c_type(getattr(torch, tensor.dtype.value), STORAGE_TYPE)
        lines.append(f"const {c}* const __restrict__ x{index} = (const {c}*)in[{index}].data; (void)x{index};")
    for index, tensor in enumerate(border.outputs):
        c = c_type(getattr(torch, tensor.dtype.value), STORAGE_TYPE)
        lines.append(f"{c}* const __restrict__ y{index} = ({c}*)out[{index}].data; (void)y{index};")
    for root in plan.storage:
        if root not in roots:
            continue
        c = c_type(plan.dtypes[root], STORAGE_TYPE)
        # Not restrict where memory is reused: two such buffers may be the same bytes at different times.
        place = f"y{in_place[root]}" if root in in_place else f"({c}*)(workspace + {offsets[root]})"
        lines.append(f"{c}* const {plan.pointers[root]} = {place};")
    pending = dict(plan.views)
    while pending:
        ready = [name for name, (base, _) in pending.items() if base not in pending]
        for name in ready:
            base, offset = pending.pop(name)
            if plan.root(name) in roots:
                c = c_type(plan.dtypes[name], STORAGE_TYPE)
                lines.append(
                    f"{c}* const {plan.pointers[name]} = {plan.pointer(base)} + {extent_text(plan.extent(offset))};"
                )
    return lines


def _sort_scratch(nests: Sequence[Nest]) -> tuple[int, str]:
    """Give the bytes per thread of the largest sort, as a number and as C++ text (empty: none).

    Sorts run one after the other and share it. Of dynamic ones the sum is taken, which is never too small.
    """
    sorts = [n.reduced for n in nests if n.kind is NestKind.SORT]
    if any(isinstance(size, Dynamic) for reduced in sorts for size in reduced):
        return 0, " + ".join(f"({product_text(reduced)} * 16 + {ALIGNMENT})" for reduced in sorts)
    fixed = max((aligned(prod(reduced) * 16) for reduced in sorts), default=0)
    return fixed, str(fixed) if fixed else ""


def emit(region: LoweredRegion, border: Border, schedule: Schedule) -> EmittedKernel:
    """Write the C++ source of a lowered region.

    Args:
        region: Loop IR.
        border: Inputs and outputs of the launcher.
        schedule: How loops are run.

    Returns:
        Source text without headers, and its workspace needs.

    Raises:
        CannotLowerError: Something has no C++ form.
    """
    check_ranks(border)
    plan = Plan(region, border)
    in_place, copies = find_results(plan, border)
    outputs = [*in_place, *(name for _, name, _ in copies)]
    nests = needed(plan, _print_nests(plan, schedule), outputs)
    groups = _groups(plan, nests, schedule)
    rows = RowBuffers(plan, groups, {plan.root(name) for name in outputs})
    places = place_steps(plan, [group.nests for group in groups], {*in_place, *rows.roots})
    scratch_bytes, scratch = _sort_scratch(nests)
    if rows.bytes:
        scratch_bytes, scratch = scratch_bytes + rows.bytes, f"{rows.bytes} + {scratch or 0}"
    mine = f"workspace + {places.end} + ytk::thread_number() * (int64_t)({scratch})"
    roots = {plan.root(n) for nest in nests for n in (*nest.reads, *nest.writes)} & plan.storage.keys()
    body = _declarations(plan, border, roots - rows.roots, in_place, places.offsets)
    for group in groups:
        if group.rows > 1:
            declared = rows.declarations(group, mine)
            body += print_shared_rows(group.nests, group.rows, schedule, f"{mine} + {rows.bytes}", declared)
        else:
            body += print_loops(group.nests[0], schedule, f"{mine} + {rows.bytes}")
    for index, name, layout in copies:
        body += _copy_out(plan, index, plan.pointer(name), layout)
    constants = [baked_constant(plan.pointers[name], tensor) for name, tensor in plan.graph.constants.items()]
    constants += [baked_constant(f"k{index}", tensor) for index, tensor in border.baked.items()]
    lines = ["namespace {", *constants, CHECK, "}  // namespace", ""]
    lines.append(
        'extern "C" int ytk_launch(const ytk_context* ctx, const ytk_tensor* in, int nin, ytk_tensor* out, int nout) {'
    )
    lines += [*_checks(plan, border, region.guards, places, scratch), *body, "return YTK_OK;", "}"]
    asks = bool(scratch or places.declarations)
    if asks:
        lines += _workspace_function(plan, places, scratch)
    longest = max((prod(n.reduced) for n in nests), default=1)
    text = "\n".join(indented(lines)) + "\n"
    return EmittedKernel(text, places.fixed_bytes, scratch_bytes, len(nests), longest, asks)


def _workspace_function(plan: Plan, places: Places, per_thread: str) -> list[str]:
    return [
        "",
        'extern "C" int64_t ytk_workspace(const ytk_context* ctx, const ytk_tensor* in, int, const ytk_tensor*, int) {',
        "(void)ctx; (void)in;",
        *extent_constants(plan),
        *places.declarations,
        f"return {places.end} + ({per_thread or 0}) * (int64_t)(ctx->threads > 0 ? ctx->threads : 1);",
        "}",
    ]
