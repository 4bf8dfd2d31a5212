"""CUDA candidates of a region: every lowering that applies, with the nests given to threads in different ways."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ytk_core.errors import UserError
from ytk_core.formats.kernel_bundle import KernelBundle, render_bundle
from ytk_core.formats.plugin_meta import (
    SCHEMA_VERSION,
    DeploymentTarget,
    Generator,
    InputDecl,
    Launcher,
    OutputDecl,
    PluginMeta,
    TensorType,
    Variant,
)
from ytk_gaia import GENERATOR_VERSION
from ytk_gaia.generator import emit_cuda
from ytk_gaia.generator.border import EmittedKernel
from ytk_gaia.generator.bundle import contract_dims, contract_tolerance
from ytk_gaia.generator.cuda_printer import cuda_header
from ytk_gaia.generator.cuda_schedules import SCHEDULES, CudaSchedule
from ytk_gaia.generator.cuda_variants import StorageVariant
from ytk_gaia.generator.lowering import CannotLowerError, LoweringPlan
from ytk_gaia.generator.region_input import Region
from ytk_gaia.generator.strategies import Refusal, lower_all
from ytk_gaia.task_format import TaskSpec


@dataclass(frozen=True)
class CudaCandidate:
    """One candidate.

    Attributes:
        id: Unique in its search; a file name.
        plan: How it was lowered.
        schedule: How its nests become threads.
        kernel: Its CUDA C++.
    """

    id: str
    plan: LoweringPlan
    schedule: CudaSchedule
    kernel: EmittedKernel

    @property
    def parameters(self) -> dict[str, Any]:
        """Search parameters for reports and the contract."""
        return {"plan": self.plan.name, "rows": self.schedule.rows.value, "threads": self.schedule.threads}


def generate(
    region: Region, strategies: Sequence[str], variants: Sequence[StorageVariant], limit: int
) -> tuple[list[CudaCandidate], list[Refusal]]:
    """Generate every candidate that applies, without duplicates, the most different ones first.

    Args:
        region: What to make a kernel for.
        strategies: Names of :data:`ytk_gaia.generator.strategies.REGISTRY`.
        variants: Storage types; every candidate has them all.
        limit: How many at most.

    Raises:
        UserError: ``no_strategy``: no strategy has a form for the region; names the operators.
    """
    lowered, refusals = lower_all(region, strategies)
    found: list[CudaCandidate] = []
    seen: set[str] = set()
    for schedule in SCHEDULES:
        for item in lowered:
            try:
                kernel = emit_cuda.emit(item.region, region.border, schedule, variants)
            except CannotLowerError as err:
                refusal = Refusal(item.plan.name, item.plan.strategy, tuple(err.operators))
                refusals += [refusal] if refusal not in refusals else []
                continue
            if kernel.source not in seen:
                seen.add(kernel.source)
                name = f"{item.plan.strategy}-{item.plan.name}-{schedule.name}"
                found.append(CudaCandidate(name, item.plan, schedule, kernel))
    if not found:
        operators = sorted({op for refusal in refusals for op in refusal.operators})
        raise UserError(
            f"no strategy has a CUDA form for this region: {'; '.join(operators) or 'nothing applies'}",
            code="no_strategy",
            hint="Carve a smaller region without these operators, or allow more with --config strategies=all.",
        )
    return found[:limit], refusals


def _variant(region: Region, variant: StorageVariant) -> Variant:
    border = region.border
    return Variant(
        id=variant.id,
        inputs=[TensorType(dtype=variant.of(t), format=variant.format_of(t)) for t in border.inputs],
        outputs=[TensorType(dtype=variant.of(t), format=variant.format_of(t)) for t in border.outputs],
    )


def plugin_meta(
    candidate: CudaCandidate, region: Region, variants: Sequence[StorageVariant], task: TaskSpec, seed: int
) -> PluginMeta:
    """Write the contract of a candidate.

    Args:
        candidate: The kernel.
        region: What it is for.
        variants: Storage types, in the order that the launcher knows them by.
        task: Of the first variant: its tolerance and tested extents are the contract's.
        seed: Of the sampled inputs.
    """
    kernel, spec = candidate.kernel, region.spec
    return PluginMeta(
        schema_version=SCHEMA_VERSION,
        plugin_namespace=spec.namespace,
        plugin_name=spec.name,
        plugin_version=spec.version,
        deployment_target=DeploymentTarget.TENSORRT,
        inputs=[
            InputDecl(name=t.name, rank=len(t.shape), dims=contract_dims(t), role=declared.role)
            for t, declared in zip(region.border.inputs, spec.inputs, strict=True)
        ],
        outputs=[OutputDecl(name=t.name, rank=len(t.shape), shape=list(t.extents)) for t in region.border.outputs],
        extents=list(task.extents),
        variants=[_variant(region, variant) for variant in variants],
        launcher=Launcher(
            workspace="ytk_workspace" if kernel.workspace_function else None,
            fixed_workspace_bytes=0 if kernel.workspace_function else kernel.fixed_workspace_bytes,
        ),
        tolerance=contract_tolerance(task),
        generator=Generator(
            name="ytk-gaia",
            version=GENERATOR_VERSION,
            torch=str(torch.__version__),
            strategy=candidate.plan.strategy,
            parameters=candidate.parameters,
            seed=seed,
        ),
        region_digest=spec.digest,
        sites=spec.sites,
    )


def candidate_text(candidate: CudaCandidate, meta: PluginMeta) -> str:
    """Give the text of a candidate's ``.module_source.py``.

    Raises:
        FormatError: The contract is not valid (a bug of the generator).
    """
    source = candidate.kernel.source
    return render_bundle(KernelBundle(header=cuda_header(source), source=source, meta=meta))
