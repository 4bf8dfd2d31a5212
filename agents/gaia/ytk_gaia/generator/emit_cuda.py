"""Assembles the CUDA C++ source of a kernel: device functions, one kernel per nest and set of storage types, and the launcher.

One text for two compilers, as ``ytk_cuda.h`` describes it. Kernels run one after the other on the caller's stream; what they hand
on lives in the caller's workspace.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import sympy
import torch

from ytk_gaia.generator import inductor_adapter as inductor
from ytk_gaia.generator.attention import parts_of
from ytk_gaia.generator.border import Border, EmittedKernel
from ytk_gaia.generator.cuda_attention import Attention
from ytk_gaia.generator.cuda_cost import Paper, PaperKernel
from ytk_gaia.generator.cuda_gemm import Product
from ytk_gaia.generator.cuda_groups import Fused, RowGroups, Total, with_totals
from ytk_gaia.generator.cuda_host import DeviceFunction, HostHalf
from ytk_gaia.generator.cuda_layouts import row_major, without_copies
from ytk_gaia.generator.cuda_printer import index_text, print_nest
from ytk_gaia.generator.cuda_rows import Wish
from ytk_gaia.generator.cuda_scatter import separable
from ytk_gaia.generator.cuda_schedules import (
    PAIR_BYTES,
    SORT_BLOCKS,
    CudaSchedule,
    Printed,
    Rows,
    Scatter,
    owners_for,
    print_threads,
    shares_pairs,
)
from ytk_gaia.generator.cuda_templates import ANY, Template, parts_in, print_template, with_templates
from ytk_gaia.generator.cuda_totals import print_joined, print_parts, scratch_bytes
from ytk_gaia.generator.cuda_transposes import Tiled, find_tiles, print_tiles
from ytk_gaia.generator.cuda_variants import StorageVariant
from ytk_gaia.generator.index_printer import c_type, print_index
from ytk_gaia.generator.launcher_text import (
    CHECK,
    baked_constant,
    check_ranks,
    indented,
)
from ytk_gaia.generator.lowering import LoweredRegion, static_int
from ytk_gaia.generator.memory_plan import ALIGNMENT, Places, Plan, aligned, find_results, itemsize, needed, place_steps
from ytk_gaia.generator.nest import Nest, NestKind, loop_variables, reduction_variables
from ytk_gaia.generator.schedules import Dynamic, product_text

_SHORT_LIMIT = 1 << 30
"""Below it every index, and an index plus one stride of the grid, fits 32 bits."""
_ATOMIC = {"add": (torch.int32, torch.int64), "max": (torch.int32, torch.int64, torch.float32, torch.float64)}


Step = Nest | Fused | Total | Tiled
"""What becomes one kernel, or two."""


def _words(printed: Printed) -> set[str]:
    return set(re.findall(r"\w+", " ".join(printed.lines)))


class _Emitter(HostHalf):
    """Assembles one kernel; holds what its parts have in common."""

    def __init__(
        self, region: LoweredRegion, border: Border, schedule: CudaSchedule, template: Template | None = None
    ) -> None:
        check_ranks(border)
        self.template = template
        self.border, self.schedule, self.guards = border, schedule, region.guards
        self.plan = Plan(region, border)
        self.in_place, copies = find_results(self.plan, border)
        self.layouts: dict[str, Any] = {}
        if schedule.fuse:
            copies, found = without_copies(self.plan, copies, self.in_place)
            self.layouts = {name: layout for name, (_, layout) in found.items()}
            self.in_place |= {name: index for name, (index, _) in found.items()}
        self.short = self._all_short()
        outputs = [*self.in_place, *(name for _, name, _ in copies)]
        self.nests = needed(self.plan, self._print_nests(), outputs)
        if template is not None:
            self.nests = self._with_templates(outputs)
        self.steps = self._grouped({self.plan.root(name) for name in outputs})
        inside = {root for step in self.steps if isinstance(step, Fused) for root in step.inside}
        ordered = [step.nests if isinstance(step, Fused | Total | Tiled) else (step,) for step in self.steps]
        self.nests = [nest for nests in ordered for nest in nests]
        self.places = place_steps(self.plan, ordered, {*self.in_place, *inside})
        self.pairs_bytes, self.pairs_text = self._sort_scratch()
        self.roots = {self.plan.root(n) for nest in self.nests for n in (*nest.reads, *nest.writes)}
        self.roots = (self.roots & self.plan.storage.keys()) - inside
        self.extents = [print_index(symbol) for symbol in self.plan.symbols]
        self.kernels = [kernel for count, step in enumerate(self.steps) for kernel in self._kernels(count, step)]
        self.kernels += [self._copy(count, *copy) for count, copy in enumerate(copies)]
        self.paper = self._on_paper([layout for _, _, layout in copies])

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

    def relaid(self, name: str, index: Any) -> Any:
        """Give the index of an element of a result that the loops take to be laid out otherwise."""
        return row_major(self.layouts[name], index) if name in self.layouts else index

    def _print_nests(self) -> list[Nest]:
        plan, nests = self.plan, []
        with inductor.V.set_graph_handler(plan.graph):
            for op in plan.graph.operations:
                if isinstance(op, inductor.ir.NopKernel) or 0 in plan.extents(op.get_size()):
                    continue
                relaid = self.relaid if self.layouts else None
                nest = print_nest(op, plan.pointer, plan.dtype, short=self.short, relaid=relaid)
                nest.sizes, nest.reduced = plan.extents(nest.sizes), plan.extents(nest.reduced)
                nests.append(nest)
        return nests

    def _with_templates(self, outputs: Sequence[str]) -> list[Nest]:
        plan = self.plan
        names = {name: plan.root(name) for nest in self.nests for name in (nest.buffer, *nest.reads, *nest.writes)}
        views = frozenset(plan.pointer(name) for name in plan.views)
        kept = frozenset(plan.root(name) for name in outputs)
        return with_templates(self.nests, parts_of(plan.graph), kept, names, views)

    def _grouped(self, outputs: set[str]) -> list[Step]:
        """Let nests share rows where the schedule says so."""
        how = self.schedule
        if not how.fuse:
            return list(self.nests)
        groups = RowGroups(self.plan, self.border, short=self.short, relaid=self.relaid if self.layouts else None)
        steps = groups.groups(self.nests, outputs, Wish(how.rows is Rows.BLOCK, how.vector, how.threads))
        return [self._tiled(step) for step in with_totals(steps, self.plan.root)]

    def _tiled(self, step: Step) -> Step:
        """Let a pointwise nest that reads across what it writes go through tiles."""
        if not isinstance(step, Nest):
            return step

        def text(name: str, index: Any) -> tuple[str, str]:
            c = c_type(self.plan.dtype(name))
            return f"ytk::cast<{c}>(ytk::load({self.plan.pointer(name)}[{index_text(index, short=self.short)}]))", c

        return find_tiles(step, text) or step

    def _on_paper(self, copied: Sequence[Any]) -> list[PaperKernel]:
        """Say what the kernels cost; a copy is a load and a store, one of them in the other's order."""
        plan = self.plan

        def size(root: str) -> int:
            return itemsize(plan.dtypes[root])

        paper = Paper(self.schedule, size, RowGroups(plan, self.border, short=self.short).span, plan.root)
        found = paper.kernels(self.steps)
        for layout in copied:
            elements = prod(int(n) for n in plan.extents(layout.size))
            found.append(PaperKernel(5 * elements * itemsize(layout.dtype), max(1, elements)))
        return found

    @property
    def form(self) -> str:
        """Give the word for what was done beyond loops."""
        fused = [step for step in self.steps if isinstance(step, Fused)]
        if any(len(step.nests) > 1 for step in fused) or self.layouts:
            return "rowfuse"
        if fused:
            return "scan"
        kinds = {type(step) for step in self.steps}
        return "total" if Total in kinds else "tile" if Tiled in kinds else ""

    def _kernels(self, count: int, step: Step) -> list[DeviceFunction]:
        if isinstance(step, Fused):
            return [self._rows(count, step)]
        if isinstance(step, Nest):
            return [self._kernel(count, step)]
        if isinstance(step, Tiled):
            printed = print_tiles(step)
            return [self._made(f"nest{count}_tiles", printed, step.nests, _words(printed).__contains__)]
        names = (f"nest{count}_parts", f"nest{count}_joined")
        return [
            self._made(name, printed, step.nests, _words(printed).__contains__)
            for name, printed in zip(names, (print_parts(step.nest), print_joined(step.nest, step.tail)), strict=True)
        ]

    def _rows(self, count: int, fused: Fused) -> DeviceFunction:
        """Give the kernel of nests that share rows."""
        return self._made(f"nest{count}_rows", fused.printed, fused.nests, _words(fused.printed).__contains__)

    def _made(self, name: str, printed: Printed, nests: Sequence[Nest], used: Callable[[str], bool]) -> DeviceFunction:
        """Give a kernel of nests, with the pointers that its text uses."""
        plan = self.plan
        found = {n for nest in nests for n in (*nest.reads, *nest.writes)}
        found |= {plan.root(n) for n in found if plan.root(n) in plan.pointers}
        named = {plan.pointer(n): n for n in sorted(found)}
        constants = {plan.pointers[n] for n in plan.graph.constants} | {f"k{k}" for k in self.border.baked}
        pointers = tuple(sorted(p for p in named if p not in constants and used(p)))
        written = frozenset(
            plan.pointer(n)
            for nest in nests
            for n in (*nest.writes, *map(plan.root, nest.writes))
            if n in plan.pointers
        )
        # Two names of one buffer, of which one is a view of the other: nothing can be said about what they share.
        roots = [plan.root(named[pointer]) for pointer in pointers]
        return DeviceFunction(name, printed, pointers, written, len(set(roots)) == len(roots))

    def _sort_scratch(self) -> tuple[int, str]:
        """Give the bytes that sorts need in the workspace, as a number and as C++ text; one after the other they share it."""
        alone = [step for step in self.steps if isinstance(step, Nest)]
        totals = [aligned(scratch_bytes(step.nest)) for step in self.steps if isinstance(step, Total)]
        large = [n.reduced for n in alone if n.kind is NestKind.SORT and not shares_pairs(n)]
        if any(isinstance(size, Dynamic) for reduced in large for size in reduced):
            each = [f"({product_text(reduced)} * {PAIR_BYTES * SORT_BLOCKS} + {ALIGNMENT})" for reduced in large]
            each += [str(size) for size in totals]
            return 0, " + ".join(each)
        fixed = max((*totals, *(aligned(prod(reduced) * PAIR_BYTES * SORT_BLOCKS) for reduced in large)), default=0)
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

    def _kernel(self, count: int, nest: Nest) -> DeviceFunction:
        plan = self.plan
        scatter = self._scatter(nest) if nest.kind is NestKind.SCATTER else None
        own = print_template(nest, self.template) if self.template else None
        printed = own or print_threads(nest, self.schedule, scatter)
        named = {plan.pointer(name): name for name in sorted(nest.reads | nest.writes)}
        constants = {plan.pointers[name] for name in plan.graph.constants} | {f"k{k}" for k in self.border.baked}
        pointers = sorted(set(named) - constants)
        written = frozenset(plan.pointer(name) for name in nest.writes)
        # Two names of one buffer, of which one is a view of the other: nothing can be said about what they share.
        roots = [plan.root(named[pointer]) for pointer in pointers]
        return DeviceFunction(
            f"nest{count}", printed, tuple(pointers), written, len(set(roots)) == len(roots), self._linear(nest)
        )

    def _linear(self, nest: Nest) -> int:
        one = nest.kind is NestKind.POINTWISE and len(nest.sizes) == 1 and not nest.reduced
        return 0 if not one or isinstance(nest.sizes[0], Dynamic) else int(nest.sizes[0])

    def _copy(self, count: int, index: int, name: str, layout: Any) -> DeviceFunction:
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
        return DeviceFunction(
            f"copy{count}", print_threads(nest, self.schedule), pointers, frozenset({f"y{index}"}), restrict=True
        )

    # ---- text --------------------------------------------------------------------------------------------------------

    def _parameters(self, kernel: DeviceFunction, types: dict[str, str]) -> list[str]:
        found = [f"{'' if p in kernel.written else 'const '}{types[p]}* {p}" for p in kernel.pointers]
        if "pairs_memory" in " ".join(kernel.printed.lines):
            found.append("char* pairs_memory")
        return [*found, *(f"int64_t {extent}" for extent in self.extents)]

    def arguments(self, kernel: DeviceFunction) -> str:
        """Print what a kernel is called with."""
        memory = ["pairs_memory"] if "pairs_memory" in " ".join(kernel.printed.lines) else []
        return ", ".join([*kernel.pointers, *memory, *self.extents])

    def device_function(self, kernel: DeviceFunction, views: dict[str, str] | None = None) -> list[str]:
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

    def _view_function(self, kernel: DeviceFunction, views: dict[str, str]) -> list[str]:
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

    def call(self, kernel: DeviceFunction, variant: StorageVariant) -> str:
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


