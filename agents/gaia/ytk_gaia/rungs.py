"""How a search spends its budget: likely candidates in batches, the fastest quarter and its relatives in one last batch. Pure.

Times of different batches come from different moments and perhaps machines. So every batch holds the same reference kernel, and
candidates of different batches are compared by their time relative to it, measured side by side.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ytk_gaia.evaluator.halving import FINALISTS
from ytk_gaia.evaluator.verdicts import CandidateResult, Evaluation, Verdict
from ytk_gaia.order import relatives

BATCH_SIZE = 16
"""Candidates of one job besides the reference. Small: a lost worker loses one batch, and more workers can take part."""
LAST_SIZE = 10
"""Of the last batch, which has to name the winner."""
KEPT_SHARE = 0.25
"""Part of a rung that goes on. Small: what is not among the fastest quarter is not the fastest, whatever the noise."""
LEAST_BATCH_S = 8.0
"""Shorter batches compile and then have no time left to measure: a small budget has fewer, and says what it left out."""
_LAST_SHARE = 0.5
"""Of the budget, what the last rung gets: it alone names the winner."""
_SHRINKS = 0.4
"""The budget of a rung before the last, relative to the one before."""


@dataclass(frozen=True)
class Batch:
    """One evaluation job: its candidates, the reference first, and its share of the budget in seconds."""

    ids: tuple[str, ...]
    budget_s: float


@dataclass(frozen=True)
class Pool:
    """What a search may measure.

    Attributes:
        ids: Candidates, those first that are likely fast.
        reference: Id of the kernel that the others are compared with; empty: none.
        traits: Id to the choices that made a candidate, the dialect last; empty: all are equally strange to one another.
        limit: How many may be measured at most.
    """

    ids: tuple[str, ...]
    reference: str = ""
    traits: Mapping[str, Sequence[str]] | None = None
    limit: int = 1 << 30

    @property
    def others(self) -> list[str]:
        """All but the reference."""
        return [name for name in self.ids if name != self.reference]

    @property
    def room(self) -> int:
        """How many besides the reference may be measured."""
        return max(0, self.limit - (1 if self.reference else 0))

    def may_take_more_than(self, count: int) -> bool:
        """Say whether more than so many besides the reference can be measured."""
        return count < min(len(self.others), self.room)


def first_rung(pool: Pool, budget_s: float) -> list[str]:
    """Give who is measured first: all that one batch holds, otherwise one dialect of each, as many as the budget has batches for.

    Args:
        pool: Candidates.
        budget_s: Of the whole search.
    """
    room, others = pool.room, pool.others
    if min(len(others), room) <= LAST_SIZE:
        return others[:room]
    seen: set[tuple[str, ...]] = set()
    scouts = []
    for name in others:
        kind = tuple(pool.traits[name][:-1]) if pool.traits and name in pool.traits else (name,)
        if kind not in seen:
            seen.add(kind)
            scouts.append(name)
    count = rung_count(len(scouts), more=True)
    batches = max(1, int(budget_s * share(0, count) / LEAST_BATCH_S))
    # Of few places some are for what turns out to be worth a second look.
    return scouts[: min(batches * BATCH_SIZE, room - min(LAST_SIZE // 2, room // 4) if pool.traits else room)]


def rung_count(candidates: int, *, more: bool = False) -> int:
    """Give how many rungs a search has at most.

    Args:
        candidates: In its first rung.
        more: Whether there are others, which may come into the last one: then that is not the first.
    """
    count = 1
    while candidates > (LAST_SIZE if count > 1 else BATCH_SIZE) or (more and count == 1):
        candidates = _kept(candidates)
        count += 1
    return count


def _kept(candidates: int) -> int:
    return max(FINALISTS, math.ceil(candidates * KEPT_SHARE))


def share(number: int, count: int) -> float:
    """Give a rung's part of the budget."""
    if count == 1:
        return 1.0
    if number == count - 1:
        return _LAST_SHARE
    return (1 - _LAST_SHARE) * _SHRINKS**number / sum(_SHRINKS**k for k in range(count - 1))


