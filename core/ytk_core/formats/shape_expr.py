"""Output shape expressions of plugin_meta: integer arithmetic over input dims.

Grammar: ``in<i>.d<j>``, integer literals, ``+ - * //``, ``ceildiv(a, b)``, ``min(a, b)``, ``max(a, b)``, ``a == b``,
``a < b`` (1 or 0) and parentheses, with Python's precedence: exactly what TensorRT's ``DimensionOperation`` can express.
``//`` rounds down and ``ceildiv`` rounds up, also for negative operands.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence

from ytk_core.errors import FormatError, UserError

MAX_LENGTH = 256
INT64_MAX = 2**63 - 1
UNKNOWN = -1


@dataclasses.dataclass(frozen=True, slots=True)
class Literal:
    """An integer."""

    value: int


@dataclasses.dataclass(frozen=True, slots=True)
class Dim:
    """``in<input>.d<axis>``."""

    input: int
    axis: int


@dataclasses.dataclass(frozen=True, slots=True)
class Operation:
    """A binary operation; ``op`` is a key of ``OPERATIONS``."""

    op: str
    left: Expr
    right: Expr


Expr = Literal | Dim | Operation

OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "ceildiv": lambda a, b: -(-a // b),
    "min": min,
    "max": max,
    "==": lambda a, b: int(a == b),
    "<": lambda a, b: int(a < b),
}
_BINARY: dict[type[ast.AST], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//"}
_COMPARE: dict[type[ast.AST], str] = {ast.Eq: "==", ast.Lt: "<"}
_FUNCTIONS = frozenset({"ceildiv", "min", "max"})
_INPUT = re.compile(r"in(0|[1-9]\d{0,3})")
_AXIS = re.compile(r"d(\d)")

# C functions that to_c() calls; a file that contains to_c() text contains these once.
C_HELPERS = """\
static inline int64_t ytk_floordiv(int64_t a, int64_t b) {
  int64_t q = a / b;
  return (a % b != 0 && (a < 0) != (b < 0)) ? q - 1 : q;
}
static inline int64_t ytk_ceildiv(int64_t a, int64_t b) {
  int64_t q = a / b;
  return (a % b != 0 && (a < 0) == (b < 0)) ? q + 1 : q;
}
static inline int64_t ytk_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t ytk_max(int64_t a, int64_t b) { return a < b ? b : a; }
static inline int64_t ytk_extent(int64_t a) { return a < 0 ? -2 : a; }
"""


def _bad(text: str, message: str, column: int | None = None) -> FormatError:
    place = "" if column is None else f" at column {column + 1}"
    return FormatError(
        f"shape expression {text!r}{place}: {message}",
        code="bad_shape_expression",
        hint="Allowed: in<i>.d<j>, integers, + - * //, ceildiv(a, b), min(a, b), max(a, b), ==, <, parentheses.",
    )


def _convert(node: ast.expr, text: str) -> Expr:
    match node:
        case ast.Constant(value=int(value)) if type(value) is int:
            if value > INT64_MAX:
                raise _bad(text, f"{value} does not fit into int64", node.col_offset)
            return Literal(value)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))) if type(value) is int:
            return Literal(-value)
        case ast.Attribute(value=ast.Name(id=name), attr=attr):
            input_match, axis_match = _INPUT.fullmatch(name), _AXIS.fullmatch(attr)
            if input_match and axis_match:
                return Dim(int(input_match[1]), int(axis_match[1]))
            raise _bad(text, f"{name}.{attr} is no input dim (in0.d1)", node.col_offset)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return Operation(_BINARY[type(op)], _convert(left, text), _convert(right, text))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
            return Operation(_COMPARE[type(op)], _convert(left, text), _convert(right, text))
        case ast.Call(func=ast.Name(id=name), args=[left, right], keywords=[]) if name in _FUNCTIONS:
            return Operation(name, _convert(left, text), _convert(right, text))
        case ast.Call(func=ast.Name(id=name), args=args) if name in _FUNCTIONS:
            raise _bad(text, f"{name} takes 2 arguments, not {len(args)}", node.col_offset)
        case _:
            raise _bad(text, f"{ast.unparse(node)!r} is not allowed", node.col_offset)


def parse(text: str) -> Expr:
    """Parse one expression.

    Raises:
        FormatError: ``bad_shape_expression``; names the expression, the column and what is allowed.
    """
    if len(text) > MAX_LENGTH:
        raise _bad(text[:40] + "...", f"longer than {MAX_LENGTH} characters")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as err:
        raise _bad(text, f"cannot be parsed ({err.args[0] if err.args else type(err).__name__})") from err
    return _convert(tree.body, text)


def dims_of(expr: Expr) -> Iterator[Dim]:
    """Give every input dim an expression refers to, left to right."""
    match expr:
        case Dim():
            yield expr
        case Operation(left=left, right=right):
            yield from dims_of(left)
            yield from dims_of(right)
        case Literal():
            return


def _value(expr: Expr, input_dims: Sequence[Sequence[int]]) -> int:
    match expr:
        case Literal(value=value):
            return value
        case Dim(input=i, axis=j):
            return input_dims[i][j]
        case Operation(op=op, left=left, right=right):
            a, b = _value(left, input_dims), _value(right, input_dims)
            if op in {"//", "ceildiv"} and b == 0:
                msg = f"division by zero in the shape expression {render(expr)!r}"
                raise UserError(msg, code="bad_shape", hint="The inputs' shapes are not acceptable to this plugin.")
            result = OPERATIONS[op](a, b)
            if not -INT64_MAX <= result <= INT64_MAX:
                msg = f"{render(expr)!r} does not fit into int64"
                raise UserError(msg, code="bad_shape", hint="The inputs' shapes are not acceptable to this plugin.")
            return result


def evaluate(expr: Expr | str, input_dims: Sequence[Sequence[int]]) -> int:
    """Evaluate over the inputs' dims; -1 (unknown) in a dim that is used gives -1.

    Raises:
        FormatError: An input or axis does not exist, or the text is malformed.
        UserError: ``bad_shape``: the extent is negative, a division by zero, or too large.
    """
    parsed = parse(expr) if isinstance(expr, str) else expr
    used = list(dims_of(parsed))
    for dim in used:
        if dim.input >= len(input_dims) or dim.axis >= len(input_dims[dim.input]):
            raise _bad(render(parsed), f"in{dim.input}.d{dim.axis} does not exist")
    if any(input_dims[dim.input][dim.axis] < 0 for dim in used):
        return UNKNOWN
    extent = _value(parsed, input_dims)
    if extent < 0:
        msg = f"the shape expression {render(parsed)!r} gives {extent}"
        raise UserError(msg, code="bad_shape", hint="The inputs' shapes are not acceptable to this plugin.")
    return extent


def render(expr: Expr) -> str:
    """Give the text of an expression, fully parenthesised; ``parse`` gives the same expression back."""
    match expr:
        case Literal(value=value):
            return str(value) if value >= 0 else f"({value})"
        case Dim(input=i, axis=j):
            return f"in{i}.d{j}"
        case Operation(op=op, left=left, right=right):
            if op in _FUNCTIONS:
                return f"{op}({render(left)}, {render(right)})"
            return f"({render(left)} {op} {render(right)})"


def _c_value(expr: Expr, input_var: str) -> str:
    match expr:
        case Literal(value=value):
            return f"INT64_C({value})" if value >= 0 else f"(-INT64_C({-value}))"
        case Dim(input=i, axis=j):
            return f"{input_var}[{i}].dims[{j}]"
        case Operation(op=op, left=left, right=right):
            a, b = _c_value(left, input_var), _c_value(right, input_var)
            function = {"//": "ytk_floordiv", "ceildiv": "ytk_ceildiv", "min": "ytk_min", "max": "ytk_max"}.get(op)
            if function:
                return f"{function}({a}, {b})"
            return f"(int64_t)({a} {op} {b})" if op in _COMPARE.values() else f"({a} {op} {b})"


def _divisors(expr: Expr) -> Iterator[Expr]:
    if isinstance(expr, Operation):
        yield from _divisors(expr.left)
        yield from _divisors(expr.right)
        if expr.op in {"//", "ceildiv"} and not (isinstance(expr.right, Literal) and expr.right.value):
            yield expr.right


def to_c(expr: Expr | str, input_var: str = "in") -> str:
    """Give a C expression of type int64_t over ``const ytk_tensor* <input_var>``.

    Its value is the extent, -1 where a dim it uses is unknown, -2 where the shapes are not acceptable. It calls the
    functions in ``C_HELPERS``.
    """
    parsed = parse(expr) if isinstance(expr, str) else expr
    unknown = " || ".join(f"{_c_value(dim, input_var)} < 0" for dim in dict.fromkeys(dims_of(parsed)))
    zero = " || ".join(f"{_c_value(divisor, input_var)} == 0" for divisor in _divisors(parsed))
    text = f"ytk_extent({_c_value(parsed, input_var)})"
    if zero:
        text = f"({zero}) ? -2 : {text}"
    if unknown:
        text = f"({unknown}) ? -1 : {text}"
    return f"({text})"
