"""The page of kernel coverage is what the committed results say, and holds what was promised."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

# Benchmarks are no package that is installed.
_SPEC = importlib.util.spec_from_file_location(
    "coverage_page", Path(__file__).parents[2] / "benchmarks" / "coverage_page.py"
)
assert _SPEC is not None
assert _SPEC.loader is not None
coverage_page = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(coverage_page)
RESULTS = coverage_page.read_results(coverage_page.ROOT / "benchmarks" / "results")


def test_the_page_is_generated_from_the_results():
    assert coverage_page.PAGE.read_text(encoding="utf-8") == coverage_page.page(RESULTS)


@pytest.mark.parametrize("form", RESULTS)
def test_nothing_is_wrong_and_enough_matches(form):
    result = RESULTS[form]
    assert result["counts"].get("wrong", 0) == 0
    assert result["measured"] == result["available"]
    assert result["match_share"] >= {"cpp": 0.9, "cuda": 0.8}[form]


def test_reasons_are_grouped_and_fit_a_table():
    entry = {"status": "no kernel", "reason": "MultiOutput, a|b", "error": None, "nests": 0}
    result = {
        "torch": "2",
        "measured": 3,
        "captured": 3,
        "counts": {"match": 1, "no kernel": 2},
        "match_share": 1 / 3,
        "entries": [{**entry, "entry": "y"}, {**entry, "entry": "x"}, {**entry, "entry": "z", "status": "match"}],
    }
    text = coverage_page.page({"cuda": result})
    assert "| no kernel | a\\|b | `x`, `y` |" in text
    assert "| 3 | 3 | 1 | 2 | 0 | 0 | 33.3 % |" in text
