"""Choosing a winner, and the report that says why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ytk_core.errors import CandidateError, FormatError
from ytk_core.files import atomic_write
from ytk_gaia.evaluator.device_facts import DeviceFacts
from ytk_gaia.evaluator.verdicts import CandidateResult, Evaluation, PairedRatio, Verdict
from ytk_gaia.rungs import score

SCHEMA_VERSION = 3
_ALIKE = 1.02
"""Medians this close are a tie on any machine we know; the one with the better best time wins then."""
_UNMEASURED = "not measured: within the budget and the limit of candidates others were likelier to be fast"
GIVEN_BASELINE = "baseline"
"""Id of a kernel that the user gave to compare with; it never wins."""


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
    baseline: PairedRatio | None
    traffic_bytes: int | None = None
    """What its loops read and write on paper, at the captured shape."""
    iterations: int | None = None
    """How often the bodies of its loops run."""
    launches: int | None = None
    """Of a CUDA kernel: how many kernels one call starts."""
    paper_us: float | None = None
    """Of a CUDA kernel: launches and memory traffic as a time on paper, by which candidates are ordered where nothing is measured."""
    device: DeviceFacts | None = None
    """Of a CUDA kernel: registers, spills, shared memory, occupancy. Not measured."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a search found out: written as ``report.json``."""

    region: dict[str, Any]
    config: dict[str, Any]
    arch_spec: str
    winner: str | None
    why: str
    reference: str
    """Id of the kernel that every candidate is compared with."""
    candidates: tuple[CandidateReport, ...]
    pruned: tuple[dict[str, Any], ...]
    """What another candidate beats on paper: not measured, with the reason."""
    refusals: tuple[dict[str, Any], ...]
    measurements: tuple[dict[str, Any], ...]
    """Per evaluation: conditions, threads, compiler, sandbox, floor, self-test."""
    tolerance_source: str
    notes: tuple[str, ...]
    torch: str
    generator: str
    roofline: dict[str, Any] | None = None
    """What memory allowed at the timed shape when the winner was measured (:class:`.verdicts.Roofline`), and ``share``: how much of the
    peak rate the winner reached. None: too little is moved to tell, or nothing was measured."""
    schema_version: int = SCHEMA_VERSION


def rank(results: Sequence[CandidateResult], paper: Mapping[str, float | None] | None = None) -> list[CandidateResult]:
    """Give the passed ones, best first: by median; those within 2 % of the best median by their best time.

    Args:
        results: Of one comparison.
        paper: Id to microseconds on paper, for candidates that nothing has measured: after spills, these decide.
    """
    static = [r for r in results if r.verdict is Verdict.PASSED and r.median_ms is None and r.device is not None]
    if static:
        # Nothing was measured. The sort is stable: of equal ones the first stays first.
        known = paper or {}

        def order(result: CandidateResult) -> tuple[float, ...]:
            facts = result.device.static_order if result.device else (0, 0, 0.0, 0)
            us = known.get(result.id)
            return (facts[0], float("inf") if us is None else us, *facts[1:])

        return sorted(static, key=order)
    passed = [r for r in results if r.verdict is Verdict.PASSED and r.median_ms is not None and r.min_ms is not None]
    if not passed:
        return []
    limit = min(r.median_ms or 0.0 for r in passed) * _ALIKE
    alike = sorted((r for r in passed if (r.median_ms or 0.0) <= limit), key=lambda r: (r.min_ms, r.id))
    rest = sorted((r for r in passed if (r.median_ms or 0.0) > limit), key=lambda r: (r.median_ms, r.id))
    return [*alike, *rest]


def _why(ranked: Sequence[CandidateResult], baseline_ms: float | None, made: Sequence[Mapping[str, Any]] = ()) -> str:
    if not ranked:
        return "no candidate passed"
    best = ranked[0]
    if best.median_ms is None:
        return _why_on_paper(best, next((each for each in made if each["id"] == best.id), {}))
    text = f"median {best.median_ms:.4f} ms over {len(best.times_ms)} calls, each on inputs it had not seen"
    if len(ranked) > 1:
        second = ranked[1]
        ratio = (second.median_ms or 0.0) / (best.median_ms or 1.0)
        text += f"; next {second.id} with {second.median_ms:.4f} ms ({ratio:.2f}x)"
        paired = second.ratio
        if paired is not None and paired.to == best.id:
            text += f"; side by side {_interval(paired)}"
        elif best.ratio is None:
            text += "; not compared side by side within the budget"
    beside = best.baseline
    if beside is not None and beside.to != best.id:
        text += f"; against {beside.to} side by side {_interval(beside)}"
    if baseline_ms is not None:
        given = (best.median_ms or 0.0) / baseline_ms
        text += f"; {given:.2f}x of the given baseline of {baseline_ms:g} ms, which was not measured here"
    return text


def _why_on_paper(best: CandidateResult, made: Mapping[str, Any]) -> str:
    kernels = best.device.kernels if best.device else ()
    spilled = sum(k.spill_bytes for k in kernels)
    shares = [k.occupancy for k in kernels if k.occupancy is not None]
    text = f"not measured, there is no GPU here: right on the CPU emulation, and first by static facts ({len(kernels)} kernels, "
    text += f"{spilled} B spilled, at most {max((k.registers for k in kernels), default=0)} registers"
    text += f", occupancy {min(shares):.0%} or more)" if shares else ")"
    if made.get("paper_us") is None:
        return text
    moved = f"{made['launches']} launches a call, {made['traffic_bytes']} B of memory traffic"
    return f"{text}: {moved}, {made['paper_us']:.1f} us on paper"


