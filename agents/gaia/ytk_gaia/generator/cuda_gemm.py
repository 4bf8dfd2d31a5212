"""Finds matrix products among loop nests: sums of products whose factors depend on different loops. Text and sizes only.

A nest ``sum over k of A(batch, m, k) * B(batch, n, k)`` is one, whatever its factors are: loads with any strides, computed ones.
A convolution with padding is not found so far. What follows it element by element (bias, activation, residual) becomes its epilogue.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import sympy

from ytk_gaia.generator.nest import Nest, NestKind
from ytk_gaia.generator.schedules import Dynamic

VECTOR = 8
"""Elements that are moved at once: 16 bytes of halves."""
_MAX_LINKS = 4
_LEAST = 8
"""Rows and columns below which a tile would be mostly empty."""
_LET = re.compile(r"(?:\[\[maybe_unused\]\] )?const auto (t\d+) = (.*);")
_NAME = re.compile(r"\b[tir]\d+\b")
_LOOP = re.compile(r"\b[ir]\d+\b")
_STORE = re.compile(r"ytk::store\((\w+)\[(.*)\], (\w+)\);")
_LOAD = re.compile(r"ytk::cast<float>\(ytk::load\((\w+)\[(.*)\]\)\)")


@dataclass(frozen=True)
class Loop:
    """One loop variable and its extent."""

    name: str
    size: int


@dataclass(frozen=True)
class Operand:
    """One factor of a product.

    Attributes:
        statements: What computes it.
        value: Name of the result.
        pointers: What it reads.
        along_k: Whether neighbours in memory are neighbours along the reduced loops.
        place: Pointer and index where it is one element that is read; None: computed.
        vector: Whether eight neighbours are always together, and aligned as they are in a buffer that is.
    """

    statements: tuple[str, ...]
    value: str
    pointers: frozenset[str]
    along_k: bool
    place: tuple[str, str] | None
    vector: bool


@dataclass(frozen=True)
class Link:
    """A nest that goes on with each element of a product (or of the link before): its body, with the element as ``value``.

    Attributes:
        place: Index of the element in the buffer that is not written any more, over the loops of who computes it.
        loops: Variable, extent and stride in the buffer, largest stride first.
        statements: The body.
    """

    place: str
    loops: tuple[tuple[Loop, int], ...]
    statements: tuple[str, ...]


@dataclass(frozen=True)
class Product:
    """A matrix product. Loops outermost first."""

    batch: tuple[Loop, ...]
    rows: tuple[Loop, ...]
    columns: tuple[Loop, ...]
    depth: tuple[Loop, ...]
    a: Operand
    b: Operand
    store: str
    """Statement that writes a sum ``s0``, or nothing where only links read it."""
    links: tuple[Link, ...] = ()


@dataclass
class ProductNest(Nest):
    """A nest that is a matrix product, with what follows it."""

    product: Product | None = None


def extent(loops: Iterable[Loop]) -> int:
    """Give the captured number of iterations of loops together."""
    return prod(int(loop.size) for loop in loops)


def _definitions(body: Sequence[str]) -> dict[str, tuple[str, str]] | None:
    """Give, per name, its expression and statement; None where the body does anything else but the one sum at its end."""
    found = {}
    for line in body[:-1]:
        let = _LET.fullmatch(line)
        if let is None:
            return None
        found[let[1]] = (let[2], line)
    return found


def _slice(name: str, definitions: Mapping[str, tuple[str, str]]) -> tuple[list[str], set[str]]:
    """Give the statements that ``name`` needs, in order, and the loop variables that they speak of."""
    wanted, pending, loops = {name}, [name], set()
    while pending:
        for other in _NAME.findall(definitions[pending.pop()][0]):
            if other in definitions and other not in wanted:
                wanted.add(other)
                pending.append(other)
    statements = [line for key, (_, line) in definitions.items() if key in wanted]
    for line in statements:
        loops |= set(_LOOP.findall(line))
    return statements, loops


def linear_terms(index: str) -> tuple[dict[str, int], int] | None:
    """Take an index apart into coefficients of its variables and a constant; None where it is not linear with known strides."""
    try:
        expression = sympy.expand(sympy.sympify(re.sub(r"\b(\d+)L\b", r"\1", index)))
    except (sympy.SympifyError, SyntaxError, TypeError, AttributeError):
        return None
    constant, rest = expression.as_coeff_Add()
    terms: dict[str, int] = {}
    for term in sympy.Add.make_args(rest):
        if term == 0:
            continue
        factor, symbol = term.as_coeff_Mul()
        if not symbol.is_Symbol or not factor.is_Integer or not _LOOP.fullmatch(symbol.name):
            return None
        terms[symbol.name] = int(factor)
    return (terms, int(constant)) if constant.is_Integer else None


def _operand(
    name: str,
    definitions: Mapping[str, tuple[str, str]],
    rows: Sequence[Loop],
    depth: Sequence[Loop],
    views: frozenset[str],
) -> Operand:
    statements, _ = _slice(name, definitions)
    read = frozenset(re.findall(r"ytk::load\((\w+)\[", " ".join(statements)))
    load = _LOAD.fullmatch(definitions[name][0])
    indices = [linear_terms(text) for _, text in re.findall(r"ytk::load\((\w+)\[(.*?)\]\)", " ".join(statements))]
    known = next((found for found in indices if found is not None), None)
    terms = known[0] if known else {}

    def step(loops: Sequence[Loop]) -> float:
        return terms.get(loops[-1].name, 0) or float("inf") if loops else float("inf")

    along_k = step(depth) <= step(rows)
    plain = load is not None and len(statements) == 1
    fast = depth if along_k else rows
    vector = (
        plain
        and known is not None
        and bool(fast)
        and read.isdisjoint(views)
        and not isinstance(fast[-1].size, Dynamic)
        and terms.get(fast[-1].name) == 1
        and fast[-1].size % VECTOR == 0
        and known[1] % VECTOR == 0
        and all(factor % VECTOR == 0 for variable, factor in terms.items() if variable != fast[-1].name)
    )
    place = (load[1], load[2]) if plain and load is not None else None
    return Operand(tuple(statements), name, read, along_k, place, vector)


def find_product(nest: Nest, views: frozenset[str] = frozenset(), least: int = _LEAST) -> Product | None:
    """Give a nest as a matrix product; None where it is none, or too small for tiles.

    Args:
        nest: As printed for a GPU.
        views: Pointers that begin anywhere in a buffer.
        least: Rows, columns and steps that it must have.
    """
    if nest.kind is not NestKind.REDUCTION or len(nest.state) != 1 or len(nest.epilogue) != 1 or not nest.body:
        return None
    state, definitions = nest.state[0], _definitions(nest.body)
    added = re.fullmatch(rf"{state.name} \+= (t\d+);", nest.body[-1])
    store = _STORE.fullmatch(nest.epilogue[0])
    if state.c_type != "float" or definitions is None or added is None or store is None or store[3] != state.name:
        return None
    factors = re.fullmatch(r"ytk::op_mul\((t\d+), (t\d+)\)", definitions[added[1]][0])
    if factors is None:
        return None
    outer = [Loop(f"i{k}", n) for k, n in enumerate(nest.sizes)]
    depth = tuple(Loop(f"r{k}", n) for k, n in enumerate(nest.reduced))
    first, second = factors[1], factors[2]
    of_first, of_second = (_slice(name, definitions)[1] for name in (first, second))
    if not all(any(loop.name in used for loop in depth) for used in (of_first, of_second)):
        return None
    # The last loop of the output goes to the columns: threads side by side then write side by side.
    only_first = [loop for loop in outer if loop.name in of_first and loop.name not in of_second]
    if outer and outer[-1] in only_first:
        first, second, of_first, of_second = second, first, of_second, of_first
    rows = tuple(loop for loop in outer if loop.name in of_first and loop.name not in of_second)
    columns = tuple(loop for loop in outer if loop.name in of_second and loop.name not in of_first)
    batch = tuple(loop for loop in outer if loop not in rows and loop not in columns)
    if min(extent(rows), extent(columns), extent(depth)) < least:
        return None
    return Product(
        batch,
        rows,
        columns,
        depth,
        _operand(first, definitions, rows, depth, views),
        _operand(second, definitions, columns, depth, views),
        nest.epilogue[0].replace(f", {state.name});", ", s0);"),
    )


# ---- epilogues -------------------------------------------------------------------------------------------------------


def _strides(index: str, loops: Sequence[Loop]) -> tuple[tuple[Loop, int], ...] | None:
    """Give the loops by the stride of an index that numbers every iteration once, from 0; None where it does not."""
    found = linear_terms(index)
    if found is None or found[1] != 0:
        return None
    known = [
        (loop, found[0].get(loop.name, 0)) for loop in loops if isinstance(loop.size, Dynamic) or int(loop.size) != 1
    ]
    known.sort(key=lambda pair: pair[1])
    following = 1
    for position, (loop, stride) in enumerate(known):
        if stride != following:
            return None
        if isinstance(loop.size, Dynamic) and position + 1 < len(known):
            return None
        following *= int(loop.size)
    return tuple(reversed(known))


def link_to(store: str, nest: Nest, elements: int) -> Link | None:
    """Give a nest as what goes on with each element that ``store`` would write; None where it does not."""
    written = _STORE.fullmatch(store)
    if written is None or nest.kind is not NestKind.POINTWISE or nest.state or nest.reduced:
        return None
    pointer = written[1]
    text = "\n".join(nest.body)
    places = set(re.findall(rf"\b{pointer}\[(.*?)\]\)", text))
    if len(places) != 1 or text.count(f"ytk::load({pointer}[") != len(re.findall(rf"\b{pointer}\b", text)):
        return None
    (place,) = places
    loops = _strides(place, [Loop(f"i{k}", n) for k, n in enumerate(nest.sizes)])
    if loops is None or prod(int(n) for n in nest.sizes) != elements:
        return None
    if len(re.findall(r"\bytk::store\(", text)) != 1 or _STORE.fullmatch(nest.body[-1]) is None:
        return None
    body = [line.replace(f"ytk::load({pointer}[{place}])", written[3]) for line in nest.body]
    return Link(written[2], loops, tuple(body))


def _renamed(statements: Sequence[str], level: int) -> list[str]:
    """Give statements whose own names cannot meet those of the link before: its result is among what they read."""
    own = {let[1] for line in statements if (let := _LET.fullmatch(line))}
    return [re.sub(r"\bt\d+\b", lambda m: f"{m[0]}_{level}" if m[0] in own else m[0], line) for line in statements]


def with_epilogues(
    nests: Sequence[Nest], kept: frozenset[str], names: Mapping[str, str], views: frozenset[str]
) -> list[Nest]:
    """Make product nests of those that are, and let each take over the nests that go on with its elements one by one.

    Args:
        nests: In execution order.
        kept: Buffers that are written whoever reads them here (results of the region).
        names: Buffer to the one that owns its memory.
        views: Pointers that begin anywhere in a buffer.
    """
    left = list(nests)
    position = 0
    while position < len(left):
        nest = left[position]
        product = find_product(nest, views)
        if product is not None:
            made = ProductNest(**{k: getattr(nest, k) for k in nest.__dataclass_fields__}, product=product)
            left[position] = made
            _take_over(left, position, kept, names)
        position += 1
    return left


def _take_over(left: list[Nest], position: int, kept: frozenset[str], names: Mapping[str, str]) -> None:
    made = left[position]
    assert isinstance(made, ProductNest)
    for level in range(_MAX_LINKS):
        product = made.product
        assert product is not None
        store = product.links[-1].statements[-1] if product.links else product.store
        written = [name for name in made.writes if name == made.buffer]
        readers = [
            k for k, nest in enumerate(left) if names[made.buffer] in {names[n] for n in nest.reads} and k > position
        ]
        if not readers or not written:
            return
        taken = left[readers[0]]
        elements = prod(int(n) for n in made.sizes)
        link = link_to(store, taken, elements)
        between = {names[n] for nest in left[position + 1 : readers[0]] for n in nest.writes}
        if link is None or between & {names[n] for n in taken.reads} or len(taken.writes) != 1:
            return
        link = replace(link, statements=tuple(_renamed(link.statements, level)))
        gone = len(readers) == 1 and names[made.buffer] not in kept
        if gone and product.links:
            before = product.links[-1]
            product = replace(product, links=(*product.links[:-1], replace(before, statements=before.statements[:-1])))
        elif gone:
            product = replace(product, store="")
        made.product = replace(product, links=(*product.links, link))
        made.reads = made.reads | {n for n in taken.reads if names[n] != names[made.buffer]}
        if gone:
            made.writes = {n for n in made.writes if names[n] != names[made.buffer]}
        made.writes = made.writes | taken.writes
        made.buffer = next(iter(taken.writes))
        del left[readers[0]]
