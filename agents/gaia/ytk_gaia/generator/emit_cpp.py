"""Assembles the C++ source of a kernel: memory plan, argument checks, loop nests, the launcher of ``ytk_kernel.h``.

The launcher allocates nothing. Buffers between nests live in the caller's workspace, planned here by their live ranges;
outputs are written in place wherever their layout is row-major.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import sympy
import torch

from ytk_core.dtypes import ONNX_NUMBER, DType
from ytk_gaia.generator import inductor_adapter as inductor
from ytk_gaia.generator.cpp_printer import (
    STORAGE_TYPE,
    Nest,
    NestKind,
    c_type,
    print_condition,
    print_index,
    print_nest,
)
from ytk_gaia.generator.lowering import CannotLowerError, LoweredRegion, static_int
from ytk_gaia.generator.schedules import Dynamic, Schedule, extent_text, print_loops, product_text

ALIGNMENT = 64
MAX_RANK = 8
MAX_BAKED_BYTES = 1 << 20
"""Constants become C++ arrays; beyond this a bundle is no source text any more."""


@dataclass(frozen=True)
class KernelTensor:
    """One tensor at the kernel's border.

    Attributes:
        name: A C identifier.
        dtype: Element type.
        shape: Captured extents.
        dynamic_axes: Those that may differ at run time.
        extents: One expression per dim over ``in<i>.d<j>``; a dim that says itself defines an extent.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    dynamic_axes: tuple[int, ...] = ()
    extents: tuple[str, ...] = ()


@dataclass(frozen=True)
class Border:
    """What the launcher takes and gives.

    Attributes:
        inputs: In the order of the placeholder node.
        outputs: Likewise.
        placeholder_of: For each input, the index of the program's placeholder that it feeds.
        baked: Placeholder index to the tensor that is a constant of the kernel.
        ranges: Input and axis of each dim that defines a dynamic extent to its limits (None: no upper one).
    """

    inputs: tuple[KernelTensor, ...]
    outputs: tuple[KernelTensor, ...]
    placeholder_of: tuple[int, ...]
    baked: dict[int, torch.Tensor] = field(default_factory=dict)
    ranges: dict[tuple[int, int], tuple[int, int | None]] = field(default_factory=dict)


@dataclass(frozen=True)
class EmittedKernel:
    """C++ text and what the contract must say about it.

    ``workspace_function``: whether the source has ``ytk_workspace``, whose answer then counts; the figures are lower bounds.
    """

    source: str
    fixed_workspace_bytes: int
    per_thread_workspace_bytes: int
    nests: int
    longest_reduction: int
    workspace_function: bool = False


