"""Choosing a winner, and the report that says why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ytk_core.errors import CandidateError
from ytk_core.files import atomic_write
from ytk_gaia.evaluator.verdicts import CandidateResult, Evaluation, PairedRatio, Verdict

SCHEMA_VERSION = 2
_ALIKE = 1.02
"""Medians this close are a tie on any machine we know; the one with the better best time wins then."""


class CandidateReport(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate: how it was made, what the judge says. ``deciding``: whether it took part in the last comparison."""

    id: str
    strategy: str
    parameters: dict[str, Any]
    nests: int
    verdict: Verdict
    reason: str
    min_ms: float | None
    median_ms: float | None
    times_ms: tuple[float, ...]
    worst_error: float | None
    compile_s: float
    processes: int
    deciding: bool
    log: str
    cold_ms: float | None
    ratio: PairedRatio | None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a search found out: written as ``report.json``."""

    region: dict[str, Any]
    config: dict[str, Any]
    arch_spec: str
    winner: str | None
    why: str
    candidates: tuple[CandidateReport, ...]
    refusals: tuple[dict[str, Any], ...]
    measurements: tuple[dict[str, Any], ...]
    """Per evaluation: conditions, threads, compiler, sandbox, floor, self-test."""
    tolerance_source: str
    notes: tuple[str, ...]
    torch: str
    schema_version: int = SCHEMA_VERSION


def rank(results: Sequence[CandidateResult]) -> list[CandidateResult]:
    """Give the passed ones, best first: by median; those within 2 % of the best median by their best time."""
    passed = [r for r in results if r.verdict is Verdict.PASSED and r.median_ms is not None and r.min_ms is not None]
    if not passed:
        return []
    limit = min(r.median_ms or 0.0 for r in passed) * _ALIKE
    alike = sorted((r for r in passed if (r.median_ms or 0.0) <= limit), key=lambda r: (r.min_ms, r.id))
    rest = sorted((r for r in passed if (r.median_ms or 0.0) > limit), key=lambda r: (r.median_ms, r.id))
    return [*alike, *rest]


def _why(ranked: Sequence[CandidateResult]) -> str:
    if not ranked:
        return "no candidate passed"
    best = ranked[0]
    text = f"median {best.median_ms:.4f} ms over {len(best.times_ms)} calls, each on inputs it had not seen"
    if len(ranked) > 1:
        second = ranked[1]
        ratio = (second.median_ms or 0.0) / (best.median_ms or 1.0)
        text += f"; next {second.id} with {second.median_ms:.4f} ms ({ratio:.2f}x)"
        paired = second.ratio
        if paired is not None and paired.to == best.id:
            text += (
                f"; side by side {paired.median:.3f}x, {paired.low:.3f} to {paired.high:.3f} over {paired.pairs} pairs"
            )
            text += "" if paired.decided else ": a tie"
    return text


def _measurement(evaluation: Evaluation) -> dict[str, Any]:
    kept = ("conditions", "threads", "compiler", "sandbox", "floor_ms", "floor_bytes", "call_overhead_ms", "self_test")
    return {name: msgspec.to_builtins(getattr(evaluation, name)) for name in kept}


def make_report(
    generated: Mapping[str, Any],
    evaluations: Sequence[Evaluation],
    *,
    config: Mapping[str, Any],
    arch_spec: str,
) -> Report:
    """Put together what generator and judge say; the last evaluation decides among those that it measured.

    Args:
        generated: Result of the generator task.
        evaluations: In order; a later one replaces an earlier one's result for the same candidate.
        config: The validated configuration.
        arch_spec: What was generated for.
    """
    results: dict[str, CandidateResult] = {}
    for evaluation in evaluations:
        results |= {c.id: c for c in evaluation.candidates}
    deciding = {c.id for c in evaluations[-1].candidates} if evaluations else set()
    ranked = rank([results[name] for name in sorted(deciding)])
    candidates = []
    for made in generated["candidates"]:
        result = results.get(made["id"]) or CandidateResult(
            id=made["id"], verdict=Verdict.NO_EVIDENCE, reason="not measured"
        )
        judged = {
            f: getattr(result, f) for f in CandidateResult.__struct_fields__ if f in CandidateReport.__struct_fields__
        }
        candidates.append(
            CandidateReport(
                **judged,
                strategy=made["strategy"],
                parameters=made["parameters"],
                nests=made["nests"],
                deciding=made["id"] in deciding,
            )
        )
    return Report(
        region=dict(generated["region"]),
        config=dict(config),
        arch_spec=arch_spec,
        winner=ranked[0].id if ranked else None,
        why=_why(ranked),
        candidates=tuple(candidates),
        refusals=tuple(generated["refusals"]),
        measurements=tuple(_measurement(e) for e in evaluations),
        tolerance_source=generated["tolerance_source"],
        notes=tuple(generated["notes"]),
        torch=generated["torch"],
    )


def write_report(path: Path, report: Report) -> None:
    """Write ``report.json``; nothing is left half-written."""
    with atomic_write(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(report), indent=1))


def require_winner(report: Report) -> str:
    """Give the winner's id.

    Raises:
        CandidateError: ``no_candidate_passed``: none did; the message has the verdict of each.
    """
    if report.winner is not None:
        return report.winner
    verdicts = "; ".join(f"{c.id}: {c.verdict}{f' ({c.reason[:160]})' if c.reason else ''}" for c in report.candidates)
    raise CandidateError(
        f"none of {len(report.candidates)} candidates for {report.region.get('name', 'the region')} passed: {verdicts}",
        code="no_candidate_passed",
        hint="See the report for the log of each; a larger --config budget helps where the verdict is NO_EVIDENCE.",
    )
