"""Gaia's job handlers: ``kernel.generate`` and ``kernel.evaluate``. They import neither torch nor the judge."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ytk_core.agent.handler import JobContext
from ytk_core.agent.tasks import error_of
from ytk_core.archspec import ArchSpec
from ytk_core.errors import FailureClass, ToolkitError, UserError
from ytk_core.formats.kernel_bundle import read_bundle
from ytk_core.jobs import JobKind, JobResult, JobSpec, JobState, KernelEvaluateParams, KernelGenerateParams, NamedBlob
from ytk_core.workers import JobView
from ytk_gaia import search as tasks
from ytk_gaia.evaluator.machine_rates import RATES_FILE
from ytk_gaia.evaluator.verdicts import Evaluation, Verdict, read_evaluation
from ytk_gaia.report import GIVEN_BASELINE, Report, make_report, require_winner, write_report
from ytk_gaia.run_search import search
from ytk_gaia.rungs import Pool
from ytk_gaia.search import evaluation_limit_s

BASELINE_INPUT = "baseline.py"
_FALLBACK_NAME = "Region"
_P = TypeVar("_P", bound=msgspec.Struct)


def _params(ctx: JobContext, kind: type[_P]) -> _P:
    try:
        return msgspec.convert(ctx.spec.params, kind)
    except msgspec.ValidationError as err:
        raise UserError(f"bad parameters of {ctx.spec.kind}: {err}", code="bad_params") from err


def _fitting_arch(text: str, target: str) -> ArchSpec:
    """Hold the deployment target against the device that its kernels are for."""
    arch = ArchSpec.parse(text)
    if (arch.device_kind == "gpu") != (target == "tensorrt"):
        fitting = "tensorrt" if arch.device_kind == "gpu" else "cpu"
        raise UserError(
            f"deployment_target={target} does not go with {arch}",
            code="wrong_deployment_target",
            hint=f"Use --config deployment_target={fitting}, or another eval worker (`ytk eval workers`).",
        )
    return arch


_TASK_FILES = ("task.json", "task.npz")
_CANDIDATES = "candidates/"


@dataclass(frozen=True)
class _Generated:
    """What the generator task left."""

    result: dict[str, Any]
    out: Path

    @property
    def ids(self) -> list[str]:
        return [c["id"] for c in self.result["candidates"]]

    def files(self, ids: Sequence[str]) -> dict[str, Path]:
        """Give the inputs of an evaluation of some candidates."""
        # Below variants: a kernel of several storage types has a task for each.
        places = [self.out, *sorted((self.out / "variants").glob("*"))]
        task = {str((place / name).relative_to(self.out)): place / name for place in places for name in _TASK_FILES}
        return task | {f"candidates/{name}.py": self.out / "candidates" / f"{name}.py" for name in ids}


@dataclass(frozen=True)
class _Children:
    """Has batches judged by child jobs, each by whichever eval worker is free.

    A job's key is what it is asked: task, candidates, budget, reference. A search that is begun again, because its worker or the
    controller died, asks for the same, and what was finished is answered from the controller's results.
    """

    ctx: JobContext
    generated: _Generated
    config: Mapping[str, Any]
    arch: str
    reference: str
    baseline: Path | None

    async def __call__(self, ids: Sequence[str], budget_s: float) -> Evaluation:
        """Judge one batch.

        Raises:
            YtkError: The job failed.
        """
        ctx = self.ctx
        files = self.generated.files([name for name in ids if name != GIVEN_BASELINE])
        if self.baseline is not None:
            files[f"candidates/{GIVEN_BASELINE}.py"] = self.baseline
        params = KernelEvaluateParams(
            budget_s=budget_s,
            threads=self.config["threads"],
            baseline=self.reference,
            search=ctx.lease.job_id if ctx.spec.no_cache else "",
        )
        spec = JobSpec(
            kind=JobKind.KERNEL_EVALUATE,
            arch_spec=self.arch,
            params=msgspec.to_builtins(params),
            wall_limit_s=evaluation_limit_s(budget_s),
            measuring=True,
            priority=ctx.spec.priority,
        )
        view = await ctx.wait_job(await ctx.submit_child(spec, files))
        if view.state is not JobState.SUCCEEDED:
            if view.failure is not None:
                raise error_of(view.failure)
            raise ToolkitError(f"evaluation {view.id} {view.state}: no reason given", code="no_evaluation")
        return await _evaluation_of(ctx, view)


class GenerateHandler:
    """Generates candidates in a sandboxed task, has them measured by child jobs, and publishes the best."""

    @property
    def kinds(self) -> frozenset[JobKind]:
        """What it takes."""
        return frozenset({JobKind.KERNEL_GENERATE})

    async def run(self, ctx: JobContext) -> JobResult:
        """Do one search.

        Raises:
            UserError: Region, configuration or arch spec are wrong.
            CandidateError: No candidate passed.
            BoardError: No evaluation could be done.
        """
        params = _params(ctx, KernelGenerateParams)
        config = tasks.checked_config(params.config)
        arch = str(_fitting_arch(ctx.spec.arch_spec, config["deployment_target"]))
        await ctx.fetch("region.pt2")
        ctx.progress(0.05, "generating candidates")
        generated = _Generated(
            await ctx.run_task(
                tasks.GENERATE_TASK,
                tasks.generate_arguments("in/region.pt2", params.name or _FALLBACK_NAME, config, arch),
                sandbox=tasks.generator_sandbox(),
                wall_limit_s=tasks.GENERATE_LIMIT_S,
                env=tasks.GENERATE_ENV,
                # Whatever breaks the generator is in the region's file.
                blame=FailureClass.YOURS,
            ),
            ctx.workdir / "out",
        )
        for refusal in generated.result["refusals"]:
            ctx.log(f"{refusal['strategy']}/{refusal['plan']} does not apply: {', '.join(refusal['operators'])}")
        baseline = await self._given_baseline(ctx, config)
        reference = GIVEN_BASELINE if baseline else generated.result["reference"]
        measure = _Children(ctx, generated, config, arch, reference, baseline)
        ids = [*([GIVEN_BASELINE] if baseline else []), *generated.ids]
        pool = Pool(
            tuple(ids),
            reference,
            {c["id"]: c["traits"] for c in generated.result["candidates"] if "traits" in c},
            config["candidates"],
        )
        found = await search(pool, config["budget"], measure, lambda part, note: ctx.progress(0.2 + 0.78 * part, note))
        for note in found.notes:
            ctx.log(note)
        report = make_report(generated.result, found.rungs, config=config, arch_spec=arch, notes=found.notes)
        _log_report(ctx, report)
        return await self._publish(ctx, generated, report)

    async def _given_baseline(self, ctx: JobContext, config: Mapping[str, Any]) -> Path | None:
        """Bring the kernel to compare with, where there is one."""
        if all(blob.name != BASELINE_INPUT for blob in ctx.spec.inputs):
            return None
        path = await ctx.fetch(BASELINE_INPUT)
        # Parsed here for the message; the judge parses it again, as it does any candidate.
        bundle = await asyncio.to_thread(read_bundle, path)
        if bundle.meta.deployment_target != config["deployment_target"]:
            raise UserError(
                f"the baseline is for deployment_target={bundle.meta.deployment_target}, the search for {config['deployment_target']}",
                code="wrong_baseline",
                hint="Give a kernel bundle of the same region and deployment target.",
            )
        return path

    async def _publish(self, ctx: JobContext, generated: _Generated, report: Report) -> JobResult:
        report_path = ctx.workdir / "out" / "report.json"
        await asyncio.to_thread(write_report, report_path, report)
        winner = require_winner(report)
        bundle = generated.out / "candidates" / f"{winner}.py"
        outputs = await ctx.publish({"bundle.py": bundle, "report.json": report_path})
        best = next(c for c in report.candidates if c.id == winner)
        ours = [c for c in report.candidates if c.id != GIVEN_BASELINE]
        passed = sum(c.verdict is Verdict.PASSED for c in ours)
        return JobResult(
            outputs=outputs,
            summary={
                "winner": winner,
                "why": report.why,
                "median_ms": best.median_ms,
                "min_ms": best.min_ms,
                "candidates": len(ours),
                "passed": passed,
                "reference": report.reference,
                "vs_reference": best.baseline.median if best.baseline else None,
                **_roofline_figures(report),
                "plugin_name": report.region["name"],
                "plugin_namespace": report.region["namespace"],
            },
        )


def _roofline_figures(report: Report) -> dict[str, str]:
    """Give the figures of the roofline for people; none where nothing is to be told."""
    found = report.roofline
    if found is None:
        return {}
    measured = f"{found['measured_gb_s']:.1f} GB/s measured, " if found["measured_gb_s"] else ""
    return {
        "roofline": f"{found['share']:.0%} of {found['peak_gb_s']:.1f} GB/s ({found['roofline_ms']:.4f} ms for {found['bytes']} bytes)",
        "bandwidth": f"{measured}{found['peak_gb_s']:.1f} GB/s at best; no time below {found['floor_ms']:.4f} ms is believed",
    }


async def _evaluation_of(ctx: JobContext, view: JobView) -> Evaluation:
    outputs: tuple[NamedBlob, ...] = view.result.outputs if view.result else ()
    blob = next((b for b in outputs if b.name == "evaluation.json"), None)
    if blob is None:
        raise ToolkitError(f"evaluation {view.id} has no evaluation.json", code="no_evaluation")
    path = await ctx.fetch_blob(blob)
    return await asyncio.to_thread(read_evaluation, path)


def _candidates_in(spec: JobSpec) -> list[str]:
    """Give the candidates among a job's inputs, in the order in which they were handed over."""
    names = [blob.name for blob in spec.inputs if blob.name.startswith(_CANDIDATES)]
    return [name.removeprefix(_CANDIDATES).removesuffix(".py") for name in names]


