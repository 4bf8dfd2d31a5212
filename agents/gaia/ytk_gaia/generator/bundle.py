"""Makes a kernel bundle out of a generated kernel: the C++ and the contract that goes with it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

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
    Tolerance,
    Variant,
)
from ytk_gaia import GENERATOR_VERSION
from ytk_gaia.generator import torch_extension
from ytk_gaia.generator.border import KernelTensor
from ytk_gaia.generator.cpp_printer import runtime_header
from ytk_gaia.generator.region_input import Region
from ytk_gaia.generator.strategies import CandidateKernel
from ytk_gaia.task_format import TaskSpec


@dataclass(frozen=True)
class BundleContext:
    """What all candidates of one search have in common."""

    region: Region
    task: TaskSpec
    target: DeploymentTarget
    seed: int


def contract_tolerance(task: TaskSpec) -> Tolerance:
    """Give one limit that holds for every output and random sample of the task."""
    timed = [sample for sample in task.samples if sample.timed]
    return Tolerance(
        rtol=max(r for sample in timed for r in sample.rtol),
        atol=max(a for sample in timed for a in sample.atol),
        source=task.tolerance_source,
    )


def _variant_id(context: BundleContext) -> str:
    floats = sorted({str(t.dtype) for t in context.region.border.outputs})
    return "-".join(floats)


def contract_dims(tensor: KernelTensor) -> list[int | None]:
    """Give the extents of a tensor as the contract says them."""
    return [None if axis in tensor.dynamic_axes else n for axis, n in enumerate(tensor.shape)]


def plugin_meta(candidate: CandidateKernel, context: BundleContext) -> PluginMeta:
    """Write the contract of a candidate."""
    region, kernel = context.region, candidate.kernel
    border, spec = region.border, region.spec
    return PluginMeta(
        schema_version=SCHEMA_VERSION,
        plugin_namespace=spec.namespace,
        plugin_name=spec.name,
        plugin_version=spec.version,
        deployment_target=context.target,
        inputs=[
            InputDecl(name=t.name, rank=len(t.shape), dims=contract_dims(t), role=declared.role)
            for t, declared in zip(border.inputs, spec.inputs, strict=True)
        ],
        outputs=[OutputDecl(name=t.name, rank=len(t.shape), shape=list(t.extents)) for t in border.outputs],
        extents=list(context.task.extents),
        variants=[
            Variant(
                id=_variant_id(context),
                inputs=[TensorType(dtype=t.dtype) for t in border.inputs],
                outputs=[TensorType(dtype=t.dtype) for t in border.outputs],
            )
        ],
        launcher=Launcher(
            workspace="ytk_workspace" if kernel.workspace_function else None,
            fixed_workspace_bytes=0 if kernel.workspace_function else kernel.fixed_workspace_bytes,
        ),
        tolerance=contract_tolerance(context.task),
        generator=Generator(
            name="ytk-gaia",
            version=GENERATOR_VERSION,
            torch=str(torch.__version__),
            strategy=candidate.plan.strategy,
            parameters=candidate.parameters,
            seed=context.seed,
        ),
        region_digest=spec.digest,
        compile_flags=list(candidate.dialect.flags),
        sites=spec.sites,
    )


def candidate_text(candidate: CandidateKernel, context: BundleContext) -> str:
    """Give the text of a candidate's ``.module_source.py``.

    Raises:
        FormatError: The contract is not valid (a bug of the generator).
    """
    source = candidate.kernel.source
    if context.target is DeploymentTarget.TORCH:
        source += torch_extension.wrapper(context.region.spec.name, context.region.border, candidate.kernel)
    bundle = KernelBundle(header=runtime_header(source), source=source, meta=plugin_meta(candidate, context))
    return render_bundle(bundle)
