"""Which sample is given to a process when. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ytk_gaia.task_format import Task

WARM_UP_CALLS = 3


def schedule(task: Task, group: Sequence[int]) -> list[tuple[int, bool]]:
    """Give the calls of one process as (sample, timed): warm-up, timed ones, and the first timed one again.

    Args:
        task: For which samples are timed.
        group: Samples of one shape; without timed ones each is called once and the first again.
    """
    warm = [i for i in group if not task.spec.samples[i].timed]
    timed = [i for i in group if task.spec.samples[i].timed]
    calls = [(i, False) for i in warm]
    while warm and len(calls) < WARM_UP_CALLS:
        calls.append((warm[len(calls) % len(warm)], False))
    return [*calls, *((i, True) for i in timed), ((timed or warm)[0], False)]
