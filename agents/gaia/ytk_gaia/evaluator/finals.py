"""The last comparison: finalists side by side, call by call, in warm and cold cache; pure arithmetic on what was measured.

Times of one moment are compared with times of the same moment: every finalist has a process at the same time, each timed sample is
given to all of them before the next, and who goes first changes. The ratio of two candidates comes from those pairs.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ytk_gaia.evaluator.verdicts import PairedRatio

COLD_SAMPLES = 5
_RESAMPLES = 2000
_CONFIDENCE = 0.95


@dataclass
class Pairs:
    """Times of the finalists. ``warm[k]``: of finalist ``k``, one per step; steps are common to all."""

    warm: list[list[int]] = field(default_factory=list)
    cold: list[list[int]] = field(default_factory=list)


def turns(count: int, step: int) -> Iterator[int]:
    """Give the order of the finalists in one step: the first goes last in the next, so that no one always profits."""
    for k in range(count):
        yield (k + step) % count


def paired_ratio(times: Sequence[int], reference: Sequence[int], to: str) -> PairedRatio:
    """Give the ratio of times to those of a reference, pair by pair.

    The interval is a bootstrap of the median ratio with a fixed seed: no distribution is assumed, and one slow moment
    does not move it.

    Args:
        times: Nanoseconds, in step with ``reference``.
        reference: Nanoseconds of the other candidate.
        to: Its id.
    """
    logs = [math.log(max(1, a) / max(1, b)) for a, b in zip(times, reference, strict=True)]
    draw = random.Random(0)  # noqa: S311 -- no secret: the same pairs give the same interval
    medians = sorted(statistics.median(draw.choices(logs, k=len(logs))) for _ in range(_RESAMPLES))
    tail = (1 - _CONFIDENCE) / 2
    low, high = medians[int(tail * _RESAMPLES)], medians[int((1 - tail) * _RESAMPLES) - 1]
    middle = statistics.median(logs)
    return PairedRatio(
        to=to, median=math.exp(middle), low=math.exp(low), high=math.exp(high), pairs=len(logs), confidence=_CONFIDENCE
    )


def best_of(times: Sequence[Sequence[int]]) -> int:
    """Give the finalist with the smallest median."""
    return min(range(len(times)), key=lambda k: statistics.median(times[k]))
