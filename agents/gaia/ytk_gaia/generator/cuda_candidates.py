"""CUDA candidates of a region: every lowering that applies, with the nests given to threads in different ways."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
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
from ytk_gaia.generator import attention, emit_cuda
from ytk_gaia.generator.border import EmittedKernel
from ytk_gaia.generator.bundle import contract_dims, contract_tolerance
from ytk_gaia.generator.cuda_printer import cuda_header
from ytk_gaia.generator.cuda_schedules import SCHEDULES, CudaSchedule
from ytk_gaia.generator.cuda_templates import Template, templates_for
from ytk_gaia.generator.cuda_variants import StorageVariant
from ytk_gaia.generator.lowering import CannotLowerError, LoweringPlan, lower
from ytk_gaia.generator.region_input import Region
from ytk_gaia.generator.strategies import Lowered, Refusal, lower_all, region_operators
from ytk_gaia.task_format import TaskSpec

TEMPLATES = "templates"
_FORMS = {"rowfuse": "rewrites", "scan": TEMPLATES, "total": TEMPLATES, "tile": TEMPLATES}
"""What an emitter did beyond loops, and the strategy that it belongs to."""


@dataclass(frozen=True)
class CudaCandidate:
    """One candidate.

    Attributes:
        id: Unique in its search; a file name.
        plan: How it was lowered.
        schedule: How its nests become threads.
        kernel: Its CUDA C++.
        template: How its matrix products and attentions are cut; None: they are loops.
    """

    id: str
    plan: LoweringPlan
    schedule: CudaSchedule
    kernel: EmittedKernel
    template: Template | None = None

    @property
    def strategy(self) -> str:
        """Name of the strategy that the report gives it to."""
        return TEMPLATES if self.template else _FORMS.get(self.kernel.form, self.plan.strategy)

    @property
    def parameters(self) -> dict[str, Any]:
        """Search parameters for reports and the contract."""
        found = {"plan": self.plan.name, "rows": self.schedule.rows.value, "threads": self.schedule.threads}
        found |= {"form": self.kernel.form, "vector": self.schedule.vector} if self.kernel.form else {}
        return found | ({"tile": self.template.name} if self.template else {})


def _name(plan: LoweringPlan, schedule: CudaSchedule, template: Template | None, form: str) -> str:
    """Give a candidate's id: its strategy, what is special about it, how it was lowered and scheduled."""
    if template:
        return f"{TEMPLATES}-{'-'.join(template.words)}-{plan.name}-{template.name}"
    if form:
        return f"{_FORMS[form]}-{form}-{plan.name}-{schedule.name}"
    return f"{plan.strategy}-{plan.name}-{schedule.name}"


_ATTENTION = LoweringPlan(
    "sdpa", TEMPLATES, keep=(attention.OPERATOR,), lowerings={attention.OPERATOR: attention.lower_attention}
)
"""Attention kept in one piece; worth nothing as loops, which the other plans have in better forms."""


_PRODUCTS = LoweringPlan("base", TEMPLATES)
"""As the loops' first plan, for a search that is to have no loops."""


def _for_templates(region: Region, strategies: Sequence[str], refusals: list[Refusal]) -> list[Lowered]:
    """Lower a region by the plans that only templates can make something of."""
    if TEMPLATES not in strategies:
        return []
    plans = [_ATTENTION] if attention.OPERATOR in region_operators(region.program) else []
    found = []
    for plan in [*plans, *([] if "loops" in strategies else [_PRODUCTS])]:
        try:
            found.append(Lowered(plan, lower(region.program, plan)))
        except CannotLowerError as err:
            refusals.append(Refusal(plan.name, TEMPLATES, tuple(err.operators)))
    return found


PLAIN = next(schedule for schedule in SCHEDULES if not schedule.fuse)
"""Of what is beside the templates."""
_Way = tuple[Lowered, CudaSchedule, Template | None]


def _templated(lowered: Sequence[Lowered], region: Region, sm: int) -> Iterator[_Way]:
    """Give the ways to emit what was lowered with templates, every plan's first before any one's second."""
    all_ways: list[list[_Way]] = []
    for item in lowered:
        try:
            found = templates_for(*emit_cuda.template_parts(item.region, region.border), sm)
        except CannotLowerError:
            continue  # it is said where the loops are emitted
        all_ways.append([(item, PLAIN, template) for template in found])
    for turn in itertools.zip_longest(*all_ways):
        yield from (way for way in turn if way is not None)


def _ways(
    lowered: Sequence[Lowered], whole: Sequence[Lowered], region: Region, strategies: Sequence[str], sm: int
) -> Iterator[_Way]:
    """Give every way to emit what was lowered, the most different ones first: templates, then schedules of loops."""
    if TEMPLATES in strategies:
        yield from _templated([*whole, *lowered], region, sm)
    yield from ((item, schedule, None) for schedule in SCHEDULES for item in lowered)


def generate(
    region: Region, strategies: Sequence[str], variants: Sequence[StorageVariant], limit: int, sm: int = 0
) -> tuple[list[CudaCandidate], list[Refusal]]:
    """Generate every candidate that applies, without duplicates, the most different ones first.

    Args:
        region: What to make a kernel for.
        strategies: Names of :data:`ytk_gaia.generator.strategies.REGISTRY`.
        variants: Storage types; every candidate has them all.
        limit: How many at most.
        sm: Compute capability (87: 8.7); tiles that its multiprocessors do not take are left out.

    Raises:
        UserError: ``no_strategy``: no strategy has a form for the region; names the operators.
    """
    lowered, refusals = lower_all(region, strategies)
    found: list[CudaCandidate] = []
    seen: set[str] = set()
    whole = _for_templates(region, strategies, refusals)
    for item, schedule, template in _ways(lowered, whole, region, strategies, sm):
        try:
            kernel = emit_cuda.emit(item.region, region.border, schedule, variants, template)
        except CannotLowerError as err:
            refusal = Refusal(item.plan.name, item.plan.strategy, tuple(err.operators))
            refusals += [refusal] if refusal not in refusals else []
            continue
        if schedule.fuse and not template and _FORMS.get(kernel.form) not in strategies:
            continue  # nothing to fuse (the schedule without it gives the same), or it was not asked for
        if kernel.source not in seen:
            seen.add(kernel.source)
            name = _name(item.plan, schedule, template, kernel.form)
            found.append(CudaCandidate(name, item.plan, schedule, kernel, template))
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
            strategy=candidate.strategy,
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
