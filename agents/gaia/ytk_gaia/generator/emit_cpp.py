"""Assembles the C++ source of a kernel: argument checks, loop nests, the launcher of ``ytk_kernel.h``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import sympy
import torch

from ytk_core.dtypes import ONNX_NUMBER
from ytk_gaia.generator import inductor_adapter as inductor
from ytk_gaia.generator.border import Border, EmittedKernel, KernelTensor
from ytk_gaia.generator.cpp_printer import print_nest
from ytk_gaia.generator.index_printer import STORAGE_TYPE, c_type, print_condition, print_index
from ytk_gaia.generator.lowering import CannotLowerError, LoweredRegion, static_int
from ytk_gaia.generator.memory_plan import ALIGNMENT, Places, Plan, aligned, find_results, needed, place_buffers
from ytk_gaia.generator.nest import Nest, NestKind
from ytk_gaia.generator.schedules import Dynamic, Schedule, extent_text, print_loops, product_text

MAX_RANK = 8
MAX_BAKED_BYTES = 1 << 20
"""Constants become C++ arrays; beyond this a bundle is no source text any more."""


def _print_nests(plan: Plan) -> list[Nest]:
    nests = []
    with inductor.V.set_graph_handler(plan.graph):
        for op in plan.graph.operations:
            if isinstance(op, inductor.ir.NopKernel) or 0 in plan.extents(op.get_size()):
                continue  # nothing to compute; Inductor's value ranges do not take an empty loop
            nest = print_nest(op, plan.pointer, plan.dtype)
            nest.sizes, nest.reduced = plan.extents(nest.sizes), plan.extents(nest.reduced)
            nests.append(nest)
    return nests


def _literal(value: Any, dtype: torch.dtype) -> str:
    if dtype is torch.bool:
        return "true" if value else "false"
    if dtype.is_floating_point:
        number = float(value)
        if number != number:  # noqa: PLR0124 -- NaN
            return "NAN"
        if number in {float("inf"), float("-inf")}:
            return "INFINITY" if number > 0 else "-INFINITY"
        return number.hex()
    return "INT64_MIN" if int(value) == -(2**63) else str(int(value))


def _constant(pointer: str, tensor: torch.Tensor) -> str:
    """Print a tensor as a static array; halves as their bits."""
    size = tensor.numel() * tensor.element_size()
    if size > MAX_BAKED_BYTES:
        raise CannotLowerError([f"a constant of {size} bytes, more than {MAX_BAKED_BYTES}"])
    flat = tensor.detach().contiguous().reshape(-1)
    if tensor.dtype in {torch.float16, torch.bfloat16}:
        values = [f"{{{int(v) & 0xFFFF}}}" for v in flat.view(torch.int16).tolist()]
    else:
        values = [_literal(v, tensor.dtype) for v in flat.tolist()]
    c = c_type(tensor.dtype, STORAGE_TYPE)
    return f"alignas(64) const {c} {pointer}[{max(1, len(values))}] = {{{', '.join(values)}}};"


def _dims(tensor: KernelTensor) -> str:
    """Give the table of a tensor's extents; -1: dynamic."""
    shown = ["-1" if axis in tensor.dynamic_axes else str(n) for axis, n in enumerate(tensor.shape)]
    return "{" + ", ".join(shown) + "}" if shown else "{0}"


def _symbols(plan: Plan) -> list[str]:
    """Print the dynamic extents as constants."""
    lines = []
    for symbol, (index, axis, _) in plan.symbols.items():
        lines.append(f"const int64_t {print_index(symbol)} = in[{index}].dims[{axis}]; (void){print_index(symbol)};")
    return lines


def _dynamic_checks(plan: Plan, border: Border, guards: Sequence[Any]) -> list[str]:
    """Print what dims must be to one another, and the conditions that the loops rely on."""
    equalities = list(plan.equalities)
    for index, (tensor, output) in enumerate(zip(border.outputs, plan.graph.graph_outputs, strict=True)):
        sizes = [sympy.sympify(n) for n in output.get_size()]
        equalities += [(f"out[{index}].dims[{axis}]", sizes[axis]) for axis in tensor.dynamic_axes]
    # torch takes a dynamic extent to be at least two, unless told otherwise, and simplifies by that.
    lines = [
        f"if (in[{index}].dims[{axis}] < {low}) return YTK_BAD_SHAPE;"
        for (index, axis), (low, _) in border.ranges.items()
        if low
    ]
    lines += [f"if ({dim} != {extent_text(plan.extent(size))}) return YTK_BAD_SHAPE;" for dim, size in equalities]
    for guard in guards:
        if not guard.free_symbols <= plan.symbols.keys():
            raise CannotLowerError([f"condition {guard} on an extent"])
        lines.append(f"if (!{print_condition(guard)}) return YTK_BAD_SHAPE;")
    return lines