def _interval(paired: PairedRatio) -> str:
    text = f"{paired.median:.3f}x, {paired.low:.3f} to {paired.high:.3f} over {paired.pairs} pairs"
    return text if paired.decided else f"{text}: a tie"


_MEASURED = (
    "emulated",
    "conditions",
    "threads",
    "compiler",
    "sandbox",
    "machine",
    "floor_ms",
    "roofline_ms",
    "rooflines",
    "floor_bytes",
    "call_overhead_ms",
    "self_test",
    "baseline",
)


def _measurement(evaluation: Evaluation) -> dict[str, Any]:
    return {name: msgspec.to_builtins(getattr(evaluation, name)) for name in _MEASURED}


def _decided(rungs: Sequence[Sequence[Evaluation]]) -> Sequence[Evaluation]:
    """Give the last rung in which anything passed: a later one that was lost decides nothing."""
    for rung in reversed(rungs):
        if any(c.verdict is Verdict.PASSED for evaluation in rung for c in evaluation.candidates):
            return rung
    return rungs[-1] if rungs else ()


def _ranked(deciding: Sequence[Evaluation], made: Sequence[Mapping[str, Any]]) -> list[CandidateResult]:
    """Give the passed candidates of one rung, best first; ``made``: in the generator's order, which decides between equal ones."""
    order = [each["id"] for each in made]
    found = {c.id: c for e in deciding for c in e.candidates if c.id != GIVEN_BASELINE}
    results = {name: found[name] for name in order if name in found}
    measured = [r for r in results.values() if r.median_ms is not None]
    if not measured or (len(deciding) == 1 and any(r.ratio is not None for r in measured)):
        return rank(list(results.values()), {each["id"]: each.get("paper_us") for each in made})
    # The last comparison, side by side, did not happen: the ratios to the common reference have to do. Medians of different
    # moments would be worse: what is slow in them may have been the machine.
    figures = score(measured)
    return [results[name] for name in sorted(figures, key=lambda each: (figures[each], each))]


def make_report(
    generated: Mapping[str, Any],
    rungs: Sequence[Sequence[Evaluation]],
    *,
    config: Mapping[str, Any],
    arch_spec: str,
    notes: Sequence[str] = (),
) -> Report:
    """Put together what generator and judge say; the last rung decides among those that it measured.

    Args:
        generated: Result of the generator task.
        rungs: Evaluations, rung after rung; a later one replaces an earlier one's result for the same candidate.
        config: The validated configuration.
        arch_spec: What was generated for.
        notes: Of the search.
    """
    evaluations = [evaluation for rung in rungs for evaluation in rung]
    results: dict[str, CandidateResult] = {}
    for evaluation in evaluations:
        results |= {c.id: c for c in evaluation.candidates}
    last = _decided(rungs)
    deciding = {c.id for evaluation in last for c in evaluation.candidates}
    ranked = _ranked(last, generated["candidates"])
    made = list(generated["candidates"])
    if GIVEN_BASELINE in results:
        made.append({"id": GIVEN_BASELINE, "strategy": "given", "parameters": {}, "nests": 0})
    return Report(
        region=dict(generated["region"]),
        config=dict(config),
        arch_spec=arch_spec,
        winner=ranked[0].id if ranked else None,
        why=_why(ranked, config.get("baseline_ms"), generated["candidates"]),
        reference=GIVEN_BASELINE if GIVEN_BASELINE in results else generated.get("reference", ""),
        candidates=tuple(_candidate(each, results.get(each["id"]), each["id"] in deciding) for each in made),
        pruned=tuple(generated.get("pruned", ())),
        refusals=tuple(generated["refusals"]),
        measurements=tuple(_measurement(e) for e in evaluations),
        tolerance_source=generated["tolerance_source"],
        notes=(*generated["notes"], *notes),
        torch=generated["torch"],
        generator=generated.get("generator", ""),
        roofline=_roofline(last, ranked),
    )


def _roofline(deciding: Sequence[Evaluation], ranked: Sequence[CandidateResult]) -> dict[str, Any] | None:
    """Give what memory allowed where the winner was measured, and the winner's share of it."""
    best = ranked[0] if ranked else None
    if best is None or not best.median_ms:
        return None
    found = next((e for e in deciding if any(c.id == best.id for c in e.candidates)), None)
    if found is None or not found.rooflines:
        return None
    timed = found.rooflines[0]
    figures: dict[str, Any] = msgspec.to_builtins(timed)
    return figures | {"share": timed.roofline_ms / best.median_ms}


def _candidate(made: Mapping[str, Any], result: CandidateResult | None, deciding: bool) -> CandidateReport:
    found = result or CandidateResult(id=made["id"], verdict=Verdict.NO_EVIDENCE, reason=_UNMEASURED)
    judged = {
        name: getattr(found, name)
        for name in CandidateResult.__struct_fields__
        if name in CandidateReport.__struct_fields__
    }
    return CandidateReport(
        **judged,
        traffic_bytes=made.get("traffic_bytes"),
        iterations=made.get("iterations"),
        launches=made.get("launches"),
        paper_us=made.get("paper_us"),
        strategy=made["strategy"],
        parameters=made["parameters"],
        nests=made["nests"],
        deciding=deciding,
    )


def write_report(path: Path, report: Report) -> None:
    """Write ``report.json``; nothing is left half-written."""
    with atomic_write(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(report), indent=1))


def read_report(path: Path) -> Report:
    """Read ``report.json``.

    Raises:
        FormatError: It is not one.
    """
    try:
        found: Report = msgspec.json.decode(path.read_bytes(), type=Report)
    except (OSError, msgspec.DecodeError) as err:
        raise FormatError(f"{path}: not a search report: {err}", code="bad_report", hint="Search again.") from err
    return found


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
