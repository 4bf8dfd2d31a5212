"""The generator task for GPUs: a region and a configuration in, CUDA candidates and an evaluation task per variant out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ytk_core.archspec import ArchSpec
from ytk_gaia import GENERATOR_VERSION
from ytk_gaia.generator import cuda_candidates
from ytk_gaia.generator.cuda_variants import tensorrt_variants, with_layouts
from ytk_gaia.generator.region_input import Region
from ytk_gaia.generator.stored_task import variant_task
from ytk_gaia.task_format import write_variant_tasks


def generate(region: Region, config: Mapping[str, Any], arch: ArchSpec, out: Path) -> dict[str, Any]:
    """Generate CUDA candidates for a region.

    Args:
        region: As loaded.
        config: Validated.
        arch: A GPU arch spec with a TensorRT engine.
        out: Gets ``task.json``, ``task.npz``, ``variants/<n>/task.*`` and ``candidates/<id>.py``.

    Returns:
        As :func:`ytk_gaia.generator.run.generate`.

    Raises:
        UserError: The region or the configuration is something that no kernel can be made for.
    """
    variants = tensorrt_variants(region.border, arch, config["precision"])
    variants = with_layouts(variants, region.border, [t.role for t in region.spec.inputs], config["layout"])
    sm = int(arch.device.removeprefix("sm"))
    kernels, refusals = cuda_candidates.generate(region, config["strategies"], variants, config["candidates"], sm)
    longest = max(k.kernel.longest_reduction for k in kernels)
    tasks = [
        variant_task(region, v, seed=config["seed"], longest_reduction=longest, tolerance=config["tolerance"])
        for v in variants
    ]
    (out / "candidates").mkdir(parents=True, exist_ok=True)
    write_variant_tasks(out, tasks)
    for kernel in kernels:
        meta = cuda_candidates.plugin_meta(kernel, region, variants, tasks[0].spec, config["seed"])
        text = cuda_candidates.candidate_text(kernel, meta)
        (out / "candidates" / f"{kernel.id}.py").write_text(text, encoding="utf-8")
    notes = [f"variant {v.id}: {note}" for v, task in zip(variants, tasks, strict=True) for note in task.spec.notes]
    return {
        "candidates": [
            {
                "id": k.id,
                "strategy": k.strategy,
                "parameters": k.parameters,
                "nests": k.kernel.nests,
                "traffic_bytes": k.kernel.traffic_bytes,
                "launches": k.kernel.launches,
                "paper_us": k.kernel.paper_us,
            }
            for k in kernels
        ],
        "pruned": [],
        "reference": "",
        "variants": [v.id for v in variants],
        "refusals": [{"plan": r.plan, "strategy": r.strategy, "operators": list(r.operators)} for r in refusals],
        "region": {
            "name": region.spec.name,
            "namespace": region.spec.namespace,
            "version": region.spec.version,
            "digest": region.spec.digest,
            "operators": list(region.spec.aten_ops),
        },
        "notes": notes,
        "tolerance_source": tasks[0].spec.tolerance_source,
        "torch": str(torch.__version__),
        "generator": GENERATOR_VERSION,
    }
