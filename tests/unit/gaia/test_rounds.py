"""Who gets further processes, and what is measured where time ends; without processes."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from ytk_gaia.evaluator import finals, rounds, screening, side_by_side
from ytk_gaia.evaluator.floor import Floors
from ytk_gaia.evaluator.options import JudgeOptions
from ytk_gaia.evaluator.track import Track
from ytk_gaia.evaluator.verdicts import Verdict

TASK = SimpleNamespace(spec=SimpleNamespace(rounds=2))
REFERENCE = SimpleNamespace(foreign_libraries=frozenset)
FLOORS = Floors(null_ns=1000, around_ns=10_000, idle_ns=0, roofline_ns=100_000)


@pytest.fixture
def measured(monkeypatch):
    """Rounds without processes; gives who was measured, in order. ``clock``: seconds that a round takes."""
    order, clock = [], SimpleNamespace(now=0.0, round_s=0.0)

    def run(track, *_more):
        order.append(track.id)
        clock.now += clock.round_s
        track.times_ns += [track.speed, track.speed + 10]
        track.unseen_ns += [1000]
        track.rounds += 1

    monkeypatch.setattr(rounds, "run_round", run)
    monkeypatch.setattr(rounds, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return order, clock


def track(name, speed):
    made = Track(name)
    made.speed = speed
    return made


def run(tracks, deadline=1e9, baseline=""):
    rounds.run_rounds(tracks, TASK, 1, JudgeOptions(baseline=baseline), REFERENCE, deadline, FLOORS)
    return {t.id: t for t in tracks}


def test_the_hopeless_get_no_second_process_and_the_fastest_go_first(measured):
    order, _ = measured
    found = run(
        [track("base", 900_000), track("slow", 400_000), track("b", 150_000), track("a", 100_000)], baseline="base"
    )
    assert order[:4] == ["base", "slow", "b", "a"]
    assert order[4:7] == ["base", "a", "b"]
    assert found["slow"].verdict is Verdict.NO_EVIDENCE
    assert found["slow"].reason == "not measured further: 4.0 times as slow as a in its first process"
    assert found["base"].running


def test_a_clock_that_lies_puts_nobody_out(measured):
    found = run([track("liar", 2_000), track("honest", 100_000)])
    assert found["honest"].rounds == 2
    assert found["honest"].running


def test_where_time_ends_early_the_fastest_of_those_looked_at_have_their_processes(measured):
    order, clock = measured
    clock.round_s = 1.0
    found = run([track(f"t{k}", 100_000 + 10_000 * (9 - k)) for k in range(10)], deadline=10.0)
    # The first look ends at half of the time, the second begins with the fastest.
    assert order[:6] == [f"t{k}" for k in range(6)]
    assert order[6:9] == ["t5", "t4", "t3"]
    assert [t.reason for t in found.values() if not t.rounds] == ["0 of 2 processes within the budget"] * 4
    done = {t.id for t in found.values() if t.rounds >= rounds.MIN_ROUNDS}
    assert {"t5", "t4", "t3"} <= done
    assert all(t.verdict is Verdict.NO_EVIDENCE for t in found.values() if t.id not in done)


def looked(name, *times):
    made = Track(name)
    made.looked_ns, made.looked_unseen_ns = dict(enumerate(times)), [1000] * len(times)
    return made


def test_a_first_look_chooses_the_five_fastest_and_keeps_how_far_the_others_were_behind():
    tracks = [looked("base", 900_000, 900_000), *(looked(f"t{k}", 100_000 + 10_000 * k) for k in range(8))]
    kept = screening.worth_measuring(tracks[::-1], "base", FLOORS)
    assert [t.id for t in kept] == ["base", "t0", "t1", "t2", "t3", "t4"]
    assert tracks[6].verdict is Verdict.NO_EVIDENCE
    assert tracks[6].reason == "not measured in full: 1.5 times as slow as t0 in 1 calls"
    # Few, but far behind.
    tracks = [looked("a", 100_000), looked("b", 290_000), looked("c", 310_000)]
    assert [t.id for t in screening.worth_measuring(tracks, "", FLOORS)] == ["a", "b"]


def test_who_is_under_suspicion_takes_no_place_and_is_measured_all_the_same():
    tracks = [*(looked(f"liar{k}", 1_000) for k in range(9)), looked("a", 100_000), looked("b", 150_000)]
    kept = screening.worth_measuring(tracks, "", FLOORS)
    assert {t.id for t in kept} == {t.id for t in tracks}


def test_looks_are_compared_with_the_baseline_and_end_with_the_time(monkeypatch):
    clock = SimpleNamespace(now=0.0)

    def look(track, *_more):
        clock.now += 1.0
        track.looked_ns = {5: track.speed, 6: track.speed + 10, 7: track.speed}
        track.looked_unseen_ns = [1000]

    monkeypatch.setattr(screening, "_look", look)
    monkeypatch.setattr(screening, "time", SimpleNamespace(monotonic=lambda: clock.now))
    tracks = [track("base", 400_000), *(track(f"t{k}", 100_000 + 1000 * k) for k in range(9))]
    options = JudgeOptions(baseline="base")
    kept = screening.screen(tracks, TASK, 1, options, REFERENCE, 7.5, FLOORS)
    assert [t.id for t in kept] == ["base", "t0", "t1", "t2", "t3", "t4"]
    results = {t.id: t.result() for t in tracks}
    assert results["t6"].baseline.median == pytest.approx(0.265)
    assert results["t7"].baseline is None
    assert results["t7"].reason == "not looked at within the budget"
    # Of few all are measured in full, whatever the time.
    few = [track(f"t{k}", 100_000) for k in range(screening.KEPT)]
    assert screening.screen(few, TASK, 1, JudgeOptions(), REFERENCE, 0.0, FLOORS) == few


def test_finalists_are_compared_until_there_is_no_doubt(monkeypatch):
    passes = []

    def one_pass(tracks, *_more):
        passes.append(len(tracks))
        return finals.Pairs([[t.speed + k for k in range(5)] for t in tracks], [[1] for _ in tracks])

    monkeypatch.setattr(side_by_side, "_one_pass", one_pass)
    for speeds, repeats in (((100_000, 140_000), 1), ((100_000, 100_000), 3), ((100_000,), 1)):
        tracks = [track(f"t{k}", speed) for k, speed in enumerate(speeds)]
        for each in tracks:
            each.times_ns, each.rounds = [each.speed], 2
        passes.clear()
        side_by_side.compare(tracks, None, JudgeOptions(), None, time.monotonic() + 1000)
        assert len(passes) == 2 * repeats
        assert len(tracks[0].times_ns) == len(passes) * 5
    passes.clear()
    side_by_side.compare(tracks, None, JudgeOptions(), None, time.monotonic() - 1)
    assert not passes
