"""The course of a search: rung after rung of evaluations, whoever does them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ytk_core.errors import YtkError
from ytk_gaia import rungs
from ytk_gaia.evaluator.verdicts import Evaluation


class Measure(Protocol):
    """Has one batch of candidates judged."""

    async def __call__(self, ids: Sequence[str], budget_s: float) -> Evaluation:
        """Give the evaluation.

        Raises:
            YtkError: It could not be done.
        """


@dataclass
class Searched:
    """What was found. ``rungs``: the evaluations of each rung; the last one decides."""

    rungs: list[list[Evaluation]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def evaluations(self) -> list[Evaluation]:
        """All of them in order."""
        return [evaluation for rung in self.rungs for evaluation in rung]


async def search(
    pool: rungs.Pool,
    budget_s: float,
    measure: Measure,
    tell: Callable[[float, str], None],
) -> Searched:
    """Measure the likely candidates, then the fastest of them with what resembles them.

    Nothing here depends on time or chance: begun again with the same answers of ``measure``, it asks for the same batches.

    Args:
        pool: Candidates, and the kernel that they are compared with.
        budget_s: Seconds of building and measuring, all batches together.
        measure: Does one batch; batches of a rung are asked for at once.
        tell: Told the share that is done, and the best so far.

    Raises:
        YtkError: No batch of the first rung could be measured: the first reason.
    """
    found, left, number = Searched(), rungs.first_rung(pool, budget_s), 0
    asked = list(left)
    count = rungs.rung_count(len(left), more=pool.may_take_more_than(len(left)))
    while left or pool.reference:
        dealt = rungs.deal(left, pool.reference, budget_s * rungs.share(number, count))
        tell(number / count, f"measuring {len(left)} candidates in {len(dealt)} job(s)")
        done = await _rung(dealt, measure, found, _part(tell, number, count))
        if not done:
            break
        found.rungs.append(done)
        if number == count - 1:
            break
        left, number = rungs.go_on(done, pool.reference), number + 1
        if not left:
            break
        if len(left) <= rungs.LAST_SIZE:
            number = count - 1
            left = rungs.with_relatives(left, pool, asked, found.evaluations)
            asked += [name for name in left if name not in asked]
    missed = [name for name in pool.ids if name not in {*asked, pool.reference}]
    if missed:
        found.notes.append(f"not measured, since others were likelier to be fast: {', '.join(missed)}")
    return found


def _part(tell: Callable[[float, str], None], number: int, count: int) -> Callable[[float, str], None]:
    """Give a listener for one of several parts."""

    def told(part: float, note: str) -> None:
        tell((number + part) / count, note)

    return told


async def _rung(
    dealt: Sequence[rungs.Batch], measure: Measure, found: Searched, tell: Callable[[float, str], None]
) -> list[Evaluation]:
    """Do the batches of one rung; a lost one is a note, unless all of the first rung are lost."""
    done: dict[int, Evaluation] = {}
    lost: dict[int, YtkError] = {}

    async def one(index: int, batch: rungs.Batch) -> None:
        try:
            done[index] = await measure(batch.ids, batch.budget_s)
        except YtkError as err:
            lost[index] = err
            return
        measured = [done[k] for k in sorted(done)]
        tell(len(done) / len(dealt), rungs.best([*found.evaluations, *measured]))

    await asyncio.gather(*(one(index, batch) for index, batch in enumerate(dealt)))
    if not done and not found.rungs:
        raise lost[min(lost)]
    found.notes += [f"not measured: {', '.join(dealt[k].ids)}: {lost[k].message}" for k in sorted(lost)]
    return [done[k] for k in sorted(done)]