def deal(ids: Sequence[str], reference: str, budget_s: float) -> list[Batch]:
    """Deal candidates out to batches in turn, so that each sees every kind; the reference goes into all.

    The answer depends on the arguments alone: a search that is begun again asks for the same evaluations, which are then found.

    Args:
        ids: Candidates in the order in which they are compiled and measured.
        reference: Id of the kernel that the others are compared with; empty: none.
        budget_s: Of all batches together.
    """
    others = [name for name in ids if name != reference]
    count = max(1, -(-len(others) // BATCH_SIZE))
    dealt = [others[start::count] for start in range(count)]
    found = [tuple([reference, *group] if reference else group) for group in dealt]
    total = sum(map(len, found))
    return [Batch(group, budget_s * len(group) / total) for group in found if group]


def score(results: Iterable[CandidateResult], *, looked: bool = False) -> dict[str, float]:
    """Give the figure by which candidates of several evaluations are compared: the time relative to the reference.

    Where the reference itself failed somewhere, plain medians have to do.

    Args:
        results: Of any number of evaluations.
        looked: Whether those count as well that a worker had a first look at and did not measure in full.
    """
    results = list(results)
    if looked:
        seen = [r for r in results if r.baseline is not None]
        if all(r in seen for r in results if r.verdict is Verdict.PASSED):
            return {r.id: r.baseline.median for r in seen if r.baseline is not None}
    passed = [r for r in results if r.verdict is Verdict.PASSED and r.median_ms is not None]
    if all(r.baseline is not None for r in passed):
        return {r.id: r.baseline.median for r in passed if r.baseline is not None}
    return {r.id: r.median_ms for r in passed if r.median_ms is not None}


def go_on(evaluations: Sequence[Evaluation], reference: str) -> list[str]:
    """Give the candidates of the next rung, the fastest first: those of one rung by their time relative to the reference.

    Args:
        evaluations: Of one rung.
        reference: Takes part in every batch anyway and needs no place.
    """
    results = {c.id: c for e in evaluations for c in e.candidates}
    figures = score((c for c in results.values() if c.id != reference), looked=True)
    ranked = sorted(figures, key=lambda name: (figures[name], name))
    return ranked[: _kept(len(results) - (reference in results))]


def with_relatives(
    best_ones: Sequence[str], pool: Pool, asked: Sequence[str], judged: Sequence[Evaluation]
) -> list[str]:
    """Fill the last batch: to the best so far comes what resembles them and has no verdict yet.

    Args:
        best_ones: Who goes on, the fastest first.
        pool: All candidates.
        asked: Those that were in a batch; they count against the limit.
        judged: All evaluations so far.
    """
    verdicts = {c.id: c.verdict for e in judged for c in e.candidates}
    slow = {c.id for e in judged for c in e.candidates if c.baseline is not None or c.processes}
    open_ones = [
        name
        for name in pool.others
        if verdicts.get(name, Verdict.NO_EVIDENCE) is Verdict.NO_EVIDENCE and name not in slow and name not in best_ones
    ]
    room = min(LAST_SIZE - len(best_ones), pool.limit - len({*asked, pool.reference} - {""}))
    # Who was asked for and had no time is counted already.
    near = relatives(best_ones, open_ones, dict(pool.traits or {}))
    chosen: list[str] = []
    for name in near:
        if len(best_ones) + len(chosen) >= LAST_SIZE:
            break
        if name in asked:
            chosen.append(name)
        elif room > 0:
            chosen.append(name)
            room -= 1
    return [*best_ones, *chosen]


def best(evaluations: Sequence[Evaluation]) -> str:
    """Name the best candidate so far, for people."""
    results = {c.id: c for e in evaluations for c in e.candidates}
    figures = score(results.values())
    if not figures:
        return "none has passed so far"
    name = min(figures, key=lambda each: (figures[each], each))
    ratio = results[name].baseline
    beside = "" if ratio is None or ratio.to == name else f" ({ratio.median:.2f}x of {ratio.to})"
    return f"best so far {name}, {results[name].median_ms:.4f} ms{beside}"
