"""How every evaluation begins, on a CPU, a GPU or the emulation: is there a sandbox, does the task prove anything, what time is left."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ytk_core.conditions import Conditions, Snapshot, make_conditions, snapshot
from ytk_core.sandbox import SandboxStatus, require
from ytk_gaia.evaluator.compare import self_test
from ytk_gaia.evaluator.options import JudgeOptions
from ytk_gaia.evaluator.track import Track
from ytk_gaia.evaluator.verdicts import Verdict
from ytk_gaia.task_format import Task


@dataclass(frozen=True)
class Opening:
    """What is known before the first candidate is built.

    Attributes:
        options: As given, or the defaults.
        workdir: Absolute.
        sandbox: This machine's.
        deadline: On the monotonic clock.
        before: The machine at the beginning.
        self_test: What trivial kernels got, by name; of several variants by variant and name.
        first: The task of the variant that is reported.
    """

    options: JudgeOptions
    workdir: Path
    sandbox: SandboxStatus
    deadline: float
    before: Snapshot
    self_test: dict[str, str]
    first: Task

    @property
    def late(self) -> bool:
        """Whether the budget is used up."""
        return time.monotonic() > self.deadline

    def in_time(self, track: Track) -> bool:
        """Say whether a candidate may still be built; one that may not gets its verdict."""
        if track.running and self.late:
            track.end(Verdict.NO_EVIDENCE, "not built within the budget")
        return track.running

    def conditions(self, *, iterations: int, warmup: int, threads: int, engine: str, device_uid: str) -> Conditions:
        """Give the conditions from the beginning until now."""
        return make_conditions(
            self.before,
            snapshot(),
            iterations=iterations,
            warmup=warmup,
            threads=threads,
            engine=engine,
            worker_id=self.options.worker_id,
            device_uid=device_uid,
        )


def begin(tasks: Mapping[int, Task], tracks: Iterable[Track], workdir: Path, options: JudgeOptions | None) -> Opening:
    """Begin an evaluation.

    Args:
        tasks: Variant to its inputs, expectations and limits.
        tracks: One per candidate; where the task proves nothing they get that for a verdict.
        workdir: Where it is done.
        options: None: the defaults.

    Raises:
        BoardError: No sandbox where one is required.
    """
    options = options or JudgeOptions()
    sandbox, before = require(options.mode), snapshot()
    deadline = time.monotonic() + options.budget_s
    several = len(tasks) > 1
    tests = {
        f"{variant}/{name}" if several else name: what
        for variant, task in tasks.items()
        for name, what in self_test(task).items()
    }
    passing = [f"{name} {what}" for name, what in tests.items() if what.startswith("passes")]
    for track in tracks if passing else ():
        track.end(Verdict.NO_EVIDENCE, f"the task proves nothing: {'; '.join(passing)}")
    return Opening(options, workdir.resolve(), sandbox, deadline, before, tests, tasks[min(tasks)])
