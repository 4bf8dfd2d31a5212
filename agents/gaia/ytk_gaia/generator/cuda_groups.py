"""Which nests of a region share rows on a GPU, and their text as one device function per group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import sympy

from ytk_gaia.generator import inductor_adapter as inductor
from ytk_gaia.generator import loop_printer
from ytk_gaia.generator.border import Border
from ytk_gaia.generator.cuda_printer import Relaid, RowPrinter, printer_type
from ytk_gaia.generator.cuda_row_text import RowText
from ytk_gaia.generator.cuda_rows import RowPlan, RowPlanner, Wish, access_of, length, together, worth_sharing
from ytk_gaia.generator.cuda_schedules import Printed
from ytk_gaia.generator.cuda_totals import parts_of
from ytk_gaia.generator.index_printer import c_type
from ytk_gaia.generator.memory_plan import Plan, itemsize
from ytk_gaia.generator.nest import Nest, NestKind, loop_variables, reduction_variables
from ytk_gaia.generator.row_fusion import Fuser, Group
from ytk_gaia.generator.schedules import Dynamic, extent_text

_SCANNED = frozenset({NestKind.SCAN, NestKind.SORT})
_SHORTEST_SCAN = 32
_COLUMNS, _LONGEST_COLUMN = 128, 4096
_MOST_NESTS = 32
"""In one kernel: a GPU takes 4 KiB of arguments."""
_ONE_BLOCK = 4096
"""Iterations of a nest up to which it is not worth a launch of its own beside its neighbours."""


@dataclass(frozen=True)
class Fused:
    """A group as one kernel.

    Attributes:
        nests: In order.
        printed: The kernel's body.
        inside: Roots that exist in registers or shared memory only.
        plan: What it was printed of.
    """

    nests: tuple[Nest, ...]
    printed: Printed
    inside: frozenset[str]
    plan: RowPlan


def _equal(a: int, b: int) -> bool:
    return extent_text(a) == extent_text(b)


def _work(nest: Nest) -> int:
    return length(nest) * (1 if together(nest) else prod(int(n) for n in nest.reduced))


@dataclass(frozen=True)
class Total:
    """A reduction that is cut into parts, and what one thread per result does after it."""

    nest: Nest
    tail: tuple[Nest, ...]

    @property
    def nests(self) -> tuple[Nest, ...]:
        """All, in order."""
        return (self.nest, *self.tail)


def with_totals(steps: Sequence[Nest | Fused], root_of: Callable[[str], str]) -> list[Nest | Fused | Total]:
    """Let a reduction that is cut into parts take on what follows it result by result."""
    found: list[Nest | Fused | Total] = []
    for step in steps:
        last = found[-1] if found else None
        if isinstance(step, Nest) and type(step) is Nest and parts_of(step) > 1:
            found.append(Total(step, ()))
        elif isinstance(last, Total) and isinstance(step, Nest) and _follows(step, last, root_of):
            found[-1] = Total(last.nest, (*last.tail, step))
        else:
            found.append(step)
    return found


def _follows(nest: Nest, total: Total, root_of: Callable[[str], str]) -> bool:
    written = {root_of(name): index for each in total.nests for name, index in each.stores}
    own = all(written.get(root_of(name), index) == index for name, index in nest.loads)
    same = [*map(extent_text, nest.sizes)] == [*map(extent_text, total.nest.sizes)]
    return nest.kind is NestKind.POINTWISE and not nest.reduced and type(nest) is Nest and own and same


class RowGroups:
    """Parts the nests of a region into groups.

    Args:
        plan: Names and sizes.
        border: Inputs, for their sizes.
        short: Whether indices are 32 bits wide.
        relaid: See :class:`ytk_gaia.generator.cuda_printer.CudaLoopPrinter`.
    """

    def __init__(self, plan: Plan, border: Border, *, short: bool, relaid: Relaid | None = None) -> None:
        self._plan, self._border, self._short, self._relaid = plan, border, short, relaid
        self._operations = {op.get_name(): op for op in plan.graph.operations}
        self._rows: dict[tuple[str, int], Any] = {}

    # ---- what the buffers are ----------------------------------------------------------------------------------------

    def span(self, root: str) -> int | None:
        """Give the number of elements of a buffer (of a dynamic one as captured); None where it is not known."""
        plan = self._plan
        if root in plan.storage:
            return int(plan.extent(plan.storage[root][0]))
        pointer = plan.pointers.get(root, "")
        if pointer.startswith("x") and pointer[1:].isdigit():
            return prod(self._border.inputs[int(pointer[1:])].shape)
        if root in plan.graph.constants:
            return int(plan.graph.constants[root].numel())
        return None

    def _words(self, root: str) -> int | None:
        plan = self._plan
        types = {plan.dtypes[n] for n in (root, *(v for v in plan.views if plan.root(v) == root)) if n in plan.dtypes}
        return max(1, itemsize(next(iter(types))) // 4) if len(types) == 1 else None

    # ---- which nests -------------------------------------------------------------------------------------------------

    def _cut(self, nest: Nest, rows: int) -> Nest | None:
        """Print a nest with loops of ``rows`` iterations outside; dynamic ones as a whole."""
        operation, plan = self._operations[nest.buffer], self._plan
        if nest.kind is NestKind.SCATTER or type(nest) is not Nest:
            return None
        printer = printer_type(operation, short=self._short, relaid=self._relaid)
        moving = any(isinstance(n, Dynamic) for n in nest.sizes)
        found = loop_printer.print_rows(printer, operation, plan.pointer, plan.dtype, 1 if moving else rows)
        if found is None:
            return None
        if moving:
            while prod(int(n) for n in plan.extents(found.sizes[: found.outer])) < rows and found.outer < len(
                found.sizes
            ):
                found.outer += 1
            if prod(int(n) for n in plan.extents(found.sizes[: found.outer])) != rows:
                return None
        self._rows[nest.buffer, rows] = sympy.expand(prod(map(sympy.sympify, found.sizes[: found.outer])))
        found.sizes, found.reduced = plan.extents(found.sizes), plan.extents(found.reduced)
        if any(isinstance(n, Dynamic) for n in (*found.sizes[found.outer :], *found.reduced)):
            return None
        return found if worth_sharing(found, rows) else None

    def _shared(self, nests: Sequence[Nest]) -> list[Group]:
        def printed(number: int, rows: int) -> Nest | None:
            return self._cut(nests[number], rows)

        with inductor.V.set_graph_handler(self._plan.graph):
            fuser = Fuser(printed, self._plan.root, self.span, self._plan.offset, min_rows=2, min_work=1)
            groups = fuser.groups(nests)
        return [part for group in groups for part in self._same_rows(group, nests)]

    def _same_rows(self, group: Group, nests: Sequence[Nest]) -> list[Group]:
        """Part a group where dynamic extents, though equal as captured, are not the same, and where it gets too long."""
        runs: list[list[Nest]] = []
        for nest in group.nests if group.rows > 1 else ():
            rows = self._rows.get((nest.buffer, group.rows))
            if runs and len(runs[-1]) < _MOST_NESTS and rows == self._rows.get((runs[-1][-1].buffer, group.rows)):
                runs[-1].append(nest)
            else:
                runs.append([nest])
        if len(runs) < 2:
            return [group]
        whole = {nest.buffer: nest for nest in nests}
        found = []
        for run in runs:
            if len(run) == 1:
                found.append(Group(1, (whole[run[0].buffer],)))
                continue
            written = {self._plan.root(name) for nest in run for name, _ in nest.stores}
            strides = {root: stride for root, stride in group.strides.items() if root in written}
            found.append(Group(group.rows, tuple(run), strides))
        return found

    # ---- rows that are not the first loops ---------------------------------------------------------------------------

    def _ordered(self, printer: Any, nest: Nest, order: Sequence[int], outer: int) -> Nest:
        """Print a nest with its loops in another order, the first ``outer`` of them outside."""
        operation, plan = self._operations[nest.buffer], self._plan
        (sizes, reduced), body = operation.simplify_and_reorder()
        found = Nest(operation.get_name(), [sizes[k] for k in order], list(reduced))
        variables = loop_variables(len(sizes))
        with inductor.V.set_ops_handler(printer(found, plan.pointer, plan.dtype)):
            body([variables[order.index(k)] for k in range(len(sizes))], reduction_variables(len(reduced)))
        found.sizes, found.reduced, found.outer = plan.extents(found.sizes), plan.extents(found.reduced), outer
        return found

    def _lined_up(self, nest: Nest, seed: Nest, known: dict[str, Any]) -> list[int] | None:
        """Give the order in which the loops of ``nest`` begin with those of the seed: matched by strides of a common buffer."""
        variables, rows = loop_variables(len(nest.sizes)), loop_variables(len(seed.sizes))
        for name, index in (*nest.loads, *nest.stores):
            base = known.get(self._plan.root(name))
            place = sympy.expand(sympy.sympify(index) + self._plan.offset(name))
            if base is None:
                continue
            order = []
            for row, size in zip(rows, seed.sizes, strict=True):
                stride = base.coeff(row)
                same = [k for k, v in enumerate(variables) if place.coeff(v) == stride and _equal(nest.sizes[k], size)]
                order += [k for k in same if stride != 0 and k not in order][:1]
            if len(order) == len(rows):
                return [*order, *(k for k in range(len(variables)) if k not in order)]
        return None

    def _columns(self, nests: Sequence[Nest], start: int) -> list[tuple[Nest, list[int]]]:
        """Give the run from ``start`` whose rows are the outputs of its first nest, a reduction, with each one's order."""
        seed = nests[start]
        rows = prod(int(n) for n in seed.sizes)
        if seed.kind is not NestKind.REDUCTION or type(seed) is not Nest or rows < _COLUMNS or not seed.sizes:
            return []
        found: list[tuple[Nest, list[int]]] = []
        known: dict[str, Any] = {}
        plan = self._plan
        accesses: dict[str, set[Any]] = {}
        written: set[str] = set()
        for nest in nests[start : start + _MOST_NESTS]:
            simple = nest.kind in {NestKind.POINTWISE, NestKind.REDUCTION} and type(nest) is Nest
            order = (
                list(range(len(nest.sizes))) if nest is seed else self._lined_up(nest, seed, known) if simple else None
            )
            if order is None or any(isinstance(n, Dynamic) for n in nest.reduced):
                break
            printer = printer_type(self._operations[nest.buffer], short=self._short, relaid=self._relaid)
            whole = self._ordered(printer, nest, order, len(seed.sizes))
            if any(isinstance(n, Dynamic) for n in whole.sizes[whole.outer :]) or _work(whole) > _LONGEST_COLUMN:
                break
            own = {plan.root(n) for n, _ in whole.stores}
            merged = {root: set(each) for root, each in accesses.items()}
            for name, index in (*whole.loads, *whole.stores):
                access = access_of(whole, sympy.sympify(index) + plan.offset(name))
                merged.setdefault(plan.root(name), set()).add(access)
            if any(None in merged[root] or len(merged[root]) != 1 for root in written | own):
                break  # a thread would read what another one writes
            accesses, written = merged, written | own
            known.update(
                {root: next(iter(each)).base for root, each in merged.items() if None not in each and len(each) == 1}
            )
            found.append((whole, order))
        return found

    # ---- everything at once ------------------------------------------------------------------------------------------

    def _small(self, nests: Sequence[Nest], start: int) -> list[Nest]:
        """Give the run from ``start`` that is so little that one block does it all."""
        found: list[Nest] = []
        for nest in nests[start : start + _MOST_NESTS]:
            dynamic = any(isinstance(n, Dynamic) for n in (*nest.sizes, *nest.reduced))
            if nest.kind is NestKind.SCATTER or type(nest) is not Nest or dynamic or nest.outer:
                break
            serial = 1 if together(nest) else prod(int(n) for n in nest.reduced)
            if length(nest) * serial > _ONE_BLOCK or (nest.kind in _SCANNED and not together(nest)):
                break
            found.append(nest)
        return found

    @staticmethod
    def _alone(nest: Nest) -> Nest | None:
        """Give a scan or sort with all of its loops as rows, where that leaves something to share out."""
        if nest.kind not in _SCANNED or prod(int(n) for n in nest.reduced) < _SHORTEST_SCAN:
            return None
        outer, nest.outer = nest.outer, len(nest.sizes)
        if together(nest):
            return nest
        nest.outer = outer
        return None

    def groups(self, nests: Sequence[Nest], outputs: set[str], wish: Wish) -> list[Nest | Fused]:
        """Part nests into groups, in order; what shares nothing stays as it is.

        Args:
            nests: All, in order of execution.
            outputs: Roots of the region's results.
            wish: Of the schedule.
        """
        plan = self._plan
        planner = RowPlanner(plan.root, plan.offset, self._words, self.span)
        starts: dict[int, Group] = {}
        start = 0
        for group in self._shared(nests):
            starts[start] = group
            start += len(group.nests)
        found: list[Nest | Fused] = []
        start = 0
        while start < len(nests):
            group = starts.get(start, Group(1, (nests[start],)))
            members: Sequence[Nest] = group.nests
            orders: list[list[int]] = []
            with inductor.V.set_graph_handler(plan.graph):
                columns = self._columns(nests, start)
            small = self._small(nests, start) if len(members) == 1 and len(columns) < 2 else []
            strides = group.strides
            if len(small) > 1:
                # One row, that is everything.
                members = small
                written = {plan.root(name) for nest in small for name, _ in nest.stores}
                strides = {root: span for root in sorted(written) if (span := self.span(root)) is not None}
            elif len(columns) > len(members):
                members, orders = [nest for nest, _ in columns], [order for _, order in columns]
            elif len(members) == 1:
                alone = self._alone(nests[start])
                members = (alone,) if alone is not None else ()
            originals = nests[start : start + max(1, len(members))]
            start += len(originals)
            others = [n for n in nests if all(n is not o for o in originals)]
            leaving = outputs | {plan.root(name) for n in others for name in (*n.reads, *n.writes)}
            foreign = frozenset(plan.root(name) for n in others for name in n.writes)
            own_wish = replace(wish, blocks=wish.blocks or len(small) > 1)
            row_plan = planner.plan(members, strides, own_wish, foreign) if members else None
            found += originals if row_plan is None else [self._fused(row_plan, leaving, orders)]
        return found

    # ---- text --------------------------------------------------------------------------------------------------------

    def _fused(self, row_plan: RowPlan, leaving: set[str], orders: Sequence[list[int]]) -> Fused:
        plan = self._plan
        printed = []
        with inductor.V.set_graph_handler(plan.graph):
            for number, whole in enumerate(row_plan.nests):
                operation = self._operations[whole.buffer]
                own = {
                    "short": self._short,
                    "relaid": staticmethod(self._relaid) if self._relaid else None,
                    "team": row_plan,
                    "whole": whole,
                    "root_of": staticmethod(plan.root),
                    "offset_of": staticmethod(plan.offset),
                    "leaving": frozenset(leaving),
                }
                printer = type("Printer", (RowPrinter,), own)
                if orders:
                    printed.append(self._ordered(printer, whole, orders[number], whole.outer))
                else:
                    printed.append(self._again(printer, operation, whole))

        def type_of(root: str) -> str:
            return c_type(plan.dtypes[root])

        text = RowText(row_plan, printed, type_of, lambda root: plan.pointers[root], plan.root, leaving)
        held = {root for root in row_plan.held if root in plan.storage and root not in leaving}
        return Fused(tuple(printed), text.printed(), frozenset(held), row_plan)

    def _again(self, printer: Any, operation: Any, whole: Nest) -> Nest:
        """Print a nest as its analysis did, with another printer."""
        plan = self._plan
        rows = prod(int(n) for n in whole.sizes[: whole.outer])
        # What was not cut (a scan by itself, a block that does everything) is printed whole again.
        moving = any(isinstance(n, Dynamic) for n in whole.sizes) or (operation.get_name(), rows) not in self._rows
        found = loop_printer.print_rows(printer, operation, plan.pointer, plan.dtype, 1 if moving else rows)
        assert found is not None  # it was printed so before
        found.sizes, found.reduced, found.outer = plan.extents(found.sizes), plan.extents(found.reduced), whole.outer
        return found
