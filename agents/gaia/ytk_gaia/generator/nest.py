"""One printed loop nest: what a printer of loop bodies fills and a schedule runs. Text and sizes only, for every device."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from ytk_gaia.generator import inductor_adapter as inductor
from ytk_gaia.generator.index_split import Split


class NestKind(enum.Enum):
    """What decides how a nest may be scheduled."""

    POINTWISE = "pointwise"
    REDUCTION = "reduction"
    SCAN = "scan"
    SORT = "sort"
    SCATTER = "scatter"
    """Writes through computed indices: two iterations may meet, so the order of iterations matters."""


@dataclass(frozen=True)
class StateVariable:
    """What a reduction carries from one step to the next.

    Attributes:
        name: C++ name in the body.
        c_type: Its type.
        initial: Its value before the first step.
        combine: C++ expression over ``{a}`` and ``{b}`` that joins two partial results; None where there is no such form.
    """

    name: str
    c_type: str
    initial: str
    combine: str | None = None


@dataclass(frozen=True)
class SortKeys:
    """One sort of (key, original position) pairs along the reduced dims."""

    buffer: str
    key_type: str
    index_type: str
    descending: bool
    fill: tuple[str, ...]

    @property
    def pair_type(self) -> str:
        """C++ type of one element."""
        return f"ytk::sort_pair<{self.key_type}, {self.index_type}>"


@dataclass(frozen=True)
class ScanParts:
    """A scan whose steps several threads share out.

    Attributes:
        types: C++ types of what is carried along.
        values: Names of a step's own values, after ``fill``.
        fill: Statements of a step before the scan.
        join: C++ lambda of what two neighbouring parts (left, right) make together: ``(l0, ..., r0, ..., &o0, ...)``.
    """

    types: tuple[str, ...]
    values: tuple[str, ...]
    fill: tuple[str, ...]
    join: str


@dataclass(frozen=True)
class Jam:
    """Several rows of a pointwise nest in one body: ``rows`` of them from the variable of the loop before the last."""

    rows: int
    body: list[str]


@dataclass(frozen=True)
class ScatterParts:
    """How the iterations of a scatter may be shared so that every element gets its values in the order that one thread has.

    Attributes:
        free: Positions of loops of which different iterations never write to one element.
        place: C++ expression of the element that an iteration writes, counted from the start of its buffer.
        span: Elements of that buffer.
    """

    free: tuple[int, ...]
    place: str
    span: int


@dataclass(frozen=True)
class Tile:
    """Two loops of a nest.

    Attributes:
        written: Position of the loop that is contiguous in memory that is written; vector lanes run along it.
        read: Position of the loop that is contiguous in memory that is read.
        columns: Iterations of ``written`` in a tile.
    """

    written: int
    read: int
    columns: int


@dataclass
class Nest:
    """One printed loop nest: sizes, and statements that speak of ``i<k>`` and ``r<k>``."""

    buffer: str
    sizes: list[Any]
    reduced: list[Any]
    kind: NestKind = NestKind.POINTWISE
    state: list[StateVariable] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    epilogue: list[str] = field(default_factory=list)
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)
    sort: SortKeys | None = None
    scan: ScanParts | None = None
    """Where threads share the steps out; else a scan is a body that carries ``state`` along."""
    split: Split | None = None
    jams: dict[int, Jam] = field(default_factory=dict)
    """By number of rows; only where rows have loads in common."""
    outer: int = 0
    """How many of the first loops someone else runs: ``sizes[:outer]``."""
    loads: list[tuple[str, Any]] = field(default_factory=list)
    """Buffer and index of every read; an index with a computed value in it says no more than that."""
    stores: list[tuple[str, Any]] = field(default_factory=list)
    indices: list[Any] = field(default_factory=list)
    """Every index expression of the body."""

    @property
    def inner(self) -> list[tuple[int, Any]]:
        """Number and extent of the loops that the nest runs itself."""
        return list(enumerate(self.sizes))[self.outer :]

    targets: list[Any] = field(default_factory=list)
    """Where a scatter writes: index expressions over loop variables and values computed in the body."""
    bounds: dict[str, Any] = field(default_factory=dict)
    """Name of a value that is used as an index to the number of values that it can have."""
    joins: list[str] = field(default_factory=list)
    """Statements that join the state with that of another thread, whose variables are ``other_<name>``."""
    tile: Tile | None = None
    """Where the nest transposes."""
    parts: ScatterParts | None = None
    """How threads may share a scatter; None: one does it all."""


def loop_variables(count: int) -> list[Any]:
    """Give the symbols ``i0, i1, ...`` of the output loops, outermost first."""
    return [inductor.loop_symbol(f"i{k}") for k in range(count)]


def reduction_variables(count: int) -> list[Any]:
    """Give the symbols ``r0, r1, ...`` of the reduced loops, outermost first."""
    return [inductor.loop_symbol(f"r{k}") for k in range(count)]
