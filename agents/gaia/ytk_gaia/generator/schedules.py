"""How the loops of a nest are run: which in parallel, which in vector lanes. Pure text; knows nothing of torch.

A schedule changes the order of independent iterations only. Sums keep one fixed order per schedule, so two runs agree bit by
bit with any number of threads.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from ytk_gaia.generator.nest import Nest

LANES = 16
"""Partial results per vectorised reduction: one AVX-512 register of floats, two of AVX2."""
MIN_TILE = 8
_MAX_TILE = 64
_CHUNKS = 32
"""Turns into which dynamic iterations are dealt."""
PARALLEL_WORK = 16384
"""Iterations below which starting a thread team costs more than it gives."""


class Dynamic(int):
    """An extent that is known at run time only: as a number the captured one, which decides how loops are run.

    Attributes:
        text: C++ expression of the extent; what is printed.
    """

    text: str

    def __new__(cls, captured: int, text: str) -> Self:
        """Make one of the captured extent and its expression."""
        made = super().__new__(cls, captured)
        made.text = text
        return made


def extent_text(size: int) -> str:
    """Give the C++ text of an extent."""
    return size.text if isinstance(size, Dynamic) else str(int(size))


def product_text(sizes: Sequence[int]) -> str:
    """Give the C++ text of a product of extents."""
    if any(isinstance(size, Dynamic) for size in sizes):
        return " * ".join(f"(int64_t){extent_text(size)}" for size in sizes)
    return f"{prod(sizes)}L"


class Vector(enum.StrEnum):
    """Where a reduction gets its vector lanes from."""

    SCALAR = "scalar"
    ALONG = "along"
    """Lanes run along the reduced dim and are joined at the end."""
    ACROSS = "across"
    """Lanes are neighbouring outputs, each with its own running result."""


@dataclass(frozen=True)
class Schedule:
    """One way to run every nest of a kernel.

    Attributes:
        parallel: How many outer loops are shared out among the threads; 0: one thread.
        vector: Lanes of reductions. Pointwise loops are vectorised along the innermost dim unless ``scalar``.
        split: Whether loops with masks run without them where all hold.
        jam: Rows that run side by side inside the vector loop, so that what they have in common is loaded once: the taps of a
            convolution, the columns of a matrix product, whose running results then stay in registers.
        fuse: Whether nests that take turns row by row share their outer loops: a row stays in the cache from one to the next.
        dynamic: Whether threads take iterations as they come: the first does not wait for one that is slow to wake.
    """

    parallel: int
    vector: Vector
    split: bool = False
    jam: int = 1
    fuse: bool = False
    dynamic: bool = False

    @property
    def name(self) -> str:
        """Word for candidate ids."""
        words = [f"p{self.parallel}", str(self.vector)]
        words += [word for word, used in (("split", self.split), ("rows", self.fuse), ("dyn", self.dynamic)) if used]
        return "-".join([*words, f"jam{self.jam}"] if self.jam > 1 else words)


SCHEDULES: tuple[Schedule, ...] = (
    Schedule(2, Vector.ALONG),
    Schedule(1, Vector.ACROSS, split=True, jam=8, fuse=True, dynamic=True),
    Schedule(0, Vector.ALONG, fuse=True),
    Schedule(2, Vector.ACROSS, split=True, jam=4, dynamic=True),
    Schedule(2, Vector.ACROSS),
    Schedule(1, Vector.ACROSS),
    Schedule(0, Vector.ALONG),
    Schedule(1, Vector.ALONG, fuse=True, dynamic=True),
    Schedule(2, Vector.ACROSS, split=True),
    Schedule(0, Vector.ACROSS, split=True, jam=4),
    Schedule(0, Vector.ACROSS, split=True, jam=8, fuse=True),
)


def for_loop(variable: str, size: int | str, step: int = 1) -> str:
    """Print the head of a loop."""
    advance = f"++{variable}" if step == 1 else f"{variable} += {step}"
    limit = size if isinstance(size, str) else extent_text(size)
    return f"for (int64_t {variable} = 0; {variable} < {limit}; {advance}) {{"


def parallel_for(depth: int, iterations: int, schedule: Schedule, *, simd: bool = False) -> str:
    """Print the pragma that shares ``depth`` loops of ``iterations`` in all among the threads."""
    collapse = f" collapse({depth})" if depth > 1 else ""
    kind = f"dynamic, {max(1, iterations // _CHUNKS)}" if schedule.dynamic else "static"
    lanes = " simd" if simd else ""
    return f"#pragma omp parallel for{lanes} schedule({kind}) num_threads(threads){collapse}"


def parallel_depth(nest: Nest, schedule: Schedule, loops: int) -> int:
    """Give how many of the nest's own ``loops`` are shared among threads; none where someone else runs outer loops."""
    work = prod(nest.sizes) * prod(nest.reduced)
    if work < PARALLEL_WORK or loops == 0 or nest.outer:
        return 0
    return min(schedule.parallel, loops)


def tile_size(size: int) -> int:
    """Give the tile for a dim of ``size``: its largest divisor up to 64 where that is at least 8, else 64 or all of it."""
    if isinstance(size, Dynamic):
        return _MAX_TILE if size >= _MAX_TILE else 2 * MIN_TILE
    if size <= _MAX_TILE:
        return size
    return next((t for t in range(_MAX_TILE, MIN_TILE - 1, -1) if size % t == 0), _MAX_TILE)