def _aligned(size: int) -> int:
    return (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def _itemsize(dtype: torch.dtype) -> int:
    return int(torch.empty((), dtype=dtype).element_size())


def _span(layout: Any) -> Any:
    """Give the number of elements from the start of the storage to the last element of a layout."""
    sizes, strides = map(sympy.sympify, layout.size), map(sympy.sympify, layout.stride)
    pairs = list(zip(sizes, strides, strict=True))
    if any(size == 0 for size, _ in pairs):
        return sympy.Integer(0)
    return sympy.expand(static_int(layout.offset) + 1 + sum((n - 1) * s for n, s in pairs))


def _row_major(layout: Any) -> bool:
    sizes, expected = [sympy.sympify(n) for n in layout.size], sympy.Integer(1)
    if static_int(layout.offset):
        return False
    for size, stride in zip(reversed(sizes), reversed(layout.stride), strict=True):
        if size != 1 and sympy.expand(stride - expected) != 0:
            return 0 in sizes
        expected *= size
    return True


class _Plan:
    """Names and places of every buffer of one lowered graph."""

    def __init__(self, region: LoweredRegion, border: Border) -> None:
        self.graph = region.graph
        self.pointers: dict[str, str] = {}
        self.dtypes: dict[str, torch.dtype] = {}
        self.roots: dict[str, str] = {}
        self.storage: dict[str, tuple[Any, torch.dtype]] = {}
        self.symbols: dict[Any, tuple[int, int, int]] = {}
        """Dynamic extent to the input, axis and captured value that define it."""
        self.equalities: list[tuple[str, Any]] = []
        """Dims that have to be what another dim says, as C++ text and expression."""
        self.views: dict[str, tuple[str, int]] = {}
        self._inputs(region, border)
        self._buffers()

    def _define(self, border: Border, index: int, sizes: Sequence[Any]) -> None:
        """Let the dims of input ``index`` define the symbols that no earlier input did."""
        tensor = border.inputs[index]
        for axis, size in enumerate(map(sympy.sympify, sizes)):
            known = inductor.fixed_extent(self.graph, size)
            if axis in tensor.dynamic_axes and known.is_Integer:
                msg = f"input {index} ({tensor.name}) axis {axis} is dynamic, and an operator fixes it at {known}"
                raise CannotLowerError([msg])
            if size.is_Symbol and size not in self.symbols:
                self.symbols[size] = (index, axis, tensor.shape[axis])
            elif not size.is_Integer:
                self.equalities.append((f"in[{index}].dims[{axis}]", size))

    def extent(self, value: Any) -> int:
        """Give a size as a plain integer, or as a :class:`Dynamic` where it depends on the inputs' dims."""
        expression = inductor.fixed_extent(self.graph, value)
        if expression.is_Integer:
            return int(expression)
        if not expression.free_symbols <= self.symbols.keys():
            raise CannotLowerError([f"dynamic size {expression}"])
        captured = expression.subs({symbol: value for symbol, (_, _, value) in self.symbols.items()})
        return Dynamic(int(captured), f"({print_index(expression)})")

    def extents(self, values: Iterable[Any]) -> list[int]:
        """Give several sizes; see :meth:`extent`."""
        return [self.extent(value) for value in values]

    def _inputs(self, region: LoweredRegion, border: Border) -> None:
        by_placeholder = {placeholder: k for k, placeholder in enumerate(border.placeholder_of)}
        for index, name in enumerate(region.input_names):
            value = self.graph.graph_inputs[name]
            if not hasattr(value, "get_dtype"):
                if index in by_placeholder:
                    raise CannotLowerError([f"symbolic input {name}"])
                continue  # an argument that the export fixed to a number
            self.dtypes[name] = value.get_dtype()
            if index in by_placeholder:
                self._define(border, by_placeholder[index], value.get_size())
            self.pointers[name] = f"x{by_placeholder[index]}" if index in by_placeholder else f"k{index}"
        for count, (name, tensor) in enumerate(self.graph.constants.items()):
            self.dtypes[name] = tensor.dtype
            self.pointers[name] = f"c{count}"

    def _buffers(self) -> None:
        pending = []
        for count, op in enumerate(self.graph.operations):
            name, layout = op.get_name(), op.get_output_spec()
            if isinstance(layout, inductor.ir.MutationLayoutSHOULDREMOVE):
                target = layout.target
                self.roots[name] = target.get_name() if hasattr(target, "get_name") else layout.get_buffer().get_name()
                continue
            self.dtypes[name] = layout.dtype
            self.pointers[name] = f"b{count}"
            if isinstance(layout, inductor.ir.NonOwningLayout):
                pending.append((name, layout))
            else:
                self.storage[name] = (_span(layout), layout.dtype)
        for name, layout in pending:
            view = layout.view
            self.views[name] = (view.get_name(), static_int(view.get_layout().offset))

    def root(self, name: str) -> str:
        """Give the buffer that owns the memory of ``name``."""
        real: dict[str, str] = getattr(self.graph, "mutation_real_name", {})
        for _ in range(len(self.roots) + len(self.views) + 2):
            following = real.get(name) or self.roots.get(name) or (self.views[name][0] if name in self.views else name)
            if following == name:
                return name
            name = following
        raise CannotLowerError([f"cyclic alias of {name}"])

    def _named(self, name: str) -> str:
        """Resolve mutation aliases, but not views, which have a pointer of their own."""
        real: dict[str, str] = getattr(self.graph, "mutation_real_name", {})
        while name in real or name in self.roots:
            name = real.get(name) or self.roots[name]
        return name

    def pointer(self, name: str) -> str:
        """Give the C++ pointer of a buffer."""
        return self.pointers[self._named(name)]

    def dtype(self, name: str) -> torch.dtype:
        """Give the dtype of a buffer."""
        return self.dtypes[self._named(name)]


def _print_nests(plan: _Plan) -> list[Nest]:
    nests = []
    with inductor.V.set_graph_handler(plan.graph):
        for op in plan.graph.operations:
            if isinstance(op, inductor.ir.NopKernel) or 0 in plan.extents(op.get_size()):
                continue  # nothing to compute; Inductor's value ranges do not take an empty loop
            nest = print_nest(op, plan.pointer, plan.dtype)
            nest.sizes, nest.reduced = plan.extents(nest.sizes), plan.extents(nest.reduced)
            nests.append(nest)
    return nests


def _needed(plan: _Plan, nests: Sequence[Nest], outputs: Sequence[str]) -> list[Nest]:
    """Drop nests whose results nobody reads (an unused second output of an operator)."""
    wanted = {plan.root(name) for name in outputs}
    kept = []
    for nest in reversed(nests):
        if any(plan.root(name) in wanted for name in nest.writes):
            kept.append(nest)
            wanted |= {plan.root(name) for name in nest.reads}
    return kept[::-1]


@dataclass(frozen=True)
class _Places:
    """Where intermediate buffers live in the workspace.

    Attributes:
        offsets: Root to C++ text of its offset.
        end: C++ text of the bytes needed in all.
        fixed_bytes: The same as a number; 0 where it depends on dims.
        declarations: C++ statements that ``offsets`` and ``end`` need.
    """

    offsets: dict[str, str]
    end: str
    fixed_bytes: int
    declarations: tuple[str, ...] = ()


def _place_dynamic(plan: _Plan, roots: Sequence[str]) -> _Places:
    """Lay buffers out one after the other: without their sizes nothing is known about what fits where."""
    lines, offsets = ["const int64_t place0 = 0;"], {}
    for count, root in enumerate(roots):
        span, dtype = plan.storage[root]
        room = (
            f"({extent_text(plan.extent(span))} * {_itemsize(dtype)} + {2 * ALIGNMENT - 1}) / {ALIGNMENT} * {ALIGNMENT}"
        )
        lines.append(f"const int64_t place{count + 1} = place{count} + {room};")
        offsets[root] = f"place{count}"
    return _Places(offsets, f"place{len(roots)}", 0, tuple(lines))


def _place_buffers(plan: _Plan, nests: Sequence[Nest], taken: set[str]) -> _Places:
    """Give each intermediate buffer an offset in the workspace; buffers that never live together may share memory.

    Args:
        plan: Sizes and aliases.
        nests: In execution order.
        taken: Roots that live elsewhere (outputs written in place).
    """
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for step, nest in enumerate(nests):
        for name in (*nest.writes, *nest.reads):
            root = plan.root(name)
            first.setdefault(root, step)
            last[root] = step
    for output in plan.graph.graph_outputs:
        if hasattr(output, "get_name") and plan.root(output.get_name()) in first:
            last[plan.root(output.get_name())] = len(nests)
    placed: list[tuple[int, int, str]] = []
    offsets: dict[str, int] = {}
    roots = sorted((r for r in first if r in plan.storage and r not in taken), key=lambda r: first[r])
    if any(isinstance(plan.extent(plan.storage[root][0]), Dynamic) for root in roots):
        return _place_dynamic(plan, roots)
    for root in roots:
        elements, dtype = plan.storage[root]
        size = _aligned(max(1, plan.extent(elements)) * _itemsize(dtype))
        offset = 0
        for start, end, other in sorted(placed):
            overlaps = not (last[other] < first[root] or last[root] < first[other])
            if overlaps and start < offset + size and offset < end:
                offset = end
        offsets[root] = offset
        placed.append((offset, offset + size, root))
    fixed = max((end for _, end, _ in placed), default=0)
    return _Places({root: str(offset) for root, offset in offsets.items()}, str(fixed), fixed)


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


def _symbols(plan: _Plan) -> list[str]:
    """Print the dynamic extents as constants."""
    lines = []
    for symbol, (index, axis, _) in plan.symbols.items():
        lines.append(f"const int64_t {print_index(symbol)} = in[{index}].dims[{axis}]; (void){print_index(symbol)};")
    return lines


def _dynamic_checks(plan: _Plan, border: Border, guards: Sequence[Any]) -> list[str]:
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


def _checks(plan: _Plan, border: Border, guards: Sequence[Any], places: _Places, per_thread: str) -> list[str]:
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


def _copy_out(plan: _Plan, index: int, pointer: str, layout: Any) -> list[str]:
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


def _results(plan: _Plan, border: Border) -> tuple[dict[str, int], list[tuple[int, str, Any]]]:
    """Decide which outputs are written in place (root to output index) and which are copied at the end."""
    in_place: dict[str, int] = {}
    copies: list[tuple[int, str, Any]] = []
    if len(plan.graph.graph_outputs) != len(border.outputs):
        raise CannotLowerError([f"{len(plan.graph.graph_outputs)} results for {len(border.outputs)} outputs"])
    for index, output in enumerate(plan.graph.graph_outputs):
        if not hasattr(output, "get_layout") or not hasattr(output, "get_name"):
            raise CannotLowerError([f"output {index} is no tensor ({type(output).__name__})"])
        name, layout = output.get_name(), output.get_layout()
        root = plan.root(name)
        count = sympy.expand(prod(map(sympy.sympify, layout.size)))
        whole = root in plan.storage and plan.storage[root] == (count, layout.dtype)
        if whole and root not in in_place and _row_major(layout):
            in_place[root] = index
        else:
            copies.append((index, name, layout))
    return in_place, copies


def _declarations(
    plan: _Plan, border: Border, roots: set[str], in_place: dict[str, int], offsets: dict[str, str]
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
    fixed = max((_aligned(prod(reduced) * 16) for reduced in sorts), default=0)
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
    plan = _Plan(region, border)
    in_place, copies = _results(plan, border)
    outputs = [*in_place, *(name for _, name, _ in copies)]
    nests = _needed(plan, _print_nests(plan), outputs)
    places = _place_buffers(plan, nests, set(in_place))
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


def _workspace_function(plan: _Plan, places: _Places, per_thread: str) -> list[str]:
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
