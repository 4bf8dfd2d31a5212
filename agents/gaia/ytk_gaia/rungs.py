"""How a search spends its budget: candidates in batches, the faster half goes on, until one batch is left. Pure.

Times of different batches come from different moments and perhaps machines. So every batch holds the same reference kernel, and
candidates of different batches are compared by their time relative to it, measured side by side.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ytk_gaia.evaluator.halving import FINALISTS, survivors
from ytk_gaia.evaluator.verdicts import CandidateResult, Evaluation, Verdict

BATCH_SIZE = 8
"""Candidates of one job besides the reference. Small: a lost worker loses one batch, and more workers can take part."""
_SHRINKS = 0.4
"""A rung's budget relative to the one before."""


@dataclass(frozen=True)
class Batch:
    """One evaluation job: its candidates, the reference among them, and its share of the budget in seconds."""

    ids: tuple[str, ...]
    budget_s: float


def rung_count(candidates: int) -> int:
    """Give how many rungs a search of so many candidates has at most."""
    count = 1
    while candidates > BATCH_SIZE:
        candidates = max(FINALISTS, math.ceil(candidates / 2))
        count += 1
    return count


def share(number: int, count: int) -> float:
    """Give a rung's part of the budget: half as many candidates, which are compiled already."""
    return _SHRINKS**number / sum(_SHRINKS**k for k in range(count))


def deal(ids: Sequence[str], reference: str, budget_s: float) -> list[Batch]:
    """Deal candidates out to batches in turn, so that each sees every kind; the reference goes into all.

    The answer depends on the arguments alone: a search that is begun again asks for the same evaluations, which are then found.

    Args:
        ids: Candidates in the generator's order.
        reference: Id of the kernel that the others are compared with; empty: none.
        budget_s: Of all batches together.
    """
    others = [name for name in ids if name != reference]
    count = max(1, -(-len(others) // BATCH_SIZE))
    dealt = [others[start::count] for start in range(count)]
    found = [tuple([reference, *group] if reference else group) for group in dealt]
    total = sum(map(len, found))
    return [Batch(group, budget_s * len(group) / total) for group in found if group]


def score(results: Iterable[CandidateResult]) -> dict[str, float]:
    """Give the figure by which candidates of several evaluations are compared: the time relative to the reference.

    Where the reference itself failed somewhere, plain medians have to do.
    """
    passed = [r for r in results if r.verdict is Verdict.PASSED and r.median_ms is not None]
    if all(r.baseline is not None for r in passed):
        return {r.id: r.baseline.median for r in passed if r.baseline is not None}
    return {r.id: r.median_ms for r in passed if r.median_ms is not None}


def go_on(evaluations: Sequence[Evaluation], reference: str) -> list[str]:
    """Give the candidates of the next rung, in the order of the evaluations; one evaluation decides by itself.

    Args:
        evaluations: Of one rung.
        reference: Takes part in every batch anyway and needs no place.
    """
    results = {c.id: c for e in evaluations for c in e.candidates}
    figures = score(c for c in results.values() if c.id != reference)
    kept = survivors(figures, ties=False)
    return [name for name in results if name in kept]


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
