"""How a search goes: batches, rungs, what is pruned, what is lost, and that it asks for the same again."""

from __future__ import annotations

from itertools import chain

import msgspec
import pytest

from ytk_core.errors import BoardError
from ytk_gaia import rungs, tasks
from ytk_gaia.evaluator.verdicts import CandidateResult, PairedRatio, Verdict
from ytk_gaia.order import Likely, likely_first, relatives
from ytk_gaia.prune import Estimate, prune
from ytk_gaia.report import make_report
from ytk_gaia.run_search import search
from ytk_gaia.rungs import Pool

from fakes.search_results import evaluation, failed, generated, passed

IDS = [f"c{k:02d}" for k in range(37)]
BACKWARDS = tuple(reversed(IDS))


def beside(name, ratio, median=None, to="c00"):
    """A candidate whose machine was as slow as its median says; only the ratio compares."""
    found = passed(name, median if median is not None else ratio)
    paired = PairedRatio(to=to, median=ratio, low=ratio, high=ratio, pairs=8, confidence=0.95)
    return msgspec.structs.replace(found, baseline=paired)


# ---- batches ---------------------------------------------------------------------------------------------------------


def test_batches_are_even_mixed_and_each_has_the_reference():
    dealt = rungs.deal(IDS, "c00", 60.0)
    assert all(batch.ids[0] == "c00" for batch in dealt)
    others = list(chain.from_iterable(batch.ids[1:] for batch in dealt))
    assert sorted(others) == IDS[1:]
    sizes = [len(batch.ids) for batch in dealt]
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) <= rungs.BATCH_SIZE + 1
    assert sum(batch.budget_s for batch in dealt) == pytest.approx(60.0)
    assert rungs.deal(IDS, "c00", 60.0) == dealt
    assert rungs.deal(["c00"], "c00", 60.0) == [rungs.Batch(("c00",), 60.0)]
    assert rungs.deal(["a"], "", 60.0) == [rungs.Batch(("a",), 60.0)]


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("count", [1, 8, 9, 16, 17, 40, 512])
def test_a_search_ends_in_one_batch_and_spends_its_budget_once(count, more):
    number = rungs.rung_count(count, more=more)
    assert number == {1: 1, 8: 1, 9: 1, 16: 1, 17: 2, 40: 2, 512: 4}[count] + (more and count <= rungs.BATCH_SIZE)
    parts = [rungs.share(k, number) for k in range(number)]
    assert sum(parts) == pytest.approx(1.0)
    assert parts[:-1] == sorted(parts[:-1], reverse=True)
    # The last comparison names the winner, so it is never starved.
    assert parts[-1] >= 0.5


# ---- rungs -----------------------------------------------------------------------------------------------------------


class Machines:
    """Judges batches; each batch on a machine of another speed, so that only ratios tell who is fast."""

    def __init__(self, lose=(), wrong=()):
        self.asked = []
        self.lose, self.wrong = set(lose), set(wrong)

    async def __call__(self, ids, budget_s):
        number = len(self.asked)
        self.asked.append((tuple(ids), round(budget_s, 6)))
        if number in self.lose:
            raise BoardError(f"batch {number} is lost", code="worker_lost")
        slow = 1.0 + 100 * (number % 3)
        return evaluation(
            *(
                failed(i) if i in self.wrong else beside(i, 1 + int(i[1:]) / 100, median=slow * (1 + int(i[1:]) / 100))
                for i in ids
            )
        )


async def run(machines, ids=BACKWARDS, reference="c00", budget=100.0, **pool):
    told = []
    wanted = Pool(tuple(ids), reference, **pool)
    found = await search(wanted, budget, machines, lambda part, note: told.append((part, note)))
    return found, told


async def test_the_fastest_go_on_until_one_batch_decides():
    machines = Machines()
    found, told = await run(machines)
    assert [len(rung) for rung in found.rungs] == [3, 1]
    deciding = {c.id for c in found.rungs[-1][0].candidates}
    assert {"c00", "c01", "c02"} <= deciding
    assert sum(budget for _, budget in machines.asked) == pytest.approx(100.0)
    parts = [part for part, _ in told]
    assert parts == sorted(parts)
    assert parts[-1] == 1.0
    assert told[-1][1].startswith("best so far c00, ")
    assert any(note == "measuring 36 candidates in 3 job(s)" for _, note in told)


async def test_begun_again_it_asks_for_the_same():
    first, second = Machines(), Machines()
    await run(first)
    await run(second)
    assert first.asked == second.asked


async def test_a_lost_batch_is_a_note_and_all_lost_is_an_error():
    found, _ = await run(Machines(lose={1}))
    assert any("batch 1 is lost" in note for note in found.notes)
    assert found.rungs[-1]
    with pytest.raises(BoardError, match="batch 0 is lost"):
        await run(Machines(lose=set(range(50))))


