"""Nests that share rows on a GPU: where each row's values are kept while a warp or a block goes through them. No text yet.

Threads of a team hold the positions of a row in one fixed way, the same in every nest. A buffer whose every access is at the
thread's own position is then the thread's own: an array in registers, or memory that needs no barrier. What does not depend on the
position is one number, known to all threads. Anything else of a row goes through shared memory, between barriers.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import sympy

from ytk_gaia.generator.cuda_schedules import PAIR_BYTES, SHARED_PAIRS_BYTES, WARP
from ytk_gaia.generator.nest import Nest, NestKind, loop_variables, reduction_variables
from ytk_gaia.generator.schedules import Dynamic

REGISTER_WORDS = 64
"""Of 32 bits, that arrays of one thread may take."""
_ALL_REGISTERS, _OTHER_REGISTERS = 1 << 16, 40
UNROLLED = 32
"""Turns that are written out at most: an array in registers has no index that is not a constant."""
SHARED_BYTES = 40 << 10
_LONG_ROW, _FEW_ROWS = 4096, 32
_MANY_ROWS = 128
"""As many may have a thread each."""
_SHARED_OUT = frozenset({NestKind.SCAN, NestKind.SORT})


@dataclass(frozen=True)
class Access:
    """How an index depends on row and position: ``base(row) + first + factor * position``.

    Attributes:
        row: Tells bases apart: equal ones are equal functions of the row.
        base: As an expression over the leading loop variables.
        first: Constant part.
        factor: Elements between positions; 0: every thread of the team means the same element.
    """

    row: tuple[Any, ...]
    base: Any = field(compare=False)
    first: int
    factor: int

    def divides(self, vector: int) -> bool:
        """Whether ``vector`` positions from any multiple of it are one aligned piece of memory."""
        coefficients = [int(c) for c in self.base.as_coefficients_dict().values()] if self.base != 0 else []
        return self.factor == 1 and all(n % vector == 0 for n in (self.first, *coefficients))


class Kept(enum.Enum):
    """Where a team has a buffer of its row."""

    ARRAY = "array"
    """Each thread its own positions, in registers."""
    NUMBER = "number"
    """One value, in a register of every thread."""
    SHARED = "shared"


@dataclass(frozen=True)
class Held:
    """One buffer that a team keeps.

    Attributes:
        kept: Where.
        root: Its buffer.
        length: Positions, or elements between rows for :attr:`Kept.SHARED`.
        access: How all of its accesses look, for arrays.
        vector: Whether memory behind it is read and written by vectors.
        loaded: Whether it is read from memory before its first use.
    """

    kept: Kept
    root: str
    length: int
    access: Access | None = None
    vector: bool = False
    loaded: bool = False


@dataclass(frozen=True)
class RowPlan:
    """How a group of nests runs.

    Attributes:
        nests: In order; leading loops are the rows.
        team: Threads per row.
        threads: Per block.
        vector: Positions side by side that one thread has.
        held: Root to what the team keeps of it.
        crossing: Roots that threads of a team hand to one another: barriers stand between.
    """

    nests: tuple[Nest, ...]
    team: int
    threads: int
    vector: int
    held: dict[str, Held]
    crossing: frozenset[str]

    @property
    def by_block(self) -> bool:
        """Whether a row has a block to itself."""
        return self.team > WARP

    @property
    def unrolled(self) -> bool:
        """Whether loops over positions are written out, since arrays are in registers."""
        return any(h.kept is Kept.ARRAY for h in self.held.values())


def together(nest: Nest) -> bool:
    """Whether the team computes one result (a reduction, a scan, a sort) out of a whole row."""
    kinds = {NestKind.REDUCTION, NestKind.SCAN, NestKind.SORT}
    return nest.kind in kinds and prod(nest.sizes[nest.outer :]) == 1


def positions(nest: Nest) -> list[tuple[Any, int]]:
    """Give variable and extent of the loops that the threads of a team share out."""
    if together(nest):
        return list(zip(reduction_variables(len(nest.reduced)), nest.reduced, strict=True))
    variables = loop_variables(len(nest.sizes))
    return list(zip(variables, nest.sizes, strict=True))[nest.outer :]


def length(nest: Nest) -> int:
    """Give the number of positions; of dynamic ones the captured number."""
    return prod(int(n) for _, n in positions(nest))


def static(nest: Nest) -> bool:
    """Whether the number of positions is known."""
    return not any(isinstance(n, Dynamic) for _, n in positions(nest))


def access_of(nest: Nest, index: Any) -> Access | None:
    """Take an index of ``nest`` apart; None where it is no such function of row and position."""
    index = sympy.expand(sympy.sympify(index))
    variables = loop_variables(len(nest.sizes))
    leading = list(zip(variables, nest.sizes, strict=True))[: nest.outer]
    own = positions(nest)
    single = {v: 0 for v, n in [*zip(variables[nest.outer :], nest.sizes[nest.outer :], strict=True), *own] if n == 1}
    index = index.subs({v: n for v, n in single.items() if v not in dict(leading)})
    rest = sympy.expand(index.subs(dict.fromkeys((v for v, _ in leading), 0)))
    base = sympy.expand(index - rest)
    if base.free_symbols - {v for v, _ in leading} or not _linear(base, [v for v, _ in leading]):
        return None
    first, factor, following = int(rest.as_coeff_Add()[0]), 0, 1
    flat: Any = sympy.Integer(0)
    for variable, size in reversed([(v, n) for v, n in own if n != 1]):
        flat += following * variable
        following *= int(size)
    moving = [(v, n) for v, n in own if n != 1]
    if moving:
        coefficient = rest.coeff(moving[-1][0])
        factor = int(coefficient) if coefficient.is_Integer else 0
    if factor < 0 or sympy.expand(rest - first - factor * flat) != 0:
        return None
    return Access(_row_key(base, leading), base, first, factor)


def _linear(expression: Any, variables: Iterable[Any]) -> bool:
    rest = expression
    for variable in variables:
        coefficient = expression.coeff(variable)
        if not coefficient.is_Integer:
            return False
        rest = sympy.expand(rest - coefficient * variable)
    return bool(rest == 0)


def _row_key(base: Any, leading: Sequence[tuple[Any, int]]) -> tuple[Any, ...]:
    """Give a key that is the same for nests that number the same rows by other loops."""
    stride, following = None, 1
    for variable, size in reversed([(v, n) for v, n in leading if n != 1]):
        factor = int(base.coeff(variable))
        stride = factor // following if stride is None else stride
        if factor != stride * following:
            return ("loops", tuple(int(n) for _, n in leading), base)
        following *= int(size)
    return ("row", stride or 0)


def worth_sharing(nest: Nest, rows: int) -> bool:
    """Whether as many rows of this length keep a GPU busy: too few long ones leave most of it idle."""
    work = length(nest) * (1 if together(nest) else prod(int(n) for n in nest.reduced))
    if not together(nest) and prod(int(n) for n in nest.reduced) > 64:
        return False  # a matrix product: its outputs are worth more threads than a row's
    return rows >= 2 * _FEW_ROWS or work <= _LONG_ROW or (rows >= _FEW_ROWS // 2 and work <= 16 * _LONG_ROW)


@dataclass(frozen=True)
class Wish:
    """What a schedule asks for: rows by blocks rather than by warps, and positions side by side per thread."""

    blocks: bool
    vector: int
    threads: int = 256


class RowPlanner:
    """Decides how groups run.

    Args:
        root_of: Buffer name to the buffer that owns its memory.
        offset_of: Buffer name to where a view starts in its root.
        words_of: Root to the registers that one element takes; None: its names differ in type.
        span_of: Root to its number of elements (of dynamic ones: as captured); None: not known.
    """

    def __init__(
        self,
        root_of: Callable[[str], str],
        offset_of: Callable[[str], int],
        words_of: Callable[[str], int | None],
        span_of: Callable[[str], int | None],
    ) -> None:
        self._root_of, self._offset_of, self._words_of, self._span_of = root_of, offset_of, words_of, span_of

    def plan(
        self, nests: Sequence[Nest], strides: dict[str, int], wish: Wish, foreign: frozenset[str] = frozenset()
    ) -> RowPlan | None:
        """Decide how a group runs; None where it should not.

        Args:
            nests: With their leading loops outside.
            strides: Elements between rows of what they write.
            wish: Of the schedule.
            foreign: Roots that others write, too: a part of them is in memory only.
        """
        longest = max(length(n) for n in nests)
        fixed = all(static(n) for n in nests)
        uses = self._uses(nests)
        sorts = any(n.kind is NestKind.SORT for n in nests)
        if fixed and not any(n.kind in _SHARED_OUT for n in nests) and self._across(uses):
            # Rows are side by side in memory: so are the threads that have one each.
            held, crossing = self._held(uses, {}, longest, 1, fixed, wish.threads, foreign)
            return RowPlan(tuple(nests), 1, wish.threads, 1, held, frozenset(crossing))
        vector = self._vector(uses, wish.vector) if fixed else 1
        if sorts and not (fixed and longest * PAIR_BYTES <= SHARED_PAIRS_BYTES):
            return None
        team, threads = _team(longest, vector, wish)
        if sorts and team <= WARP and (threads // WARP) * longest * PAIR_BYTES > SHARED_PAIRS_BYTES:
            team = threads = 64
        turns = -(-longest // (team * vector))
        # A thread by itself hands nothing on: what it keeps nowhere else goes through the workspace.
        held, crossing = self._held(uses, strides if team > 1 else {}, turns, vector, fixed, threads, foreign)
        if 1 < team < WARP and not self._small(uses, held, crossing, sorts):
            team = WARP
            turns = -(-longest // (team * vector))
            held, crossing = self._held(uses, strides, turns, vector, fixed, threads, foreign)
        held = self._fit_shared(held, max(1, threads // team))
        return RowPlan(tuple(nests), team, threads, vector, held, frozenset(crossing))

    def _across(self, uses: dict[str, list[tuple[Nest, Access | None, bool]]]) -> bool:
        """Whether neighbours in memory are rows rather than positions, in most of what is read and written."""
        along = across = 0
        for each in uses.values():
            nest, access, _ = each[0]
            moving = [
                v for v, n in zip(loop_variables(len(nest.sizes)), nest.sizes[: nest.outer], strict=False) if n != 1
            ]
            rows = prod(int(n) for n in nest.sizes[: nest.outer])
            if access is None or not access.factor or not moving or rows < _MANY_ROWS:
                continue
            along += access.factor == 1 and access.base != 0
            across += access.factor != 1 and access.base != 0 and access.base.coeff(moving[-1]) == 1
        return across > along

    def _uses(self, nests: Sequence[Nest]) -> dict[str, list[tuple[Nest, Access | None, bool]]]:
        """Give nest, access and whether it is a store, for every root."""
        uses: dict[str, list[tuple[Nest, Access | None, bool]]] = {}
        for nest in nests:
            for accesses, stores in ((nest.loads, False), (nest.stores, True)):
                for name, index in accesses:
                    root = self._root_of(name)
                    found = access_of(nest, sympy.sympify(index) + self._offset_of(name))
                    uses.setdefault(root, []).append((nest, found, stores))
        return uses

    @staticmethod
    def _one(uses: Sequence[tuple[Nest, Access | None, bool]]) -> Access | None:
        """Give the access that all have in common."""
        found = {access for _, access, _ in uses}
        return next(iter(found)) if len(found) == 1 else None

    def _vector(self, uses: dict[str, Any], wanted: int) -> int:
        """Give the widest vector that every row in memory allows."""
        while wanted > 1:
            shared = [(self._one(each), each) for each in uses.values()]
            rows = [(access, each) for access, each in shared if access is not None and access.factor]
            if rows and all(a.divides(wanted) and all(length(n) % wanted == 0 for n, _, _ in each) for a, each in rows):
                return wanted
            wanted //= 2
        return 1

    def _held(
        self,
        uses: dict[str, list[tuple[Nest, Access | None, bool]]],
        strides: dict[str, int],
        turns: int,
        vector: int,
        fixed: bool,
        threads: int,
        foreign: frozenset[str],
    ) -> tuple[dict[str, Held], set[str]]:
        held: dict[str, Held] = {}
        crossing: set[str] = set()
        arrays: list[tuple[int, str, Access, int]] = []
        for root, each in uses.items():
            access, words, written = self._one(each), self._words_of(root), any(store for _, _, store in each)
            reads = sum(not store for _, _, store in each)
            first_is_store = each[0][2]
            if written and root in foreign:
                # What the team kept would lack what others have written of it.
                crossing |= {root} if access is None or not access.factor else set()
                continue
            if access is not None and access.factor == 0:
                if written and words and first_is_store:
                    held[root] = Held(Kept.NUMBER, root, 1, access)
                elif written:
                    crossing.add(root)
            elif access is not None:
                if words and (not written or first_is_store):
                    gain = reads * (2 if written else 1) + (vector > 1)
                    worth = reads > 1 or vector > 1 or (written and reads)
                    span = max(length(n) for n, _, _ in each)
                    # A row is read whole: where a nest reads under a mask, the rest of it may be outside.
                    worth = worth and (written or self._inside(each[0][0], root, access, span))
                    arrays += [(gain, root, access, span)] if worth else []
            elif written:
                crossing.add(root)
        if fixed and turns <= UNROLLED:
            self._choose_arrays(arrays, uses, held, turns * vector, vector, threads)
        for root in sorted(crossing):
            if fixed and root in strides and root not in foreign and self._words_of(root):
                held[root] = Held(Kept.SHARED, root, strides[root])
        return held, crossing

    def _choose_arrays(
        self,
        arrays: list[tuple[int, str, Access, int]],
        uses: dict[str, Any],
        held: dict[str, Held],
        each: int,
        vector: int,
        threads: int,
    ) -> None:
        # A multiprocessor's registers are shared by the threads of a block; the rest of the kernel needs some, too.
        left = min(REGISTER_WORDS, _ALL_REGISTERS // threads - _OTHER_REGISTERS)
        for _, root, access, span in sorted(arrays, key=lambda a: (-a[0], a[1])):
            need = each * (self._words_of(root) or 1)
            if need <= left:
                left -= need
                loaded = not uses[root][0][2]
                held[root] = Held(Kept.ARRAY, root, span, access, access.divides(vector), loaded)

    def _inside(self, nest: Nest, root: str, access: Access, span: int) -> bool:
        """Whether every position of every row is inside the buffer."""
        elements, last = self._span_of(root), access.first + access.factor * (span - 1)
        for variable, size in zip(loop_variables(len(nest.sizes))[: nest.outer], nest.sizes, strict=False):
            coefficient = int(access.base.coeff(variable)) if access.base != 0 else 0
            if coefficient < 0:
                return False
            last += coefficient * (int(size) - 1)
        return elements is not None and access.first >= 0 and last < elements

    @staticmethod
    def _small(uses: dict[str, Any], held: dict[str, Held], crossing: set[str], sorts: bool) -> bool:
        """Whether several rows may share a warp: nothing is handed on through memory."""
        through = [r for r, each in uses.items() if any(s for _, _, s in each) and not all(s for _, _, s in each)]
        return not crossing and not sorts and all(root in held for root in through)

    def _fit_shared(self, held: dict[str, Held], teams: int) -> dict[str, Held]:
        """Keep what fits shared memory; the rest goes through the workspace."""
        left, found = SHARED_BYTES, {}
        for root, each in held.items():
            if each.kept is Kept.SHARED:
                need = each.length * 4 * (self._words_of(root) or 1) * teams
                if need > left:
                    continue
                left -= need
            found[root] = each
        return found


def _power(number: int) -> int:
    return 1 << (max(1, number) - 1).bit_length()


def _team(longest: int, vector: int, wish: Wish) -> tuple[int, int]:
    """Give the threads of a team and of a block."""
    if not wish.blocks or longest <= WARP * vector:
        return min(WARP, _power(-(-longest // vector))), wish.threads
    threads = min(1024, max(2 * WARP, _power(-(-longest // (2 * vector)))))
    if threads > 256 and longest <= 256 * vector * 8:
        threads = 256
    return threads, threads
