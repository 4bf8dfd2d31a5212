"""Which candidates are measured first: those that are likely fast. Pure.

No candidate is left out here; a budget that ends early ends among those that are likely slow. What is known without running anything
is coarse, so kinds take turns: every plan (how a region is lowered) gets its likeliest schedule before any gets its second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_NS_PER_STEP, _NS_PER_BYTE = 0.4, 0.05
"""About what a loop step and a byte of memory traffic take. Only plans are compared by it, and only for the factor below."""
_DEAR = 4.0
"""Plans that cost this many times the cheapest are measured after all others. A closer estimate decides nothing: a convolution over a
padded copy moves twice the memory of the same over its input, and is three times as fast."""


@dataclass(frozen=True)
class Likely:
    """One candidate as this module sees it.

    Attributes:
        id: The candidate.
        plan: How it is lowered.
        traffic_bytes: Of all its loops; None where unknown.
        iterations: Of all its loops; None where unknown.
        together: Whether rows run side by side in registers (``jam``).
        split: Whether loops run without masks where all hold.
        rows: Whether nests share their outer loop.
        parallel: How many loops are shared out among threads.
        dialect: How it is written and compiled.
    """

    id: str
    plan: str
    traffic_bytes: int | None
    iterations: int | None
    together: bool
    split: bool
    rows: bool
    parallel: int
    dialect: str


def _paper_ns(one: Likely) -> float:
    return _NS_PER_STEP * (one.iterations or 0) + _NS_PER_BYTE * (one.traffic_bytes or 0)


def _plain_loops(one: Likely) -> int:
    """Give how little a schedule does to keep values in registers and caches: 0 is most.

    Over ten regions the fastest schedule was always one that jams rows, or that fuses nests and needs no team of threads.
    """
    if one.together:
        return 0
    if one.rows and one.parallel == 0:
        return 0
    return 1 if one.split or one.rows else 2


def likely_first(candidates: Sequence[Likely], dialects: Sequence[str]) -> list[str]:
    """Give the candidates' ids, the likely fast ones first.

    Args:
        candidates: In the generator's order, which decides between equal ones.
        dialects: The likely faster first; each candidate is offered in its first dialect before any is in its second.
    """
    cheapest = min((_paper_ns(c) for c in candidates if c.iterations is not None), default=0.0)
    turns: dict[tuple[str, str, int], int] = {}
    keys = {}
    for position, one in enumerate(candidates):
        late = one.iterations is not None and _paper_ns(one) > _DEAR * cheapest
        effort = _plain_loops(one)
        kind = (one.plan, one.dialect, effort)
        turn = turns[kind] = turns.get(kind, -1) + 1
        keys[one.id] = (dialects.index(one.dialect), late, effort, turn, position)
    return sorted(keys, key=lambda name: keys[name])


def relatives(best: Sequence[str], others: Sequence[str], traits: dict[str, Sequence[str]]) -> list[str]:
    """Give candidates by how little they differ from good ones: what is worth a try once it is known what is good.

    Args:
        best: Those that were measured, the best first.
        others: Those that were not, in order; equal ones keep it.
        traits: Id to the choices that made a candidate, each in its place.
    """

    def distance(name: str) -> float:
        # To resemble the best one in all but two choices is worth what to resemble the third in all but one.
        return min(
            (_differing(traits[name], traits[good]) + place / 2 for place, good in enumerate(best) if good in traits),
            default=0.0,
        )

    known = [name for name in others if name in traits]
    return sorted(known, key=lambda name: (distance(name), known.index(name)))


def _differing(one: Sequence[str], other: Sequence[str]) -> int:
    return sum(a != b for a, b in zip(one, other, strict=True))
