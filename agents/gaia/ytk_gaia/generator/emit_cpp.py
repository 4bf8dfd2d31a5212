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
from ytk_gaia.generator.cpp_printer import STORAGE_TYPE, Nest, NestKind, c_type, print_nest
from ytk_gaia.generator.lowering import CannotLowerError, LoweredRegion, static_int
from ytk_gaia.generator.schedules import Schedule, print_loops

ALIGNMENT = 64
MAX_RANK = 8
MAX_BAKED_BYTES = 1 << 20
"""Constants become C++ arrays; beyond this a bundle is no source text any more."""


@dataclass(frozen=True)
class KernelTensor:
    """One tensor at the kernel's border, fixed in shape."""

    name: str
    dtype: DType
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Border:
    """What the launcher takes and gives.

    Attributes:
        inputs: In the order of the placeholder node.
        outputs: Likewise.
        placeholder_of: For each input, the index of the program's placeholder that it feeds.
        baked: Placeholder index to the tensor that is a constant of the kernel.
    """

    inputs: tuple[KernelTensor, ...]
    outputs: tuple[KernelTensor, ...]
    placeholder_of: tuple[int, ...]
    baked: dict[int, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class EmittedKernel:
    """C++ text and what the contract must say about it."""

    source: str
    fixed_workspace_bytes: int
    per_thread_workspace_bytes: int
    nests: int
    longest_reduction: int


def _aligned(size: int) -> int:
    return (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def _itemsize(dtype: torch.dtype) -> int:
    return int(torch.empty((), dtype=dtype).element_size())


def _sizes(values: Iterable[Any]) -> list[int]:
    return [static_int(v) for v in values]


def _span(layout: Any) -> int:
    """Give the number of elements from the start of the storage to the last element of a layout."""
    sizes, strides = _sizes(layout.size), _sizes(layout.stride)
    if any(size == 0 for size in sizes):
        return 0
    return static_int(layout.offset) + 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))


def _row_major(layout: Any) -> bool:
    sizes, expected = _sizes(layout.size), 1
    if static_int(layout.offset):
        return False
    for size, stride in zip(reversed(sizes), reversed(_sizes(layout.stride)), strict=True):
        if size != 1 and stride != expected:
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
        self.storage: dict[str, tuple[int, torch.dtype]] = {}
        self.views: dict[str, tuple[str, int]] = {}
        self._inputs(region, border)
        self._buffers()

    def _inputs(self, region: LoweredRegion, border: Border) -> None:
        by_placeholder = {placeholder: k for k, placeholder in enumerate(border.placeholder_of)}
        for index, name in enumerate(region.input_names):
            value = self.graph.graph_inputs[name]
            if not hasattr(value, "get_dtype"):
                if index in by_placeholder:
                    raise CannotLowerError([f"symbolic input {name}"])
                continue  # an argument that the export fixed to a number
            self.dtypes[name] = value.get_dtype()
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
            if isinstance(op, inductor.ir.NopKernel) or 0 in _sizes(op.get_size()):
                continue  # nothing to compute; Inductor's value ranges do not take an empty loop
            nest = print_nest(op, plan.pointer, plan.dtype)
            nest.sizes, nest.reduced = _sizes(nest.sizes), _sizes(nest.reduced)
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