def _log_report(ctx: JobContext, report: Report) -> None:
    for c in report.candidates:
        time = f"{c.median_ms:.4f} ms" if c.median_ms is not None else c.reason
        ctx.log(f"{c.id}: {c.verdict} {time}")
    ctx.log(f"winner: {report.winner or 'none'} ({report.why})")


class EvaluateHandler:
    """Judges candidates on this machine.

    Args:
        device_uid: The device that is measured on.
        kept: Directory of this user's for what outlives an evaluation: the record of this machine's memory rates
            (:mod:`ytk_gaia.evaluator.machine_rates`) and compiled candidates (:mod:`ytk_gaia.evaluator.compiled`); None: neither.
    """

    def __init__(self, device_uid: str = "", kept: Path | None = None) -> None:
        self._device_uid = device_uid
        self._kept = kept

    @property
    def kinds(self) -> frozenset[JobKind]:
        """What it takes."""
        return frozenset({JobKind.KERNEL_EVALUATE})

    async def run(self, ctx: JobContext) -> JobResult:
        """Judge one batch. A bad kernel is a result, not a failure.

        Raises:
            UserError: The task is malformed.
            BoardError: No sandbox, no compiler, or a sick worker.
        """
        params = _params(ctx, KernelEvaluateParams)
        await ctx.fetch_all()
        summary = await ctx.run_task(
            tasks.EVALUATE_TASK,
            {
                "arch_spec": ctx.spec.arch_spec,
                "budget_s": params.budget_s,
                "threads": params.threads,
                "sandbox_mode": ctx.sandbox_mode,
                "worker_id": ctx.worker_id,
                "device_uid": self._device_uid,
                "baseline": params.baseline,
                "rates": str(self._kept / RATES_FILE) if self._kept else "",
                "compiled": str(self._kept / "compiled") if self._kept else "",
                "order": _candidates_in(ctx.spec),
            },
            # The judge is trusted; it puts each candidate into a sandbox of its own.
            sandbox=None,
            wall_limit_s=evaluation_limit_s(params.budget_s),
        )
        outputs = await ctx.publish({"evaluation.json": ctx.workdir / "out" / "evaluation.json"})
        return JobResult(outputs=outputs, summary=summary)
