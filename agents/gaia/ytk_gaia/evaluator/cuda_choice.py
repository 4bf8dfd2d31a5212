"""Who judges CUDA candidates here: the GPU, where there is one of the kind that they are for, else the emulation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ytk_core.archspec import ArchSpec
from ytk_gaia.evaluator import emulated
from ytk_gaia.evaluator.options import JudgeOptions
from ytk_gaia.evaluator.verdicts import Evaluation
from ytk_gaia.task_format import Task


def evaluate(
    tasks: Mapping[int, Task], candidates: Mapping[str, str], arch: ArchSpec, workdir: Path, options: JudgeOptions
) -> Evaluation:
    """Judge CUDA candidates; see :func:`ytk_gaia.evaluator.emulated.evaluate`."""
    return emulated.evaluate(tasks, candidates, arch, workdir, options)