async def test_where_the_last_comparison_is_lost_the_one_before_decides():
    found, _ = await run(Machines(lose={3}))
    assert [len(rung) for rung in found.rungs] == [3]
    report = make_report(generated(*IDS), found.rungs, config={}, arch_spec="", notes=found.notes)
    assert report.winner == "c00"
    assert any("batch 3 is lost" in note for note in report.notes)


async def test_wrong_candidates_go_no_further():
    machines = Machines(wrong={"c01", "c02"})
    found, _ = await run(machines)
    later = {i for ids, _ in machines.asked[3:] for i in ids}
    assert not later & {"c01", "c02"}
    assert found.rungs
    found, _ = await run(Machines(wrong=set(IDS)))
    assert len(found.rungs) == 1


# ---- from coarse to fine ---------------------------------------------------------------------------------------------


def twins(count):
    """Candidates in two dialects each: c00, c01, ... and then their twins d00, d01, ..."""
    ids = [f"{word}{k:02d}" for word in "cd" for k in range(count)]
    return tuple(ids), {name: (f"kind{name[1:]}", f"p{int(name[1:]) % 3}", name[0]) for name in ids}


async def test_one_dialect_of_each_is_measured_first_and_then_the_relatives_of_the_best():
    ids, traits = twins(20)
    machines = Machines()
    found, _ = await run(machines, ids, "c19", traits=traits)
    first = {i for batch, _ in machines.asked[:2] for i in batch}
    # The reference's own twin too: the reference was not chosen for its dialect.
    assert first == {*(i for i in ids if i.startswith("c")), "d19"}
    ((last, _),) = machines.asked[2:]
    # The fastest quarter, and what resembles it most: its twins in the other dialect first of all.
    assert {"c00", "c01", "c02", "c03", "c04"} <= set(last)
    assert {"d00", "d01"} <= set(last)
    assert len(last) == rungs.LAST_SIZE + 1
    assert any("others were likelier to be fast" in note and "d18" in note for note in found.notes)


async def test_few_scouts_still_leave_a_rung_for_their_relatives():
    ids, traits = twins(8)
    machines = Machines()
    await run(machines, ids, "c07", traits=traits)
    assert len(machines.asked) == 2
    assert {"d00", "d01", "d02", "d03"} <= set(machines.asked[1][0])
    # Where all of them fit into one batch, one comparison does it.
    machines = Machines()
    ids, traits = twins(5)
    await run(machines, ids, "c00", traits=traits)
    assert [len(asked) for asked, _ in machines.asked] == [10]


async def test_no_more_are_measured_than_the_limit_allows():
    ids, traits = twins(30)
    for limit in (1, 2, 5, 13, 14, 20, 32):
        machines = Machines()
        found, _ = await run(machines, ids, "c00", traits=traits, limit=limit)
        measured = {i for batch, _ in machines.asked for i in batch}
        assert len(measured) <= limit
        assert len(found.rungs[-1]) == 1
    assert any(i.startswith("d") for i in measured)


async def test_a_small_budget_measures_the_likely_ones_and_says_what_it_left_out():
    ids, traits = twins(60)
    machines = Machines()
    found, _ = await run(machines, ids, "c00", budget=30.0, traits=traits)
    assert len(machines.asked) <= 4
    assert set(machines.asked[0][0]) <= {f"c{k:02d}" for k in range(2 * rungs.BATCH_SIZE + 1)}
    assert all(budget >= rungs.LEAST_BATCH_S for _, budget in machines.asked)
    assert any("c59" in note for note in found.notes)


def test_who_had_no_time_may_come_again_and_who_was_looked_at_may_not():
    ids, traits = twins(20)
    slow = msgspec.structs.replace(beside("d00", 9.0), verdict=Verdict.NO_EVIDENCE, reason="9 times as slow")
    late = CandidateResult(id="d01", verdict=Verdict.NO_EVIDENCE, reason="not built within the budget")
    judged = [evaluation(passed("c00", 1.0), passed("c01", 1.1), slow, late)]
    asked = ["c00", "c01", "d00", "d01"]
    found = rungs.with_relatives(["c00", "c01"], Pool(ids, "c19", traits, limit=5), asked, judged)
    assert found == ["c00", "c01", "d01"]


def test_a_first_look_is_enough_to_go_on_but_not_to_win():
    looked = msgspec.structs.replace(beside("c02", 0.5), verdict=Verdict.NO_EVIDENCE, median_ms=None, min_ms=None)
    measured = [evaluation(beside("c00", 1.0), beside("c01", 0.9), looked, failed("c03"))]
    assert rungs.go_on(measured, "c00") == ["c02", "c01"]
    assert "best so far c01" in rungs.best(measured)
    report = make_report(generated("c00", "c01", "c02"), [measured], config={}, arch_spec="")
    assert report.winner == "c01"


