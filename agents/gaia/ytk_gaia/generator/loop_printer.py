"""Turns the body of one loop nest of Inductor's loop IR into statements; what differs between devices is in subclasses.

The printer is an Inductor *ops handler*: running a loop body with it installed calls one method per scalar operation, and
each returns the name of its value. Loops, threads and memory are the business of whoever assembles the source.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import sympy
import torch

from ytk_gaia.generator import inductor_adapter as inductor
from ytk_gaia.generator.index_printer import STORAGE_TYPE, c_type, print_index
from ytk_gaia.generator.index_split import Split, find_interior
from ytk_gaia.generator.loop_shape import LoopShape, composed, count, divisions, find_shape
from ytk_gaia.generator.lowering import CannotLowerError
from ytk_gaia.generator.nest import Jam, Nest, NestKind, SortKeys, StateVariable, loop_variables, reduction_variables
from ytk_gaia.generator.statement_order import by_load

_JOINS = frozenset({"", "add", "mul", "maximum", "minimum"})
"""How a scatter joins a value with the element that it lands on."""

_SIMPLE_REDUCTIONS = {
    # torch's name: (initial value, step, combination of partial results)
    "sum": ("0", "{a} += {v};", "{a} + {b}"),
    "prod": ("1", "{a} *= {v};", "{a} * {b}"),
    "any": ("false", "{a} = {a} || {v};", "{a} || {b}"),
    "xor_sum": ("0", "{a} ^= {v};", "{a} ^ {b}"),
    "max": ("ytk::lowest<{t}>()", "{a} = ytk::op_maximum({a}, ({t}){v});", "ytk::op_maximum({a}, {b})"),
    "min": ("ytk::highest<{t}>()", "{a} = ytk::op_minimum({a}, ({t}){v});", "ytk::op_minimum({a}, {b})"),
}


class LoopPrinter(inductor.DefaultHandler):  # type: ignore[misc]  # torch carries no types
    """Collects the statements of one nest.

    A subclass per device says what its runtime header has (:meth:`printable`), where functions of the mathematical library
    live (``math_scope``) and how a scatter joins a value with what is there (:meth:`_join`).

    Args:
        nest: Filled while the loop body runs.
        pointer_of: Inductor's buffer name to the C++ pointer of its storage.
        dtype_of: Inductor's buffer name to torch dtype.
        assumed: Conditions (expressions that are not negative) that hold wherever this text will run.
        from_pointers: Whether reads are written as constant offsets from named pointers: reads of several rows then share them.
    """

    math_scope: ClassVar[str] = "std::"
    """Prefix of ``trunc``, ``floor``, ``ceil``, ``nearbyint`` and ``frexp``."""

    @classmethod
    def printable(cls) -> frozenset[str]:
        """Give the names of the scalar operations that are functions ``ytk::op_<name>`` of the runtime header."""
        raise NotImplementedError

    def __init__(
        self,
        nest: Nest,
        pointer_of: Callable[[str], str],
        dtype_of: Callable[[str], Any],
        assumed: frozenset[Any] = frozenset(),
        *,
        from_pointers: bool = False,
    ) -> None:
        self._assumed = assumed
        self._from_pointers = from_pointers
        self._integers: dict[str, Any] = {}
        self._conditions: dict[str, frozenset[Any]] = {}
        self.masks: set[Any] = set()
        """Every condition that a mask was made of."""
        self._nest = nest
        self._pointer_of = pointer_of
        self._dtype_of = dtype_of
        self._blocks: list[list[str]] = [nest.body]
        # A statement inside a masked lambda is invisible outside it, so common subexpressions live per block.
        self._known: list[dict[str, str]] = [{}]
        self._count = 0
        linear = sympy.Integer(0)
        for size, variable in zip(nest.reduced, reduction_variables(len(nest.reduced)), strict=True):
            linear = linear * size + variable
        self._reduced_position = print_index(linear)
        self._ranges = {v: sympy.sympify(n) for v, n in zip(loop_variables(len(nest.sizes)), nest.sizes, strict=True)}
        for size, variable in zip(nest.reduced, reduction_variables(len(nest.reduced)), strict=True):
            self._ranges[variable] = sympy.sympify(size)

    # ---- statements --------------------------------------------------------------------------------------------------

    def _new(self) -> str:
        self._count += 1
        return f"t{self._count}"

    def _say(self, statement: str) -> None:
        self._blocks[-1].append(statement)

    def _index(self, expression: Any) -> Any:
        """Simplify an index expression by what the loops' extents say, and remember it."""
        found = inductor.simplify_index(sympy.sympify(expression), self._ranges)
        self._nest.indices.append(found)
        return found

    def _let(self, expression: str) -> str:
        for known in reversed(self._known):
            if expression in known:
                return known[expression]
        name = self._new()
        # What computed a mask is left over where the mask is assumed.
        self._say(f"{'[[maybe_unused]] ' if self._assumed else ''}const auto {name} = {expression};")
        self._known[-1][expression] = name
        return name

    @contextmanager
    def _block(self) -> Iterator[list[str]]:
        block: list[str] = []
        self._blocks.append(block)
        self._known.append({})
        try:
            yield block
        finally:
            self._blocks.pop()
            self._known.pop()

    def _text(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, int):
            return f"{value}L" if value != -(2**63) else "INT64_MIN"
        if isinstance(value, float):
            if math.isnan(value):
                return "YTK_NAN"
            if math.isinf(value):
                return "YTK_INFINITY" if value > 0 else "(-YTK_INFINITY)"
            return repr(value)
        if isinstance(value, sympy.Basic):
            return print_index(value)
        raise CannotLowerError([f"literal of type {type(value).__name__}"])

    # ---- scalar operations -------------------------------------------------------------------------------------------

    def _default(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        if name not in self.printable():
            raise CannotLowerError([f"scalar operation {name}"])
        operands = [self._text(a) for a in (*args, *kwargs.values())]
        return self._let(f"ytk::op_{name}({', '.join(operands)})")

    def constant(self, value: Any, dtype: Any) -> str:
        """Print a literal."""
        name = self._let(f"({c_type(dtype)})({self._text(value)})")
        if dtype is torch.int64 and isinstance(value, int):
            self._integers[name] = sympy.Integer(value)
        return name

    def index_expr(self, expr: Any, dtype: Any) -> str:
        """Print an index as a value."""
        expr = self._index(expr)
        name = self._let(f"({c_type(dtype)})({print_index(expr)})")
        if dtype is torch.int64:
            self._integers[name] = expr
        return name

    def _comparison(self, operation: str, a: Any, b: Any, difference: Callable[[Any, Any], Any]) -> str:
        name = self._default(operation, (a, b), {})
        if a in self._integers and b in self._integers:
            self._conditions[name] = frozenset({sympy.expand(difference(self._integers[a], self._integers[b]))})
        return name

    def ge(self, a: Any, b: Any) -> str:
        """Compare; of two indices it is remembered what the result says about loop variables. The next three likewise."""
        return self._comparison("ge", a, b, lambda x, y: x - y)

    def gt(self, a: Any, b: Any) -> str:
        """Compare."""
        return self._comparison("gt", a, b, lambda x, y: x - y - 1)

    def le(self, a: Any, b: Any) -> str:
        """Compare."""
        return self._comparison("le", a, b, lambda x, y: y - x)

    def lt(self, a: Any, b: Any) -> str:
        """Compare."""
        return self._comparison("lt", a, b, lambda x, y: y - x - 1)

    def _both(self, operation: str, a: Any, b: Any) -> str:
        name = self._default(operation, (a, b), {})
        if a in self._conditions and b in self._conditions:
            self._conditions[name] = self._conditions[a] | self._conditions[b]
        return name

    def logical_and(self, a: Any, b: Any) -> str:
        """Join two conditions."""
        return self._both("logical_and", a, b)

    def and_(self, a: Any, b: Any) -> str:
        """Join two conditions."""
        return self._both("and_", a, b)

    def value_expr(self, expr: Any, dtype: Any) -> str:
        """Print a symbolic value."""
        return self.index_expr(expr, dtype)

    def to_dtype(self, x: str, dtype: Any, src_dtype: Any = None, use_compute_types: bool = True) -> str:
        """Convert; a half stays a float in a register but is rounded as a half would be."""
        del src_dtype, use_compute_types
        if dtype in {torch.float16, torch.bfloat16}:
            return self._let(f"ytk::round_to<{c_type(dtype, STORAGE_TYPE)}>({x})")
        return self._let(f"ytk::cast<{c_type(dtype)}>({x})")

    def to_dtype_bitcast(self, x: str, dtype: Any, src_dtype: Any) -> str:
        """Reinterpret the bits."""
        if {dtype, src_dtype} & {torch.float16, torch.bfloat16}:
            raise CannotLowerError(["bit cast of a half"])
        return self._let(f"ytk::bitcast<{c_type(dtype)}>(({c_type(src_dtype)}){x})")

    def trunc_to_int(self, x: str, dtype: Any) -> str:
        """Round towards zero to an integer type; the next three likewise."""
        return self._let(f"({c_type(dtype)}){self.math_scope}trunc({x})")

    def floor_to_int(self, x: str, dtype: Any) -> str:
        """Round down to an integer type."""
        return self._let(f"({c_type(dtype)}){self.math_scope}floor({x})")

    def ceil_to_int(self, x: str, dtype: Any) -> str:
        """Round up to an integer type."""
        return self._let(f"({c_type(dtype)}){self.math_scope}ceil({x})")

    def round_to_int(self, x: str, dtype: Any) -> str:
        """Round half to even to an integer type."""
        return self._let(f"({c_type(dtype)}){self.math_scope}nearbyint({x})")

    def frexp(self, x: str) -> tuple[str, str]:
        """Split into mantissa and exponent."""
        exponent, mantissa = self._new(), self._new()
        self._say(f"int {exponent} = 0; const auto {mantissa} = {self.math_scope}frexp({x}, &{exponent});")
        return mantissa, f"(int32_t){exponent}"

    def masked(self, mask: str, body: Callable[[], Any], other: Any) -> str:
        """Evaluate ``body`` only where the mask holds: its loads may be out of bounds elsewhere."""
        needed = self._conditions.get(mask)
        if needed is not None:
            self.masks |= needed
            left = needed - self._assumed
            if not left:
                return str(body())
            if left != needed:
                mask = " && ".join(sorted(f"({print_index(c)} >= 0)" for c in left))
        with self._block() as block:
            result = body()
        function = self._new()
        self._say(f"const auto {function} = [&]() {{ {' '.join(block)} return {result}; }};")
        return self._let(f"({mask}) ? {function}() : (decltype({function}()))({self._text(other)})")

    # ---- memory ------------------------------------------------------------------------------------------------------

    def load(self, name: str, index: Any) -> str:
        """Read one element of a buffer."""
        self._nest.reads.add(name)
        index = self._index(index)
        self._nest.loads.append((name, index))
        if not self._from_pointers:
            return self._let(f"ytk::load({self._pointer_of(name)}[{print_index(index)}])")
        offset, rest = sympy.expand(index).as_coeff_Add()
        start = self._let(f"{self._pointer_of(name)} + ({print_index(rest)})")
        return self._let(f"ytk::load({start}[{print_index(offset)}])")

    def indirect_indexing(self, var: str, size: Any, check: bool = True, wrap_neg: bool = True) -> Any:
        """Turn a computed value into an index.

        torch raises on an index out of range; a kernel cannot, so it is clamped: a hostile index must not reach outside the
        tensor.
        """
        limit = print_index(size)
        function = "index_in" if wrap_neg else "index_from_zero_in"
        expression = f"ytk::{function}((int64_t){var}, {limit})" if check or wrap_neg else f"(int64_t){var}"
        return inductor.index_symbol(self._let(expression))

    def check_bounds(self, *_args: Any, **_kwargs: Any) -> None:
        """Nothing: indices are clamped, see :meth:`indirect_indexing`."""

    def device_assert_async(self, *_args: Any, **_kwargs: Any) -> None:
        """Nothing: a kernel has no way to raise."""

    def store(self, name: str, index: Any, value: str, mode: str | None = None) -> None:
        """Write one element, or add to it."""
        join = {"atomic_add": "add"}.get(mode, mode) if mode is not None else ""
        if join not in _JOINS:
            raise CannotLowerError([f"store mode {mode}"])
        self._nest.writes.add(name)
        index = self._index(index)
        self._nest.stores.append((name, index))
        target = f"{self._pointer_of(name)}[{print_index(index)}]"
        if mode is None:
            self._say(f"ytk::store({target}, {value});")
            return
        self._nest.kind = NestKind.SCATTER
        self._join(target, join, value)

    def _join(self, target: str, join: str, value: str) -> None:
        """Say how ``value`` is added (or whatever ``join`` says) to the element ``target``.

        No atomics: a scatter runs in one thread, so that its sums have one order and two runs agree bit by bit.
        """
        self._say(f"ytk::store({target}, ytk::op_{join}(ytk::load({target}), {value}));")

    def store_reduction(self, name: str, index: Any, value: str) -> None:
        """Write the result of a reduction after its loops."""
        self._nest.writes.add(name)
        index = self._index(index)
        self._nest.stores.append((name, index))
        self._nest.epilogue.append(f"ytk::store({self._pointer_of(name)}[{print_index(index)}], {value});")

    # ---- reductions, scans, sorts ------------------------------------------------------------------------------------

    def _carry(self, c: str, initial: str, combine: str | None = None) -> str:
        name = f"s{len(self._nest.state)}"
        self._nest.state.append(StateVariable(name, c, initial, combine))
        return name

    def reduction(self, dtype: Any, src_dtype: Any, reduction_type: str, value: Any) -> Any:
        """Add one step of a reduction; gives the names that hold its result after the loops."""
        self._nest.kind = NestKind.REDUCTION
        c = c_type(dtype)
        if reduction_type == "dot":
            value, reduction_type = self._let(f"ytk::op_mul({value[0]}, {value[1]})"), "sum"
        if reduction_type in _SIMPLE_REDUCTIONS:
            initial, step, combine = _SIMPLE_REDUCTIONS[reduction_type]
            name = self._carry(c, initial.format(t=c), combine)
            self._say(step.format(a=name, v=value, t=c))
            return name
        if reduction_type in {"argmax", "argmin"}:
            return self._arg_reduction(c_type(src_dtype), reduction_type, value)
        if reduction_type == "welford_reduce":
            mean, squares, weight = (self._carry(c, "0") for _ in range(3))
            self._say(f"ytk::welford({mean}, {squares}, {weight}, {value});")
            return mean, squares, weight
        raise CannotLowerError([f"reduction {reduction_type}"])

    def _arg_reduction(self, c: str, reduction_type: str, value: Any) -> str:
        if isinstance(value, tuple | list):
            value = value[0]
        best, position = self._carry(c, "0"), self._carry("int64_t", "-1")
        better = "better_max" if reduction_type == "argmax" else "better_min"
        at = self._reduced_position
        self._say(
            f"if ({position} < 0 || ytk::{better}<{c}>({value}, {best})) {{ {best} = {value}; {position} = {at}; }}"
        )
        return position

    def scan(self, dtypes: Any, combine_fn: Callable[..., Any], values: Any) -> tuple[str, ...]:
        """Carry partial results along the reduced dims; every step's is stored."""
        self._nest.kind = NestKind.SCAN
        carried = tuple(self._carry(c_type(dtype), "0") for dtype in dtypes)
        started = self._carry("bool", "false")
        with self._block() as block:
            result = combine_fn(carried, tuple(values))
        result = tuple(result) if isinstance(result, tuple | list) else (result,)
        fresh = [self._new() for _ in result]
        first = " ".join(f"{c} = {v};" for c, v in zip(carried, values, strict=True))
        # All new values before any assignment: each may depend on all old ones.
        later = " ".join(f"const auto {n} = {r};" for n, r in zip(fresh, result, strict=True))
        later += " " + " ".join(f"{c} = {n};" for c, n in zip(carried, fresh, strict=True))
        self._say(f"if (!{started}) {{ {first} {started} = true; }} else {{ {' '.join(block)} {later} }}")
        return carried

    def sort(self, dtypes: Any, values: Any, stable: bool, descending: bool) -> tuple[str, ...]:
        """Sort along the reduced dims.

        Everything printed so far fills the pairs; what follows reads them in order. The second value is the position, so
        ordering by (key, position) is stable, in place and without allocation.
        """
        del stable
        if len(values) != 2:
            raise CannotLowerError([f"sort of {len(values)} values together"])
        self._nest.kind = NestKind.SORT
        buffer, at = "pairs", self._reduced_position
        index_type = c_type(dtypes[1])
        fill = (*self._nest.body, f"{buffer}[{at}] = {{{values[0]}, ({index_type}){values[1]}}};")
        self._nest.sort = SortKeys(buffer, c_type(dtypes[0]), index_type, descending, fill)
        self._nest.body.clear()
        self._known[-1].clear()
        return f"{buffer}[{at}].key", f"{buffer}[{at}].index"


def print_nest(
    printer_type: type[LoopPrinter],
    operation: Any,
    pointer_of: Callable[[str], str],
    dtype_of: Callable[[str], Any],
) -> Nest:
    """Print one computed buffer of a lowered graph; the graph must be the current one (``V.set_graph_handler``).

    Args:
        printer_type: The device's printer.
        operation: Inductor's ``ComputedBuffer``.
        pointer_of: Buffer name to C++ pointer.
        dtype_of: Buffer name to torch dtype.

    Raises:
        CannotLowerError: The body holds something that has no C++ form.
    """
    nest = print_rows(printer_type, operation, pointer_of, dtype_of, 1)
    assert nest is not None  # every nest has one iteration outside its loops
    return nest


def print_rows(
    printer_type: type[LoopPrinter],
    operation: Any,
    pointer_of: Callable[[str], str],
    dtype_of: Callable[[str], Any],
    outer: int,
    jams: tuple[int, ...] = (),
) -> Nest | None:
    """Print a nest whose first loops, which the caller will run, have ``outer`` iterations together.

    Args:
        printer_type: See :func:`print_nest`; so the next three.
        operation: Inductor's ``ComputedBuffer``.
        pointer_of: Buffer name to C++ pointer.
        dtype_of: Buffer name to torch dtype.
        outer: Iterations outside.
        jams: Numbers of rows to print side by side where that saves loads.

    Returns:
        None where no loop can be cut so.
    """
    (sizes, reduced), body = operation.simplify_and_reorder()

    def printed(shape: LoopShape, assumed: frozenset[Any] = frozenset()) -> tuple[Nest, LoopPrinter]:
        nest = Nest(operation.get_name(), shape.loops, shape.reduced_loops)
        printer = printer_type(nest, pointer_of, dtype_of, assumed)
        index = composed(shape.sizes, loop_variables(len(nest.sizes)))
        reduced_index = composed(shape.reduced, reduction_variables(len(nest.reduced)))
        with inductor.V.set_ops_handler(printer):
            body(index, reduced_index)
        return nest, printer

    shape = LoopShape.whole(sizes, reduced)
    nest, printer = printed(shape)
    cut = find_shape(nest.indices, loop_variables(len(sizes)), sizes, reduction_variables(len(reduced)), reduced)
    if outer > 1:
        lined_up = cut.cut_at(outer)
        if lined_up is None:
            return None
        cut = lined_up
    if cut != shape:
        other, other_printer = printed(cut)
        if outer > 1 or divisions(other.indices) < divisions(nest.indices):
            shape, nest, printer = cut, other, other_printer
    while outer > 1 and count(nest.sizes[: nest.outer]) < outer:
        nest.outer += 1
    variables = loop_variables(len(nest.sizes))
    interior = find_interior(printer.masks, variables, nest.sizes[-1]) if nest.inner else None
    if interior is not None and nest.kind is NestKind.POINTWISE:
        inside = " && ".join(sorted(f"({print_index(c)} >= 0)" for c in interior.outer)) or "true"
        assumed = (interior.inner | interior.outer, interior.inner, interior.outer)
        nest.split = Split(interior, inside, *(printed(shape, conditions)[0].body for conditions in assumed))
    if isinstance(operation.layout, inductor.ir.MutationLayoutSHOULDREMOVE):
        nest.kind = NestKind.SCATTER
    for rows in jams if nest.kind is NestKind.POINTWISE and not printer.masks else ():
        if len(nest.inner) < 2 or not nest.sizes[-2].is_Integer or nest.sizes[-2] < rows:
            continue
        jam = Nest(operation.get_name(), shape.loops, shape.reduced_loops)
        side_by_side = printer_type(jam, pointer_of, dtype_of, from_pointers=True)
        with inductor.V.set_ops_handler(side_by_side):
            for k in range(rows):
                row = [*variables[:-2], variables[-2] + k, variables[-1]]
                body(composed(shape.sizes, row), [])
        one, together = (sum("ytk::load(" in line for line in lines) for lines in (nest.body, jam.body))
        if together < rows * one:
            nest.jams[rows] = Jam(rows, by_load(jam.body))
    return nest
