"""The generator task: a region and a configuration in, candidates and an evaluation task out."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ytk_core import kernelgen_config
from ytk_core.archspec import ArchSpec
from ytk_core.errors import UserError
from ytk_core.formats.plugin_meta import DeploymentTarget
from ytk_gaia import GENERATOR_VERSION
from ytk_gaia.generator import inductor_adapter, run_cuda
from ytk_gaia.generator.bundle import BundleContext, candidate_text
from ytk_gaia.generator.region_input import load_region
from ytk_gaia.generator.samples import build_task
from ytk_gaia.generator.strategies import CandidateKernel, dialects, generate_candidates
from ytk_gaia.order import Likely, likely_first
from ytk_gaia.prune import Estimate, prune
from ytk_gaia.task_format import write_task

_MOST = 4096
"""More candidates than any region has: the limit of the configuration holds for what is measured."""


def _described(kernel: CandidateKernel) -> dict[str, Any]:
    cost = kernel.cost
    return {
        "id": kernel.id,
        "strategy": kernel.plan.strategy,
        "parameters": kernel.parameters,
        "traits": _traits(kernel),
        "nests": kernel.kernel.nests,
        "traffic_bytes": cost.traffic_bytes if cost else None,
        "iterations": cost.iterations if cost else None,
    }


def _traits(kernel: CandidateKernel) -> list[str]:
    """Give the choices that made a candidate, each in its place; the dialect last."""
    schedule = kernel.schedule
    words = [kernel.plan.name, schedule.vector, f"p{schedule.parallel}", f"jam{schedule.jam}"]
    words += [str(flag) for flag in (schedule.split, schedule.fuse, schedule.dynamic)]
    return [*words, kernel.dialect.name]


def _likely(kernel: CandidateKernel) -> Likely:
    schedule, cost = kernel.schedule, kernel.cost
    return Likely(
        id=kernel.id,
        plan=kernel.plan.name,
        traffic_bytes=cost.traffic_bytes if cost else None,
        iterations=cost.iterations if cost else None,
        together=schedule.jam > 1,
        split=schedule.split,
        rows=schedule.fuse,
        parallel=schedule.parallel,
        dialect=kernel.dialect.name,
    )


def _in_order(made: Sequence[CandidateKernel], arch: ArchSpec) -> list[CandidateKernel]:
    # What vectorises more is the likelier dialect, and it is the last in the generator's own order.
    names = likely_first([_likely(k) for k in made], [d.name for d in reversed(dialects(arch))])
    by_id = {k.id: k for k in made}
    return [by_id[name] for name in names]


def _reference(made: Sequence[CandidateKernel]) -> CandidateKernel:
    """Give what the others are compared with: the general form, on one thread, since a team's time depends on when it wakes."""
    general = [k for k in made if k.plan.name == made[0].plan.name]
    return next((k for k in general if k.schedule.parallel == 0), made[0])


def _estimate(kernel: CandidateKernel) -> Estimate:
    schedule, cost = kernel.schedule, kernel.cost
    like = (schedule.name, kernel.dialect.name)
    return Estimate(
        id=kernel.id,
        traffic_bytes=cost.traffic_bytes if cost else None,
        iterations=cost.iterations if cost else None,
        like=like,
        parallel=schedule.parallel,
        form=(kernel.plan.name, kernel.dialect.name, schedule.vector, schedule.split),
    )


def generate(task: dict[str, Any], workdir: Path) -> dict[str, Any]:
    """Generate candidates for a region.

    Args:
        task: ``region`` (path below ``workdir``), ``name`` (plugin name where the file has no spec), ``config`` (validated),
            ``arch_spec``.
        workdir: Gets ``out/task.json``, ``out/task.npz``, ``out/candidates/<id>.py``.

    Returns:
        ``candidates`` (id, strategy, parameters, traits, cost; those first that are likely fast), ``pruned`` (the same, with ``reason``), ``reference`` (id of the candidate
        that all others are compared with: the general form), ``refusals``, ``region`` (its identity), ``notes``, ``torch``,
        ``generator``.

    Raises:
        UserError: The region or the configuration is something that no kernel can be made for.
        ToolkitError: This torch lacks private symbols.
    """
    # torch warns about its own internals on load and lowering; nothing that the user of a kernel can act on.
    warnings.simplefilter("ignore")
    config = kernelgen_config.validate(task["config"])
    missing = inductor_adapter.check_symbols()
    if missing:
        raise UserError(f"torch {torch.__version__} lacks {', '.join(missing)}", code="torch_private_api")
    arch = ArchSpec.parse(task["arch_spec"])
    region = load_region(workdir / task["region"], task.get("name", ""))
    kernelgen_config.check_region(config, region.spec)
    if config["deployment_target"] == "tensorrt":
        return run_cuda.generate(region, config, arch, workdir / "out")
    made, refusals = generate_candidates(region, config["strategies"], arch, _MOST)
    reference = _reference(made)
    hopeless = prune([_estimate(k) for k in made], threads=config["threads"], keep=reference.id)
    kernels = _in_order([k for k in made if k.id not in hopeless], arch)
    longest = max(k.kernel.longest_reduction for k in kernels)
    evaluation = build_task(region, seed=config["seed"], longest_reduction=longest, tolerance=config["tolerance"])
    context = BundleContext(region, evaluation.spec, DeploymentTarget(config["deployment_target"]), config["seed"])
    out = workdir / "out"
    (out / "candidates").mkdir(parents=True, exist_ok=True)
    write_task(out, evaluation)
    for kernel in kernels:
        (out / "candidates" / f"{kernel.id}.py").write_text(candidate_text(kernel, context), encoding="utf-8")
    return {
        "candidates": [_described(k) for k in kernels],
        "pruned": [{**_described(k), "reason": hopeless[k.id]} for k in made if k.id in hopeless],
        "reference": reference.id,
        "refusals": [{"plan": r.plan, "strategy": r.strategy, "operators": list(r.operators)} for r in refusals],
        "region": {
            "name": region.spec.name,
            "namespace": region.spec.namespace,
            "version": region.spec.version,
            "digest": region.spec.digest,
            "operators": list(region.spec.aten_ops),
        },
        "notes": list(evaluation.spec.notes),
        "tolerance_source": evaluation.spec.tolerance_source,
        "torch": str(torch.__version__),
        "generator": GENERATOR_VERSION,
    }