def _checks(plan: Plan, border: Border, guards: Sequence[Any], places: Places, per_thread: str) -> list[str]:
    lines = [
        f"if (nin != {len(border.inputs)} || nout != {len(border.outputs)}) return YTK_BAD_ARITY;",
        "if (ctx == nullptr || ctx->size < sizeof(ytk_context) || ctx->abi_version != YTK_ABI_VERSION) return YTK_UNSUPPORTED;",
    ]
    for kind, tensors in (("in", border.inputs), ("out", border.outputs)):
        for index, tensor in enumerate(tensors):
            number = ONNX_NUMBER[tensor.dtype]
            lines += [
                f"static const int64_t {kind}_dims{index}[] = {_dims(tensor)};",
                f"if (int bad = check({kind}[{index}], {number}, {len(tensor.shape)}, {kind}_dims{index})) return bad;",
            ]
    lines += [*_symbols(plan), *_dynamic_checks(plan, border, guards), *places.declarations]
    lines.append("const int threads = ctx->threads > 0 ? ctx->threads : 1;")
    if places.end != "0" or per_thread:
        need = f"{places.end} + ({per_thread or 0}) * (int64_t)threads"
        lines += [
            f"if (ctx->workspace == nullptr || ctx->workspace_bytes < (uint64_t)({need})) return YTK_WORKSPACE_TOO_SMALL;",
            "char* const workspace = (char*)ctx->workspace;",
        ]
    return [*lines, "(void)threads;"]


_CHECK = """\
int check(const ytk_tensor& tensor, int dtype, int rank, const int64_t* dims) {
  if (tensor.dtype != dtype || tensor.format != YTK_LINEAR) return YTK_BAD_DTYPE;
  if (tensor.rank != rank) return YTK_BAD_SHAPE;
  int64_t count = 1;
  for (int axis = 0; axis < rank; ++axis) {
    if (tensor.dims[axis] < 0 || (dims[axis] >= 0 && tensor.dims[axis] != dims[axis])) return YTK_BAD_SHAPE;
    count *= tensor.dims[axis];
  }
  return tensor.data == nullptr && count != 0 ? YTK_BAD_SHAPE : YTK_OK;
}"""


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
                lines.append(f"{c}* const {plan.pointers[name]} = {plan.pointer(base)} + {offset};")
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
    for tensor in (*border.inputs, *border.outputs):
        if len(tensor.shape) > MAX_RANK:
            raise CannotLowerError([f"rank {len(tensor.shape)} of {tensor.name}"])
    plan = Plan(region, border)
    in_place, copies = find_results(plan, border)
    outputs = [*in_place, *(name for _, name, _ in copies)]
    nests = needed(plan, _print_nests(plan), outputs)
    places = place_buffers(plan, nests, set(in_place))
    scratch_bytes, scratch = _sort_scratch(nests)
    roots = {plan.root(n) for nest in nests for n in (*nest.reads, *nest.writes)} & plan.storage.keys()
    body = _declarations(plan, border, roots, in_place, places.offsets)
    for nest in nests:
        body += print_loops(nest, schedule, places.end)
    for index, name, layout in copies:
        body += _copy_out(plan, index, plan.pointer(name), layout)
    constants = [_constant(plan.pointers[name], tensor) for name, tensor in plan.graph.constants.items()]
    constants += [_constant(f"k{index}", tensor) for index, tensor in border.baked.items()]
    lines = ["namespace {", *constants, _CHECK, "}  // namespace", ""]
    lines.append(
        'extern "C" int ytk_launch(const ytk_context* ctx, const ytk_tensor* in, int nin, ytk_tensor* out, int nout) {'
    )
    lines += [*_checks(plan, border, region.guards, places, scratch), *body, "return YTK_OK;", "}"]
    asks = bool(scratch or places.declarations)
    if asks:
        lines += _workspace_function(plan, places, scratch)
    longest = max((prod(n.reduced) for n in nests), default=1)
    text = "\n".join(_indented(lines)) + "\n"
    return EmittedKernel(text, places.fixed_bytes, scratch_bytes, len(nests), longest, asks)


def _workspace_function(plan: Plan, places: Places, per_thread: str) -> list[str]:
    return [
        "",
        'extern "C" int64_t ytk_workspace(const ytk_context* ctx, const ytk_tensor* in, int, const ytk_tensor*, int) {',
        "(void)ctx; (void)in;",
        *_symbols(plan),
        *places.declarations,
        f"return {places.end} + ({per_thread or 0}) * (int64_t)(ctx->threads > 0 ? ctx->threads : 1);",
        "}",
    ]


def _indented(lines: Iterable[str]) -> list[str]:
    """Indent by braces, for whoever reads a generated kernel."""
    result, depth = [], 0
    for line in "\n".join(lines).splitlines():
        text = line.strip()
        opened, closed = text.count("{"), text.count("}")
        leading = len(text) - len(text.lstrip("}"))
        level = 0 if text.startswith("#") else max(0, depth - leading)
        result.append("  " * level + text if text else "")
        depth = max(0, depth + opened - closed)
    return result
