"""Assembles the CUDA C++ source of a kernel: device functions, one kernel per nest and set of storage types, and the launcher.

One text for two compilers, as ``ytk_cuda.h`` describes it. Kernels run one after the other on the caller's stream; what they hand
on lives in the caller's workspace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import sympy
import torch

from ytk_core.dtypes import ONNX_NUMBER
from ytk_core.formats.plugin_meta import FORMAT_NUMBER, Format
from ytk_gaia.generator import inductor_adapter as inductor
from ytk_gaia.generator.border import Border, EmittedKernel, KernelTensor
from ytk_gaia.generator.cuda_printer import print_nest
from ytk_gaia.generator.cuda_scatter import separable
from ytk_gaia.generator.cuda_schedules import (
    PAIR_BYTES,
    SORT_BLOCKS,
    CudaSchedule,
    Printed,
    Scatter,
    owners_for,
    print_threads,
    shares_pairs,
)
from ytk_gaia.generator.cuda_variants import StorageVariant
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
from ytk_gaia.generator.lowering import CannotLowerError, LoweredRegion, static_int
from ytk_gaia.generator.memory_plan import ALIGNMENT, Places, Plan, aligned, find_results, needed, place_buffers
from ytk_gaia.generator.nest import Nest, NestKind, loop_variables, reduction_variables
from ytk_gaia.generator.schedules import Dynamic, extent_text, product_text

_SHORT_LIMIT = 1 << 30
"""Below it every index, and an index plus one stride of the grid, fits 32 bits."""
_ATOMIC = {"add": (torch.int32, torch.int64), "max": (torch.int32, torch.int64, torch.float32, torch.float64)}


@dataclass(frozen=True)
class _Kernel:
    """One nest as device function: its text, what its pointers point at, how it is started."""

    name: str
    printed: Printed
    pointers: tuple[str, ...]
    written: frozenset[str]
    restrict: bool
    linear: int = 0
    """Iterations of its one loop where they may come in any order; 0: it has another form."""


class _Emitter:
    """Assembles one kernel; holds what its parts have in common."""

    def __init__(self, region: LoweredRegion, border: Border, schedule: CudaSchedule) -> None:
        check_ranks(border)
        self.border, self.schedule, self.guards = border, schedule, region.guards
        self.plan = Plan(region, border)
        self.in_place, copies = find_results(self.plan, border)
        self.short = self._all_short()
        outputs = [*self.in_place, *(name for _, name, _ in copies)]
        self.nests = needed(self.plan, self._print_nests(), outputs)
        self.places = place_buffers(self.plan, self.nests, set(self.in_place))
        self.pairs_bytes, self.pairs_text = self._sort_scratch()
        self.roots = {self.plan.root(n) for nest in self.nests for n in (*nest.reads, *nest.writes)}
        self.roots &= self.plan.storage.keys()
        self.extents = [print_index(symbol) for symbol in self.plan.symbols]
        self.kernels = [self._kernel(count, nest) for count, nest in enumerate(self.nests)]
        self.kernels += [self._copy(count, *copy) for count, copy in enumerate(copies)]

    # ---- nests -------------------------------------------------------------------------------------------------------

    def _all_short(self) -> bool:
        plan, counts = self.plan, []
        for op in plan.graph.operations:
            if isinstance(op, inductor.ir.ComputedBuffer):
                sizes = plan.extents([*op.get_size(), *op.get_reduction_size()])
                counts.append(-1 if any(isinstance(n, Dynamic) for n in sizes) else prod(sizes))
        for elements, _ in plan.storage.values():
            found = plan.extent(elements)
            counts.append(-1 if isinstance(found, Dynamic) else found)
        counts += [prod(t.shape) for t in self.border.inputs]
        return all(0 <= n < _SHORT_LIMIT for n in counts)

    def _print_nests(self) -> list[Nest]:
        plan, nests = self.plan, []
        with inductor.V.set_graph_handler(plan.graph):
            for op in plan.graph.operations:
                if isinstance(op, inductor.ir.NopKernel) or 0 in plan.extents(op.get_size()):
                    continue
                nest = print_nest(op, plan.pointer, plan.dtype, short=self.short)
                nest.sizes, nest.reduced = plan.extents(nest.sizes), plan.extents(nest.reduced)
                nests.append(nest)
        return nests

    def _sort_scratch(self) -> tuple[int, str]:
        """Give the bytes that sorts need in the workspace, as a number and as C++ text; one after the other they share it."""
        large = [n.reduced for n in self.nests if n.kind is NestKind.SORT and not shares_pairs(n)]
        if any(isinstance(size, Dynamic) for reduced in large for size in reduced):
            each = [f"({product_text(reduced)} * {PAIR_BYTES * SORT_BLOCKS} + {ALIGNMENT})" for reduced in large]
            return 0, " + ".join(each)
        fixed = max((aligned(prod(reduced) * PAIR_BYTES * SORT_BLOCKS) for reduced in large), default=0)
        return fixed, str(fixed) if fixed else ""

    def _scatter(self, nest: Nest) -> Scatter:
        sizes = [*nest.sizes, *nest.reduced]
        variables = [*loop_variables(len(nest.sizes)), *reduction_variables(len(nest.reduced))]
        if any(isinstance(n, Dynamic) for n in sizes):
            bounds: dict[str, Any] = {}
            parallel: list[int] = []
        else:
            bounds = {name: inductor.fixed_extent(self.plan.graph, n) for name, n in nest.bounds.items()}
            parallel = separable(nest.targets, variables, sizes, bounds)
        if len(parallel) == len(sizes):
            return Scatter(tuple(parallel))
        if self._atomic(nest):
            return Scatter(tuple(range(len(sizes))), atomic=True)
        rest = prod(n for k, n in enumerate(sizes) if k not in parallel)
        shared_out = prod(sizes[k] for k in parallel)
        name = next(iter(nest.writes))
        elements = int(self.plan.extent(self.plan.storage[self.plan.root(name)][0]))
        return Scatter(tuple(parallel), owners_for(shared_out, rest, max(1, elements // max(1, shared_out))))

    def _atomic(self, nest: Nest) -> bool:
        """Whether atomics cannot be seen in the result: integer sums, the larger or smaller, in a buffer of one type."""
        text = " ".join(nest.body)
        words = {word for word in ("add", "mul", "maximum", "minimum") if f"ytk::scatter_{word}<" in text}
        name = next(iter(nest.writes))
        kind = "add" if words == {"add"} else "max" if words and words <= {"maximum", "minimum"} else ""
        in_place = self.plan.root(name) in self.in_place
        narrowed = in_place and self.plan.dtype(name) in {torch.float32, torch.float64, torch.int64}
        plain = text.count("owns(") != text.count("ytk::scatter_")
        return bool(kind) and not plain and not narrowed and self.plan.dtype(name) in _ATOMIC[kind]

    def _kernel(self, count: int, nest: Nest) -> _Kernel:
        plan = self.plan
        scatter = self._scatter(nest) if nest.kind is NestKind.SCATTER else None
        printed = print_threads(nest, self.schedule, scatter)
        named = {plan.pointer(name): name for name in sorted(nest.reads | nest.writes)}
        constants = {plan.pointers[name] for name in plan.graph.constants} | {f"k{k}" for k in self.border.baked}
        pointers = sorted(set(named) - constants)
        written = frozenset(plan.pointer(name) for name in nest.writes)
        # Two names of one buffer, of which one is a view of the other: nothing can be said about what they share.
        roots = [plan.root(named[pointer]) for pointer in pointers]
        return _Kernel(
            f"nest{count}", printed, tuple(pointers), written, len(set(roots)) == len(roots), self._linear(nest)
        )

    def _linear(self, nest: Nest) -> int:
        one = nest.kind is NestKind.POINTWISE and len(nest.sizes) == 1 and not nest.reduced
        return 0 if not one or isinstance(nest.sizes[0], Dynamic) else int(nest.sizes[0])

    def _copy(self, count: int, index: int, name: str, layout: Any) -> _Kernel:
        """Print the copy of a result that is not in place: an input passed through, a view, a transposed layout."""
        sizes = self.plan.extents(layout.size)
        source: Any = sympy.Integer(static_int(layout.offset))
        target: Any = sympy.Integer(0)
        for variable, size, stride in zip(loop_variables(len(sizes)), layout.size, layout.stride, strict=True):
            source, target = source + variable * stride, target * size + variable
        pointer, c = self.plan.pointer(name), c_type(self.plan.dtype(name))
        load = f"ytk::cast<{c}>(ytk::load({pointer}[{print_index(source)}]))"
        nest = Nest(f"copy{count}", list(sizes), [], body=[f"ytk::store(y{index}[{print_index(target)}], {load});"])
        constants = {self.plan.pointers[n] for n in self.plan.graph.constants} | {f"k{k}" for k in self.border.baked}
        pointers = tuple(sorted({pointer, f"y{index}"} - constants))
        return _Kernel(
            f"copy{count}", print_threads(nest, self.schedule), pointers, frozenset({f"y{index}"}), restrict=True
        )

    # ---- types -------------------------------------------------------------------------------------------------------

    def types(self, variant: StorageVariant) -> dict[str, str]:
        """Give the storage type behind every pointer."""

        def text(tensor: KernelTensor) -> str:
            return c_type(getattr(torch, variant.of(tensor).value), STORAGE_TYPE)

        found = {f"x{k}": text(t) for k, t in enumerate(self.border.inputs)}
        found |= {f"y{k}": text(t) for k, t in enumerate(self.border.outputs)}
        for name, pointer in self.plan.pointers.items():
            root = self.plan.root(name)
            if root in self.in_place:
                found[pointer] = text(self.border.outputs[self.in_place[root]])
            elif pointer not in found and root in self.plan.pointers and self.plan.pointers[root] in found:
                found[pointer] = found[self.plan.pointers[root]]  # a view of an input
            elif pointer not in found:
                found[pointer] = c_type(self.plan.dtypes[name], STORAGE_TYPE)
        return found

    def views(self, variant: StorageVariant) -> dict[str, str]:
        """Give, for pointers at memory that is not linear, the parameters of the view that it is looked at through."""
        found = {}
        for kind, tensors in (("x", self.border.inputs), ("y", self.border.outputs)):
            for k, tensor in enumerate(tensors):
                if variant.format_of(tensor) is Format.HWC8:
                    _, channels, height, width = tensor.shape
                    found[f"{kind}{k}"] = f"{channels}, {height * width}"
        for name, pointer in self.plan.pointers.items():
            root = self.plan.root(name)
            known = (
                found.get(f"y{self.in_place[root]}")
                if root in self.in_place
                else found.get(self.plan.pointers.get(root, ""))
            )
            if known and pointer not in found:
                if name in self.plan.views:
                    raise CannotLowerError([f"a view of {root}, which is not linear"])
                found[pointer] = known
        return found

    # ---- text --------------------------------------------------------------------------------------------------------

    def _parameters(self, kernel: _Kernel, types: dict[str, str]) -> list[str]:
        found = [f"{'' if p in kernel.written else 'const '}{types[p]}* {p}" for p in kernel.pointers]
        if "pairs_memory" in " ".join(kernel.printed.lines):
            found.append("char* pairs_memory")
        return [*found, *(f"int64_t {extent}" for extent in self.extents)]

    def arguments(self, kernel: _Kernel) -> str:
        """Print what a kernel is called with."""
        memory = ["pairs_memory"] if "pairs_memory" in " ".join(kernel.printed.lines) else []
        return ", ".join([*kernel.pointers, *memory, *self.extents])

    def device_function(self, kernel: _Kernel, views: dict[str, str] | None = None) -> list[str]:
        """Print the text of a nest once for all storage types, or for memory that is looked at through views."""
        if views:
            return self._view_function(kernel, views)
        restrict = " __restrict__" if kernel.restrict else ""
        given = {p: f"T{k}" for k, p in enumerate(kernel.pointers)}
        parameters = [f"{'' if p in kernel.written else 'const '}{t}*{restrict} {p}" for p, t in given.items()]
        parameters += self._parameters(kernel, dict.fromkeys(given, ""))[len(given) :]
        template = [f"template <{', '.join(f'class {t}' for t in given.values())}>"] if given else []
        unused = "".join(f"(void){name};" for name in (*kernel.pointers, *self.extents))
        return [
            *template,
            f"static __device__ void {kernel.name}({', '.join(parameters)}) {{",
            f"using I = {'int32_t' if self.short else 'int64_t'};",
            unused,
            *kernel.printed.lines,
            "}",
        ]

    def _view_function(self, kernel: _Kernel, views: dict[str, str]) -> list[str]:
        parameters = [f"T{k} {p}" for k, p in enumerate(kernel.pointers)]
        parameters += self._parameters(kernel, dict.fromkeys(kernel.pointers, ""))[len(kernel.pointers) :]
        lines = list(kernel.printed.lines)
        shown = sorted({views[p] for p in kernel.pointers if p in views})
        image = prod(map(int, shown[0].split(", ")))
        if len(shown) == 1 and kernel.linear and kernel.linear % image == 0 and "const I i0 = item;" in lines:
            lines[lines.index("const I i0 = item;")] = f"const I i0 = ytk::from_hwc8<{shown[0]}>(item);"
        return [
            f"template <{', '.join(f'class T{k}' for k in range(len(kernel.pointers)))}>",
            f"static __device__ void {kernel.name}_views({', '.join(parameters)}) {{",
            f"using I = {'int32_t' if self.short else 'int64_t'};",
            "".join(f"(void){name};" for name in (*kernel.pointers, *self.extents)),
            *lines,
            "}",
        ]

    def call(self, kernel: _Kernel, variant: StorageVariant) -> str:
        """Print the call of a device function."""
        views, types = self.views(variant), self.types(variant)
        if not any(p in views for p in kernel.pointers):
            return f"{kernel.name}({self.arguments(kernel)});"
        given = []
        for p in kernel.pointers:
            c = types[p] if p in kernel.written else f"const {types[p]}"
            given.append(f"ytk::hwc8<{c}, {views[p]}>{{{p}}}" if p in views else p)
        rest = self.arguments(kernel).split(", ")[len(kernel.pointers) :]
        return f"{kernel.name}_views({', '.join([*given, *rest])});"

    def instances(self, variants: Sequence[StorageVariant]) -> dict[tuple[str, str], tuple[str, list[str]]]:
        """Give, per kernel and variant, the symbol and its parameters; variants with equal types share one."""
        found: dict[tuple[str, str], tuple[str, list[str]]] = {}
        for kernel in self.kernels:
            known: dict[tuple[str, ...], str] = {}
            for variant in variants:
                parameters, call = self._parameters(kernel, self.types(variant)), self.call(kernel, variant)
                name = known.setdefault((*parameters, call), f"ytk_{kernel.name}_{variant.id}")
                found[kernel.name, variant.id] = (name, parameters)
        return found

    def _pointers(self, variant: StorageVariant) -> list[str]:
        plan, types, lines = self.plan, self.types(variant), []
        for kind, array, count in (("x", "in", len(self.border.inputs)), ("y", "out", len(self.border.outputs))):
            for k in range(count):
                c = f"const {types[f'x{k}']}" if kind == "x" else types[f"y{k}"]
                lines.append(f"{c}* const {kind}{k} = ({c}*){array}[{k}].data; (void){kind}{k};")
        for root in plan.storage:
            if root in self.roots:
                c, pointer = types[plan.pointers[root]], plan.pointers[root]
                in_place = root in self.in_place
                place = f"y{self.in_place[root]}" if in_place else f"({c}*)(workspace + {self.places.offsets[root]})"
                lines.append(f"{c}* const {pointer} = {place}; (void){pointer};")
        pending = dict(plan.views)
        while pending:
            for name in [name for name, (base, _) in pending.items() if base not in pending]:
                base, offset = pending.pop(name)
                if plan.root(name) in self.roots:
                    c, pointer = types[plan.pointers[name]], plan.pointers[name]
                    lines.append(
                        f"{c}* const {pointer} = {plan.pointer(base)} + {extent_text(plan.extent(offset))}; (void){pointer};"
                    )
        return lines

    def run_function(
        self, variant: StorageVariant, instances: dict[tuple[str, str], tuple[str, list[str]]]
    ) -> list[str]:
        """Print the sequence of launches of one variant."""
        extents = "".join(f", int64_t {extent}" for extent in self.extents)
        lines = [
            f"int run_{variant.id}(const ytk_context* ctx, const ytk_tensor* in, ytk_tensor* out, char* workspace{extents}) {{",
            "(void)in; (void)out; (void)workspace;",
            *(f"(void){extent};" for extent in self.extents),
            *self.places.declarations,
            *self._pointers(variant),
        ]
        if self.pairs_text:
            lines.append(f"char* const pairs_memory = workspace + {self.places.end};")
        for kernel in self.kernels:
            how, symbol = kernel.printed, instances[kernel.name, variant.id][0]
            start = f"ytk::blocks_for(items, {how.per_block}, {how.most_blocks}), {{{how.threads}}}, 0"
            arguments = self.arguments(kernel)
            lines += [
                f"if (const int64_t items = {how.items}; items > 0) {{",
                f"if (const int bad = {symbol}.launch(ctx, {start}{', ' if arguments else ''}{arguments})) return bad;",
                "}",
            ]
        return [*lines, "return YTK_OK;", "}"]

    def format_table(self, variants: Sequence[StorageVariant], tensors: Sequence[KernelTensor], name: str) -> str:
        """Print the layouts of tensors, per variant."""
        rows = ["{" + ", ".join(str(FORMAT_NUMBER[v.format_of(t)]) for t in tensors) + "}" for v in variants]
        return f"const int32_t {name}[{len(variants)}][{max(1, len(tensors))}] = {{{', '.join(rows)}}};"

    def type_table(self, variants: Sequence[StorageVariant], tensors: Sequence[KernelTensor], name: str) -> str:
        """Print the element types of tensors, per variant."""
        rows = ["{" + ", ".join(str(ONNX_NUMBER[v.of(t)]) for t in tensors) + "}" for v in variants]
        return f"const int32_t {name}[{len(variants)}][{max(1, len(tensors))}] = {{{', '.join(rows)}}};"

    def launcher(self, variants: Sequence[StorageVariant]) -> list[str]:
        """Print ``ytk_launch``: what it is given is checked before anything is started."""
        border, places = self.border, self.places
        lines = [
            'extern "C" int ytk_launch(const ytk_context* ctx, const ytk_tensor* in, int nin, ytk_tensor* out, int nout) {',
            f"if (nin != {len(border.inputs)} || nout != {len(border.outputs)}) return YTK_BAD_ARITY;",
            "if (ctx == nullptr || ctx->size < sizeof(ytk_context) || ctx->abi_version != YTK_ABI_VERSION) return YTK_UNSUPPORTED;",
            f"if (ctx->variant < 0 || ctx->variant >= {len(variants)}) return YTK_BAD_VARIANT;",
        ]
        for kind, tensors in (("in", border.inputs), ("out", border.outputs)):
            for index, tensor in enumerate(tensors):
                place = f"{kind}[{index}], {kind}_types[ctx->variant][{index}], {len(tensor.shape)}, {kind}_dims{index}"
                place += f", {kind}_formats[ctx->variant][{index}]"
                lines += [
                    f"static const int64_t {kind}_dims{index}[] = {dims_table(tensor)};",
                    f"if (int bad = check({place})) return bad;",
                ]
        lines += [*extent_constants(self.plan), *dynamic_checks(self.plan, border, self.guards)]
        lines += [*places.declarations, "char* workspace = nullptr;"]
        if places.end != "0" or self.pairs_text:
            need = f"{places.end} + {self.pairs_text or 0}"
            lines += [
                f"if (ctx->workspace == nullptr || ctx->workspace_bytes < (uint64_t)({need})) return YTK_WORKSPACE_TOO_SMALL;",
                "workspace = (char*)ctx->workspace;",
            ]
        given = ", ".join(["ctx", "in", "out", "workspace", *self.extents])
        lines += [f"if (ctx->variant == {k}) return run_{v.id}({given});" for k, v in enumerate(variants)]
        return [*lines, "return YTK_BAD_VARIANT;", "}"]

    def workspace_function(self) -> list[str]:
        """Print ``ytk_workspace``."""
        return [
            'extern "C" int64_t ytk_workspace(const ytk_context*, const ytk_tensor* in, int, const ytk_tensor*, int) {',
            "(void)in;",
            *extent_constants(self.plan),
            *self.places.declarations,
            f"return {self.places.end} + {self.pairs_text or 0};",
            "}",
        ]


def _device_constant(pointer: str, tensor: torch.Tensor) -> str:
    return f"__device__ {baked_constant(pointer, tensor)}"


def emit(
    region: LoweredRegion, border: Border, schedule: CudaSchedule, variants: Sequence[StorageVariant]
) -> EmittedKernel:
    """Write the CUDA C++ source of a lowered region.

    Args:
        region: Loop IR.
        border: Inputs and outputs of the launcher.
        schedule: How nests become threads.
        variants: Storage types; ``ctx->variant`` is an index into them.

    Returns:
        Source text without headers, and its workspace needs.

    Raises:
        CannotLowerError: Something has no CUDA form.
    """
    emitter = _Emitter(region, border, schedule)
    places: Places = emitter.places
    constants = [_device_constant(emitter.plan.pointers[n], t) for n, t in emitter.plan.graph.constants.items()]
    constants += [_device_constant(f"k{index}", tensor) for index, tensor in border.baked.items()]
    instances = emitter.instances(variants)
    declared = dict(instances.values())
    lines = [f"YTK_KERNEL({', '.join([name, *parameters])});" for name, parameters in declared.items()]
    lines += ["#ifdef __CUDACC__", *constants]
    for kernel in emitter.kernels:
        calls = {
            instances[kernel.name, v.id][0]: (instances[kernel.name, v.id][1], emitter.call(kernel, v))
            for v in variants
        }
        shown = [emitter.views(v) for v in variants]
        plain = any(not any(p in views for p in kernel.pointers) for views in shown)
        lines += emitter.device_function(kernel) if plain else []
        viewed = next((views for views in shown if any(p in views for p in kernel.pointers)), None)
        lines += emitter.device_function(kernel, viewed) if viewed else []
        for name, (parameters, call) in calls.items():
            bounds = f"__launch_bounds__({kernel.printed.threads})"
            lines.append(f'extern "C" __global__ void {bounds} {name}({", ".join(parameters)}) {{ {call} }}')
    check = CHECK.replace("const int64_t* dims)", "const int64_t* dims, int format)")
    lines += ["#else", "namespace {", check.replace("tensor.format != YTK_LINEAR", "tensor.format != format")]
    lines.append(emitter.format_table(variants, border.inputs, "in_formats"))
    lines.append(emitter.format_table(variants, border.outputs, "out_formats"))
    lines.append(emitter.type_table(variants, border.inputs, "in_types"))
    lines.append(emitter.type_table(variants, border.outputs, "out_types"))
    for variant in variants:
        lines += emitter.run_function(variant, instances)
    lines += ["}  // namespace", *emitter.launcher(variants)]
    asks = bool(emitter.pairs_text or places.declarations)
    if asks:
        lines += emitter.workspace_function()
    lines.append("#endif")
    longest = max((prod(n.reduced) for n in emitter.nests), default=1)
    text = "\n".join(indented(lines)) + "\n"
    return EmittedKernel(text, places.fixed_bytes + emitter.pairs_bytes, 0, len(emitter.nests), longest, asks)