def test_a_worker_measures_in_the_order_of_the_search_and_the_baseline_first(tmp_path, monkeypatch):
    seen = []

    def judge(_task, candidates, *_more):
        seen.extend(candidates)
        return evaluation(*(passed(name, 1.0) for name in candidates))

    monkeypatch.setattr("ytk_gaia.evaluator.judge.evaluate", judge)
    monkeypatch.setattr("ytk_gaia.task_format.read_task", lambda _path: None)
    (tmp_path / "in" / "candidates").mkdir(parents=True)
    for name in ("a", "b", "baseline", "c"):
        (tmp_path / "in" / "candidates" / f"{name}.py").write_text(name)
    task = {"arch_spec": evaluation().arch_spec, "budget_s": 1, "threads": 1, "sandbox_mode": "optional"}
    tasks.evaluate({**task, "baseline": "baseline", "order": ["c", "a", "gone"]}, tmp_path)
    assert seen == ["baseline", "c", "a", "b"]


# ---- what is likely --------------------------------------------------------------------------------------------------


def likely(name, plan="base", together=False, rows=False, parallel=0, dialect="wide", cost=(1000, 1000)):
    return Likely(name, plan, cost[0], cost[1], together, False, rows, parallel, dialect)


def test_likely_candidates_come_first_and_kinds_take_turns():
    found = likely_first(
        [
            likely("twin", dialect="plain", together=True),
            likely("slow-loops", parallel=2),
            likely("jam", together=True),
            likely("jam-again", together=True, parallel=2),
            likely("other-jam", plan="padded", together=True, cost=(2000, 2000)),
            likely("dear", plan="dear", together=True, cost=(100_000, 100_000)),
            likely("unknown", plan="new", together=True, cost=(None, None)),
        ],
        ["wide", "plain"],
    )
    assert found == ["jam", "other-jam", "unknown", "jam-again", "slow-loops", "dear", "twin"]


def test_what_resembles_the_best_comes_before_what_resembles_the_third():
    traits = {"a": "xyz", "b": "xyw", "c": "uvw", "a2": "xy-", "c2": "uv-", "far": "---"}
    assert relatives(["a", "b", "c"], ["far", "c2", "a2"], traits) == ["a2", "c2", "far"]
    assert relatives(["a"], ["unknown"], traits) == []


# ---- scores ----------------------------------------------------------------------------------------------------------


def test_without_a_reference_that_passed_medians_have_to_do():
    assert rungs.score([passed("a", 2.0), beside("b", 0.5)]) == {"a": 2.0, "b": 0.5}
    assert rungs.score([beside("a", 0.9, median=50.0), beside("b", 1.1, median=1.0)]) == {"a": 0.9, "b": 1.1}
    assert rungs.best([evaluation(failed("a"))]) == "none has passed so far"


def test_without_a_side_by_side_comparison_ratios_decide_and_not_medians():
    # "b" was measured in a slow moment: its median is worse, its ratio to the reference at the same moments is better.
    measured = evaluation(beside("a", 1.1, median=1.0), beside("b", 0.9, median=1.5))
    report = make_report(generated("a", "b"), [[measured]], config={}, arch_spec="")
    assert report.winner == "b"
    assert "not compared side by side within the budget" in report.why


def test_a_given_baseline_never_wins_and_the_report_says_how_it_compares():
    mine = beside("c01", 1.25, median=1.25, to="baseline")
    given = msgspec.structs.replace(passed("baseline", 1.0), baseline=beside("x", 1.0, to="baseline").baseline)
    report = make_report(generated("c01"), [[evaluation(given, mine)]], config={"baseline_ms": 2.5}, arch_spec="")
    assert report.winner == "c01"
    assert report.reference == "baseline"
    assert "against baseline side by side 1.250x" in report.why
    assert "0.50x of the given baseline of 2.5 ms" in report.why
    assert [c.id for c in report.candidates] == ["c01", "baseline"]


# ---- pruning ---------------------------------------------------------------------------------------------------------


def estimate(name, traffic, iterations, like=("s",), parallel=2, form=None):
    return Estimate(name, traffic, iterations, like, parallel, form if form is not None else (name,))


def test_only_what_is_far_worse_in_one_and_no_better_in_the_other_goes_out():
    candidates = [
        estimate("base", 1000, 1000),
        estimate("streams", 100, 1000),
        estimate("recomputes", 50, 5000),
        estimate("other-schedule", 9000, 9000, like=("t",)),
        estimate("unknown", None, None),
        estimate("hopeless", 300, 90000),
    ]
    found = prune(candidates, threads=2)
    assert set(found) == {"base", "hopeless"}
    assert found["base"] == "moves 1000 bytes where streams moves 100, with no less work"
    assert "recomputes" in found["hopeless"] or "streams" in found["hopeless"]
    assert set(prune(candidates, threads=2, keep="base")) == {"hopeless"}


def test_on_one_thread_a_team_of_threads_is_pointless():
    candidates = [estimate(f"p{k}", 10, 10, parallel=k, form=("same",)) for k in (2, 1, 0)]
    assert set(prune(candidates, threads=1)) == {"p2", "p1"}
    assert prune(candidates, threads=0) == {}
    assert set(prune(candidates, threads=1, keep="p2")) == {"p1"}


def test_a_result_without_times_scores_nothing():
    assert rungs.score([CandidateResult(id="a", verdict=Verdict.PASSED)]) == {}
