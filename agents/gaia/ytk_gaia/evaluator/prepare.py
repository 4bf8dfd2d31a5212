"""From texts to compiled candidates: parse, compare with the task, compile. Nothing runs yet."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ytk_core.archspec import ArchSpec
from ytk_core.errors import UserError
from ytk_core.sandbox import SandboxMode
from ytk_gaia.evaluator.build import build
from ytk_gaia.evaluator.compiled import Compiled
from ytk_gaia.evaluator.contract import contract_problem, variant_of
from ytk_gaia.evaluator.track import Track
from ytk_gaia.evaluator.verdicts import Verdict
from ytk_gaia.task_format import Task


def _prepare(
    track: Track, text: str, task: Task, arch: ArchSpec, directory: Path, mode: SandboxMode, compiled: Compiled | None
) -> None:
    bundle = track.take(text, lambda bundle: contract_problem(bundle, task, arch))
    if bundle is None:
        return
    track.variant = variant_of(bundle.meta, task.spec) or 0
    directory.mkdir(parents=True, exist_ok=True)
    try:
        track.built = build(bundle, arch, directory, mode, compiled)
    except UserError as err:
        if err.code != "flag_not_allowed":
            raise  # the arch spec or the machine, not the candidate
        track.end(Verdict.COMPILE_ERROR, err.message)
        return
    if track.built.timed_out:
        track.end(Verdict.TIMEOUT, "the compiler ran past its limit")
    elif track.built.library is None:
        track.log = track.built.log
        first = next((line for line in track.built.log.splitlines() if "error" in line), track.built.log[:200])
        track.end(Verdict.COMPILE_ERROR, first)


def prepare_all(
    tracks: Sequence[Track],
    candidates: Mapping[str, str],
    task: Task,
    arch: ArchSpec,
    workdir: Path,
    mode: SandboxMode,
    deadline: float,
    compiled: Compiled | None = None,
) -> None:
    """Check and compile; side by side, since nothing is measured yet.

    Args:
        tracks: One per candidate; those that fail get their verdict.
        candidates: Id to text of a kernel bundle.
        task: What they must fit.
        arch: What to compile for.
        workdir: Gets ``build/<id>``.
        mode: Whether a sandbox is required.
        deadline: On the monotonic clock; what is not begun by then is NO_EVIDENCE.
        compiled: Libraries that were compiled before.
    """

    def prepare(track: Track) -> None:
        if time.monotonic() > deadline:
            track.end(Verdict.NO_EVIDENCE, "not built within the budget")
        else:
            _prepare(track, candidates[track.id], task, arch, workdir / "build" / track.id, mode, compiled)

    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        for _ in pool.map(prepare, tracks):
            pass  # map raises here what a thread raised