def _device_constant(pointer: str, tensor: torch.Tensor) -> str:
    return f"__device__ {baked_constant(pointer, tensor)}"


def template_parts(region: LoweredRegion, border: Border) -> tuple[list[Product], list[Attention]]:
    """Give the matrix products and attentions of a lowered region, with what follows each of them.

    Raises:
        CannotLowerError: Something has no CUDA form.
    """
    return parts_in(_Emitter(region, border, CudaSchedule(Rows.WARP), ANY).nests)


def emit(
    region: LoweredRegion,
    border: Border,
    schedule: CudaSchedule,
    variants: Sequence[StorageVariant],
    template: Template | None = None,
) -> EmittedKernel:
    """Write the CUDA C++ source of a lowered region.

    Args:
        region: Loop IR.
        border: Inputs and outputs of the launcher.
        schedule: How nests become threads.
        variants: Storage types; ``ctx->variant`` is an index into them.
        template: How matrix products and attentions are cut; None: they are loops like all others.

    Returns:
        Source text without headers, and its workspace needs.

    Raises:
        CannotLowerError: Something has no CUDA form.
    """
    emitter = _Emitter(region, border, schedule, template)
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
    return EmittedKernel(
        text,
        places.fixed_bytes + emitter.pairs_bytes,
        0,
        len(emitter.nests),
        longest,
        asks,
        emitter.form,
        len(emitter.kernels),
        sum(kernel.sectors for kernel in emitter.paper),
        round(sum(kernel.us for kernel in emitter.paper), 2),
    )
