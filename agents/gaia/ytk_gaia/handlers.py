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
from ytk_core.jobs import JobKind, JobResult, JobSpec, JobState, KernelEvaluateParams, KernelGenerateParams, NamedBlob
from ytk_core.workers import JobView
from ytk_gaia import search
from ytk_gaia.evaluator.verdicts import Evaluation, Verdict, read_evaluation
from ytk_gaia.report import Report, make_report, require_winner, write_report

_FALLBACK_NAME = "Region"
_P = TypeVar("_P", bound=msgspec.Struct)


def _params(ctx: JobContext, kind: type[_P]) -> _P:
    try:
        return msgspec.convert(ctx.spec.params, kind)
    except msgspec.ValidationError as err:
        raise UserError(f"bad parameters of {ctx.spec.kind}: {err}", code="bad_params") from err


def _cpu_arch(text: str) -> ArchSpec:
    arch = ArchSpec.parse(text)
    if arch.device_kind != "cpu":
        raise UserError(
            f"{arch} is a GPU: CUDA generation is not in this version",
            code="target_not_available",
            hint="Choose a CPU eval worker (`ytk eval workers`).",
        )
    return arch


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
        task = {name: self.out / name for name in ("task.json", "task.npz")}
        return task | {f"candidates/{name}.py": self.out / "candidates" / f"{name}.py" for name in ids}


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
        config = search.checked_config(_params(ctx, KernelGenerateParams).config)
        arch = str(_cpu_arch(ctx.spec.arch_spec))
        await ctx.fetch("region.pt2")
        ctx.progress(0.05, "generating candidates")
        generated = _Generated(
            await ctx.run_task(
                search.GENERATE_TASK,
                search.generate_arguments("in/region.pt2", _FALLBACK_NAME, config, arch),
                sandbox=search.generator_sandbox(),
                wall_limit_s=search.GENERATE_LIMIT_S,
                env=search.GENERATE_ENV,
                # Whatever breaks the generator is in the region's file.
                blame=FailureClass.YOURS,
            ),
            ctx.workdir / "out",
        )
        for refusal in generated.result["refusals"]:
            ctx.log(f"{refusal['strategy']}/{refusal['plan']} does not apply: {', '.join(refusal['operators'])}")
        evaluations, notes = await self._measure(ctx, generated, config, arch)
        result = {**generated.result, "notes": [*generated.result["notes"], *notes]}
        report = make_report(result, evaluations, config=config, arch_spec=arch)
        _log_report(ctx, report)
        return await self._publish(ctx, generated, report)

    async def _measure(
        self, ctx: JobContext, generated: _Generated, config: Mapping[str, Any], arch: str
    ) -> tuple[list[Evaluation], list[str]]:
        groups = search.batches(generated.ids)
        ctx.progress(0.3, f"measuring {len(generated.ids)} candidates in {len(groups)} job(s)")
        share = config["budget"] / len(generated.ids)
        evaluations, notes = await self._evaluate(
            ctx, [(generated.files(g), share * len(g)) for g in groups], config, arch
        )
        last = search.finalists(evaluations)
        if len(groups) > 1 and last:
            ctx.progress(0.8, f"measuring the best {len(last)} side by side")
            final, more = await self._evaluate(ctx, [(generated.files(last), config["budget"] / 2)], config, arch)
            return [*evaluations, *final], [*notes, *more]
        return evaluations, notes

    async def _evaluate(
        self, ctx: JobContext, batches: Sequence[tuple[dict[str, Path], float]], config: Mapping[str, Any], arch: str
    ) -> tuple[list[Evaluation], list[str]]:
        """Submit batches and wait for all; a lost batch is a note, unless all are lost."""
        jobs = []
        for files, budget_s in batches:
            params = KernelEvaluateParams(budget_s=budget_s, threads=config["threads"])
            spec = JobSpec(
                kind=JobKind.KERNEL_EVALUATE,
                arch_spec=arch,
                params=msgspec.to_builtins(params),
                wall_limit_s=search.evaluation_limit_s(budget_s),
                measuring=True,
                priority=ctx.spec.priority,
                no_cache=ctx.spec.no_cache,
            )
            jobs.append(await ctx.submit_child(spec, files))
        views = await asyncio.gather(*(ctx.wait_job(job) for job in jobs))
        evaluations, notes = [], []
        for view in views:
            if view.state is JobState.SUCCEEDED:
                evaluations.append(await _evaluation_of(ctx, view))
            else:
                notes.append(
                    f"evaluation {view.id} {view.state}: {view.failure.message if view.failure else 'no reason given'}"
                )
        if not evaluations:
            failure = next((v.failure for v in views if v.failure), None)
            raise error_of(failure) if failure else ToolkitError("; ".join(notes), code="no_evaluation")
        for note in notes:
            ctx.log(note)
        return evaluations, notes

    async def _publish(self, ctx: JobContext, generated: _Generated, report: Report) -> JobResult:
        winner = require_winner(report)
        report_path = ctx.workdir / "out" / "report.json"
        await asyncio.to_thread(write_report, report_path, report)
        bundle = generated.out / "candidates" / f"{winner}.py"
        outputs = await ctx.publish({"bundle.py": bundle, "report.json": report_path})
        best = next(c for c in report.candidates if c.id == winner)
        passed = sum(c.verdict is Verdict.PASSED for c in report.candidates)
        return JobResult(
            outputs=outputs,
            summary={
                "winner": winner,
                "why": report.why,
                "median_ms": best.median_ms,
                "min_ms": best.min_ms,
                "candidates": len(report.candidates),
                "passed": passed,
                "plugin_name": report.region["name"],
                "plugin_namespace": report.region["namespace"],
            },
        )


