"""What the tasks of a search are given: arguments, limits, environment, and what this version refuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ytk_core import kernelgen_config
from ytk_core.sandbox import SandboxPolicy

GENERATE_TASK = "ytk_gaia.tasks:generate"
EVALUATE_TASK = "ytk_gaia.tasks:evaluate"
GENERATE_LIMIT_S = 900.0
_GIB = 1 << 30

# torch reads nothing of the caller's, compiles nothing, and reaches for no network.
GENERATE_ENV = {
    "TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
    "OMP_NUM_THREADS": "2",
}


def generator_sandbox() -> SandboxPolicy:
    """Give the limits of the generator task: it loads a hostile file with torch."""
    return SandboxPolicy(
        memory_bytes=16 * _GIB, file_bytes=2 * _GIB, disk_bytes=4 * _GIB, tmp_bytes=_GIB, processes=256, cpu_s=1800
    )


def checked_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Validate a configuration.

    Raises:
        UserError: A key or value is wrong.
    """
    return kernelgen_config.validate(config)


def generate_arguments(region: str, name: str, config: Mapping[str, Any], arch_spec: str) -> dict[str, Any]:
    """Give the argument of the generator task.

    Args:
        region: Path of the ``.pt2`` below the work directory.
        name: Plugin name where the file carries no spec.
        config: Validated.
        arch_spec: CPU arch spec.
    """
    return {"region": region, "name": name, "config": dict(config), "arch_spec": arch_spec}


def search_limit_s(budget_s: float) -> float:
    """Give the wall limit of a whole search: generation, and every batch of every rung one after another."""
    return GENERATE_LIMIT_S + 2 * evaluation_limit_s(budget_s)


def evaluation_limit_s(budget_s: float) -> float:
    """Give the wall limit of an evaluation: the budget, and time for what it does not count."""
    return budget_s * 2 + 300.0
