"""Memory of a lowered region: names, aliases, extents, and where each buffer lives. Emitters of every device share it.

A launcher allocates nothing. Buffers between nests live in the caller's workspace, planned here by their live ranges; outputs are
written in place wherever their layout is row-major.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import sympy
import torch

from ytk_gaia.generator import inductor_adapter as inductor
from ytk_gaia.generator.border import Border
from ytk_gaia.generator.index_printer import print_index
from ytk_gaia.generator.lowering import CannotLowerError, LoweredRegion, static_int
from ytk_gaia.generator.nest import Nest
from ytk_gaia.generator.schedules import Dynamic, extent_text

ALIGNMENT = 64


def aligned(size: int) -> int:
    """Round a size in bytes up to whole cache lines."""
    return (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def itemsize(dtype: torch.dtype) -> int:
    """Give the bytes of one element."""
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


class Plan:
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
        self.views: dict[str, tuple[str, Any]] = {}
        """View to its base and the element of it where the view begins; an expression where earlier parts are dynamic."""
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
            self.views[name] = (view.get_name(), sympy.sympify(view.get_layout().offset))

    def root(self, name: str) -> str:
        """Give the buffer that owns the memory of ``name``."""
        real: dict[str, str] = getattr(self.graph, "mutation_real_name", {})
        for _ in range(len(self.roots) + len(self.views) + 2):
            following = real.get(name) or self.roots.get(name) or (self.views[name][0] if name in self.views else name)
            if following == name:
                return name
            name = following
        raise CannotLowerError([f"cyclic alias of {name}"])

    def offset(self, name: str) -> int:
        """Give the element of its root at which a buffer starts; views have no view of their own as root."""
        found = sympy.Integer(0)
        name = self._named(name)
        while name in self.views:
            base, offset = self.views[name]
            found, name = found + offset, self._named(base)
        return self.extent(found)

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


def needed(plan: Plan, nests: Sequence[Nest], outputs: Sequence[str]) -> list[Nest]:
    """Drop nests whose results nobody reads (an unused second output of an operator)."""
    wanted = {plan.root(name) for name in outputs}
    kept = []
    for nest in reversed(nests):
        if any(plan.root(name) in wanted for name in nest.writes):
            kept.append(nest)
            wanted |= {plan.root(name) for name in nest.reads}
    return kept[::-1]


@dataclass(frozen=True)
class Places:
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


def _place_dynamic(plan: Plan, roots: Sequence[str]) -> Places:
    """Lay buffers out one after the other: without their sizes nothing is known about what fits where."""
    lines, offsets = ["const int64_t place0 = 0;"], {}
    for count, root in enumerate(roots):
        span, dtype = plan.storage[root]
        room = (
            f"({extent_text(plan.extent(span))} * {itemsize(dtype)} + {2 * ALIGNMENT - 1}) / {ALIGNMENT} * {ALIGNMENT}"
        )
        lines.append(f"const int64_t place{count + 1} = place{count} + {room};")
        offsets[root] = f"place{count}"
    return Places(offsets, f"place{len(roots)}", 0, tuple(lines))


def place_steps(plan: Plan, steps: Sequence[Sequence[Nest]], taken: set[str]) -> Places:
    """Give each intermediate buffer an offset in the workspace; buffers that never live together may share memory.

    Args:
        plan: Sizes and aliases.
        steps: Nests in execution order; those of one step run at the same time as far as their buffers are concerned.
        taken: Roots that live elsewhere (outputs written in place).
    """
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for step, nests in enumerate(steps):
        for name in (name for nest in nests for name in (*nest.writes, *nest.reads)):
            root = plan.root(name)
            first.setdefault(root, step)
            last[root] = step
    for output in plan.graph.graph_outputs:
        if hasattr(output, "get_name") and plan.root(output.get_name()) in first:
            last[plan.root(output.get_name())] = len(steps)
    placed: list[tuple[int, int, str]] = []
    offsets: dict[str, int] = {}
    roots = sorted((r for r in first if r in plan.storage and r not in taken), key=lambda r: first[r])
    if any(isinstance(plan.extent(plan.storage[root][0]), Dynamic) for root in roots):
        return _place_dynamic(plan, roots)
    for root in roots:
        elements, dtype = plan.storage[root]
        size = aligned(max(1, plan.extent(elements)) * itemsize(dtype))
        offset = 0
        for start, end, other in sorted(placed):
            overlaps = not (last[other] < first[root] or last[root] < first[other])
            if overlaps and start < offset + size and offset < end:
                offset = end
        offsets[root] = offset
        placed.append((offset, offset + size, root))
    fixed = max((end for _, end, _ in placed), default=0)
    return Places({root: str(offset) for root, offset in offsets.items()}, str(fixed), fixed)


def find_results(plan: Plan, border: Border) -> tuple[dict[str, int], list[tuple[int, str, Any]]]:
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
