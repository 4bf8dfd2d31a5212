"""Results by hand, for tests of what becomes of them."""

from __future__ import annotations

from ytk_core.archspec import host_arch_specs
from ytk_core.conditions import make_conditions, snapshot
from ytk_gaia.evaluator.verdicts import CandidateResult, Evaluation, Verdict

ARCH = str(host_arch_specs("ov20264")[0])
DIGEST = "blake3:" + "0" * 64


def passed(name, median, best=None):
    return CandidateResult(
        id=name, verdict=Verdict.PASSED, median_ms=median, min_ms=best or median, times_ms=(median,), processes=2
    )


def failed(name, verdict=Verdict.WRONG_VALUE):
    return CandidateResult(id=name, verdict=verdict, reason="output 0 differs")


def evaluation(*results):
    now = snapshot()
    return Evaluation(
        arch_spec=ARCH,
        region_digest=DIGEST,
        candidates=results,
        conditions=make_conditions(now, now, iterations=1, warmup=1, threads=1, engine="direct call"),
        threads=1,
        compiler="g++",
        sandbox="bubblewrap",
        floor_ms=0.0,
        floor_bytes=0,
        call_overhead_ms=0.0,
        self_test={},
    )


def generated(*names):
    return {
        "candidates": [{"id": n, "strategy": "loops", "parameters": {}, "nests": 1} for n in names],
        "refusals": [],
        "region": {"name": "Region"},
        "notes": [],
        "tolerance_source": "by hand",
        "torch": "2.13.0",
        "generator": "3",
        "reference": names[0],
        "pruned": [],
    }
