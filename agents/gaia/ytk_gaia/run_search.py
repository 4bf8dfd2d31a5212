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
    ids: Sequence[str],
    reference: str,
    budget_s: float,
    measure: Measure,
    tell: Callable[[float, str], None],
) -> Searched:
    """Measure all candidates, then the faster half again, and so on.

    Nothing here depends on time or chance: begun again with the same answers of ``measure``, it asks for the same batches.

    Args:
        ids: Candidates, the most different ones first.
        reference: Id of the kernel that they are compared with; empty: none.
        budget_s: Seconds of measuring, all batches together.
        measure: Does one batch; batches of a rung are asked for at once.
        tell: Told the share that is done, and the best so far.

    Raises:
        YtkError: No batch of the first rung could be measured: the first reason.
    """
    found, left, number = Searched(), list(ids), 0
    count = rungs.rung_count(len([name for name in ids if name != reference]))
    while left:
        dealt = rungs.deal(left, reference, budget_s * rungs.share(min(number, count - 1), count))
        tell(number / count, f"measuring {len(left)} candidates in {len(dealt)} job(s)")
        done = await _rung(dealt, measure, found, _part(tell, number, count))
        if not done:
            break
        found.rungs.append(done)
        if len(dealt) == 1:
            break
        left, number = rungs.go_on(done, reference), number + 1
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