async def _evaluation_of(ctx: JobContext, view: JobView) -> Evaluation:
    outputs: tuple[NamedBlob, ...] = view.result.outputs if view.result else ()
    blob = next((b for b in outputs if b.name == "evaluation.json"), None)
    if blob is None:
        raise ToolkitError(f"evaluation {view.id} has no evaluation.json", code="no_evaluation")
    path = await ctx.fetch_blob(blob)
    return await asyncio.to_thread(read_evaluation, path)


def _log_report(ctx: JobContext, report: Report) -> None:
    for c in report.candidates:
        time = f"{c.median_ms:.4f} ms" if c.median_ms is not None else c.reason
        ctx.log(f"{c.id}: {c.verdict} {time}")
    ctx.log(f"winner: {report.winner or 'none'} ({report.why})")


class EvaluateHandler:
    """Judges candidates on this machine.

    Args:
        device_uid: The device that is measured on.
    """

    def __init__(self, device_uid: str = "") -> None:
        self._device_uid = device_uid

    @property
    def kinds(self) -> frozenset[JobKind]:
        """What it takes."""
        return frozenset({JobKind.KERNEL_EVALUATE})

    async def run(self, ctx: JobContext) -> JobResult:
        """Judge one batch. A bad kernel is a result, not a failure.

        Raises:
            UserError: The task is malformed, or the arch spec is no CPU.
            BoardError: No sandbox, no compiler, or a sick worker.
        """
        params = _params(ctx, KernelEvaluateParams)
        _cpu_arch(ctx.spec.arch_spec)
        await ctx.fetch_all()
        summary = await ctx.run_task(
            search.EVALUATE_TASK,
            {
                "arch_spec": ctx.spec.arch_spec,
                "budget_s": params.budget_s,
                "threads": params.threads,
                "sandbox_mode": ctx.sandbox_mode,
                "worker_id": ctx.worker_id,
                "device_uid": self._device_uid,
            },
            # The judge is trusted; it puts each candidate into a sandbox of its own.
            sandbox=None,
            wall_limit_s=search.evaluation_limit_s(params.budget_s),
        )
        outputs = await ctx.publish({"evaluation.json": ctx.workdir / "out" / "evaluation.json"})
        return JobResult(outputs=outputs, summary=summary)