def _place_buffers(plan: _Plan, nests: Sequence[Nest], taken: set[str]) -> tuple[dict[str, int], int]:
    """Give each intermediate buffer an offset in the workspace; buffers that never live together may share memory.

    Args:
        plan: Sizes and aliases.
        nests: In execution order.
        taken: Roots that live elsewhere (outputs written in place).

    Returns:
        Offsets, and the bytes needed in all.
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
    for root in sorted((r for r in first if r in plan.storage and r not in taken), key=lambda r: first[r]):
        elements, dtype = plan.storage[root]
        size = _aligned(max(1, elements) * _itemsize(dtype))
        offset = 0
        for start, end, other in sorted(placed):
            overlaps = not (last[other] < first[root] or last[root] < first[other])
            if overlaps and start < offset + size and offset < end:
                offset = end
        offsets[root] = offset
        placed.append((offset, offset + size, root))
    return offsets, max((end for _, end, _ in placed), default=0)


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


def _dims(shape: Sequence[int]) -> str:
    return "{" + ", ".join(str(n) for n in shape) + "}" if shape else "{0}"


def _checks(border: Border, fixed: int, per_thread: int) -> list[str]:
    lines = [
        f"if (nin != {len(border.inputs)} || nout != {len(border.outputs)}) return YTK_BAD_ARITY;",
        "if (ctx == nullptr || ctx->size < sizeof(ytk_context) || ctx->abi_version != YTK_ABI_VERSION) return YTK_UNSUPPORTED;",
    ]
    for kind, tensors in (("in", border.inputs), ("out", border.outputs)):
        for index, tensor in enumerate(tensors):
            number = ONNX_NUMBER[tensor.dtype]
            lines += [
                f"static const int64_t {kind}_dims{index}[] = {_dims(tensor.shape)};",
                f"if (int bad = check({kind}[{index}], {number}, {len(tensor.shape)}, {kind}_dims{index})) return bad;",
            ]
    lines.append("const int threads = ctx->threads > 0 ? ctx->threads : 1;")
    if fixed or per_thread:
        need = f"{fixed}u + {per_thread}u * (uint64_t)threads" if per_thread else f"{fixed}u"
        lines += [
            f"if (ctx->workspace == nullptr || ctx->workspace_bytes < {need}) return YTK_WORKSPACE_TOO_SMALL;",
            "char* const workspace = (char*)ctx->workspace;",
        ]
    return [*lines, "(void)threads;"]


_CHECK = """\
int check(const ytk_tensor& tensor, int dtype, int rank, const int64_t* dims) {
  if (tensor.dtype != dtype || tensor.format != YTK_LINEAR) return YTK_BAD_DTYPE;
  if (tensor.rank != rank) return YTK_BAD_SHAPE;
  int64_t count = 1;
  for (int axis = 0; axis < rank; ++axis) {
    if (tensor.dims[axis] != dims[axis]) return YTK_BAD_SHAPE;
    count *= dims[axis];
  }
  return tensor.data == nullptr && count != 0 ? YTK_BAD_SHAPE : YTK_OK;
}"""


def _copy_out(index: int, pointer: str, layout: Any) -> list[str]:
    """Print the copy of a result that is not in place: an input passed through, a view, a transposed layout."""
    sizes, strides = _sizes(layout.size), _sizes(layout.stride)
    loops = [f"for (int64_t i{k} = 0; i{k} < {n}; ++i{k}) {{" for k, n in enumerate(sizes)]
    source: Any = sympy.Integer(static_int(layout.offset))
    target: Any = sympy.Integer(0)
    for k, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
        variable = inductor.loop_symbol(f"i{k}")
        source, target = source + variable * stride, target * size + variable
    assign = f"ytk::store(y{index}[{target}], ytk::load({pointer}[{source}]));"
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
        whole = root in plan.storage and plan.storage[root] == (prod(_sizes(layout.size)), layout.dtype)
        if whole and root not in in_place and _row_major(layout):
            in_place[root] = index
        else:
            copies.append((index, name, layout))
    return in_place, copies


def _declarations(
    plan: _Plan, border: Border, roots: set[str], in_place: dict[str, int], offsets: dict[str, int]
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


def _sort_scratch(nests: Sequence[Nest]) -> int:
    """Give the bytes per thread of the largest sort; sorts run one after the other and share it."""
    return max((_aligned(prod(n.reduced) * 16) for n in nests if n.kind is NestKind.SORT), default=0)


def emit(region: LoweredRegion, border: Border, schedule: Schedule) -> EmittedKernel:
    """Write the C++ source of a lowered region.

    Args:
        region: Loop IR, fixed in shape.
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
    offsets, fixed = _place_buffers(plan, nests, set(in_place))
    scratch = _sort_scratch(nests)
    roots = {plan.root(n) for nest in nests for n in (*nest.reads, *nest.writes)} & plan.storage.keys()
    body = _declarations(plan, border, roots, in_place, offsets)
    for nest in nests:
        body += print_loops(nest, schedule, fixed)
    for index, name, layout in copies:
        body += _copy_out(index, plan.pointer(name), layout)
    constants = [_constant(plan.pointers[name], tensor) for name, tensor in plan.graph.constants.items()]
    constants += [_constant(f"k{index}", tensor) for index, tensor in border.baked.items()]
    lines = ["namespace {", *constants, _CHECK, "}  // namespace", ""]
    lines.append(
        'extern "C" int ytk_launch(const ytk_context* ctx, const ytk_tensor* in, int nin, ytk_tensor* out, int nout) {'
    )
    lines += [*_checks(border, fixed, scratch), *body, "return YTK_OK;", "}"]
    if scratch:
        lines += _workspace_function(fixed, scratch)
    longest = max((prod(n.reduced) for n in nests), default=1)
    return EmittedKernel("\n".join(_indented(lines)) + "\n", fixed, scratch, len(nests), longest)


def _workspace_function(fixed: int, per_thread: int) -> list[str]:
    return [
        "",
        'extern "C" int64_t ytk_workspace(const ytk_context* ctx, const ytk_tensor*, int, const ytk_tensor*, int) {',
        f"return {fixed} + {per_thread} * (int64_t)(ctx->threads > 0 ? ctx->threads : 1);",
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
