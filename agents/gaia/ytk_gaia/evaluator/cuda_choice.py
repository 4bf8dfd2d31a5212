"""Who judges CUDA candidates here: the GPU, where there is one that runs them, else the emulation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ytk_core.archspec import ArchSpec
from ytk_gaia.evaluator import cuda_judge, emulated
from ytk_gaia.evaluator.cuda_device import GpuDevice, find_devices
from ytk_gaia.evaluator.options import JudgeOptions
from ytk_gaia.evaluator.verdicts import Evaluation
from ytk_gaia.task_format import Task


def device_for(arch: ArchSpec) -> GpuDevice | None:
    """Give the first GPU of this machine that runs kernels for an arch spec."""
    return next((device for device in find_devices()[0] if device.serves(arch)), None)


def evaluate(
    tasks: Mapping[int, Task], candidates: Mapping[str, str], arch: ArchSpec, workdir: Path, options: JudgeOptions
) -> Evaluation:
    """Judge CUDA candidates; see :mod:`.cuda_judge` and :mod:`.emulated`."""
    device = device_for(arch)
    if device is None:
        return emulated.evaluate(tasks, candidates, arch, workdir, options)
    return cuda_judge.evaluate(tasks, candidates, arch, device, workdir, options)
