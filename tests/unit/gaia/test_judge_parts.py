"""The judge's parts one by one: floors, rates of the machine, halving, edges, other libraries, the worker's health."""

from __future__ import annotations

import os

import msgspec
import pytest

from ytk_core.errors import BoardError
from ytk_core.formats.kernel_bundle import parse_bundle
from ytk_core.formats.plugin_meta import Constraints, InputDecl
from ytk_gaia.evaluator import compiled, floor, halving, judge, machine_rates, rounds
from ytk_gaia.evaluator.arena import Kind, Placement, plan
from ytk_gaia.evaluator.build import build
from ytk_gaia.evaluator.compiled import Compiled
from ytk_gaia.evaluator.edges import _extents
from ytk_gaia.evaluator.floor import Floors, suspicion
from ytk_gaia.evaluator.machine_rates import Rate, best_rate, machine_id, remember
from ytk_gaia.evaluator.options import JudgeOptions
from ytk_gaia.evaluator.reference import build_reference, floor_bytes
from ytk_gaia.evaluator.used import foreign
from ytk_gaia.evaluator.verdicts import Verdict

from fakes.judge_kernels import ARCH, COLUMNS, HONEST, ROWS, kernel, make_meta, make_task
from fakes.judge_limits import BUDGET_S, PATIENT

FLOORS = Floors(null_ns=1000, around_ns=40_000, idle_ns=30_000, roofline_ns=10_000)


# ---- times -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "unseen", "idle", "words"),
    [
        ([3500], [50_000], [30_000], ""),
        ([2500], [50_000], [30_000], "below the floor of 3000 ns"),
        ([9000], [400_000], [30_000], "did not report"),
        ([9000], [50_000], [9_000_000, 0], "between two calls"),
        # One call that the machine disturbed proves nothing: the least of them counts.
        ([9000, 9000], [400_000, 50_000], [900_000, 30_000], ""),
    ],
)
def test_what_is_impossible_about_times(times, unseen, idle, words):
    found = suspicion(times, unseen, idle, FLOORS)
    assert (words in found) if words else found == ""


def test_one_lucky_reading_is_a_suspicion_and_no_verdict():
    times = [100, 9000, 9000]
    assert suspicion(times, [0], [0], FLOORS)
    assert not suspicion(times, [0], [0], FLOORS, typical=True)


def test_a_later_look_at_the_references_only_makes_the_floor_more_lenient():
    slow_moment = Floors(null_ns=9000, around_ns=400_000, idle_ns=0, roofline_ns=90_000)
    both = FLOORS.lenient(slow_moment)
    assert both.floor_ns == FLOORS.floor_ns
    assert (both.around_ns, both.idle_ns) == (400_000, 30_000)


def test_an_honest_kernel_below_a_floor_of_a_slow_moment_passes(tmp_path, monkeypatch):
    """The references are far too slow when they are first measured: every time looks impossible until the second look."""
    plain, seen = judge._references, []

    def first_slow(reference, options):
        found = plain(reference, options)
        seen.append(found)
        return msgspec_replace(found, roofline_ns=1e12) if len(seen) == 1 else found

    monkeypatch.setattr(judge, "_references", first_slow)
    options = JudgeOptions(budget_s=BUDGET_S, threads=1, mode="optional", limits=PATIENT, in_full=True)
    result = judge.evaluate(make_task(), {"honest": kernel(HONEST)}, ARCH, tmp_path, options).candidates[0]
    assert len(seen) > 1
    assert result.verdict is Verdict.PASSED, result.reason
    monkeypatch.setattr(floor, "PASSES", 2)
    monkeypatch.setattr(judge, "_references", lambda *_args: FLOORS.__class__(1, 10**9, 10**9, 1e12))
    result = judge.evaluate(make_task(), {"honest": kernel(HONEST)}, ARCH, tmp_path / "b", options).candidates[0]
    assert result.verdict is Verdict.IMPOSSIBLE_TIME
    assert "2 of 2 further measurements" in result.reason


def msgspec_replace(floors, **changes):
    from dataclasses import replace

    return replace(floors, **changes)


# ---- the machine's record --------------------------------------------------------------------------------------------


def rate(bytes_per_ns, machine="m", threads=1, size_class=20):
    return Rate(machine=machine, threads=threads, size_class=size_class, bytes_per_ns=bytes_per_ns)


def test_the_best_rate_of_this_machine_and_size_counts(tmp_path):
    path = tmp_path / "deep" / "rates.jsonl"
    for one in (rate(5.0), rate(9.0), rate(99.0, machine="other"), rate(98.0, threads=2), rate(97.0, size_class=21)):
        remember(path, one)
    assert best_rate(path, "m", 1, 1 << 20) == 9.0
    assert best_rate(path, "m", 1, (1 << 21) - 1) == 9.0
    assert best_rate(path, "m", 1, 1 << 19) == 0.0
    assert best_rate(None, "m", 1, 1) == best_rate(tmp_path / "none", "m", 1, 1) == 0.0


def test_a_half_written_line_loses_only_itself(tmp_path):
    path = tmp_path / "rates.jsonl"
    remember(path, rate(5.0))
    with path.open("ab") as file:
        file.write(b'{"machine":"m","thr')
    remember(path, rate(7.0))
    assert path.read_bytes().startswith(msgspec.json.encode(rate(5.0)))
    assert best_rate(path, "m", 1, 1 << 20) == 7.0


def test_a_machine_is_its_device_and_processor(tmp_path):
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: Some CPU 3000\n")
    assert machine_id("cpu-1", info) == "cpu-1, Some CPU 3000"
    assert machine_id("", tmp_path / "none") == "this machine"


def test_the_roofline_is_the_record_where_this_moment_is_slower(tmp_path):
    task = make_task(timed=2, shape=(256, 256))
    spec = msgspec.structs.replace(task.spec, must_read_bytes=256 * 256 * 4)
    task = type(task)(spec, task.samples)
    size = floor_bytes(task)
    assert size == 2 * 256 * 256 * 4
    meta = make_meta(inputs=[InputDecl(name="x", rank=2, dims=[256, 256]), InputDecl(name="w", rank=1, dims=[256])])
    like = msgspec.structs.replace(parse_bundle(kernel(HONEST), "x"), meta=meta)
    reference = build_reference(like, task, ARCH, tmp_path, 1, "optional", PATIENT)
    path = tmp_path / "rates.jsonl"
    measured = floor.measure(reference, path, "m")
    assert best_rate(path, "m", 1, size) == pytest.approx(size / measured.roofline_ns)
    assert measured.floor_ns < measured.roofline_ns
    remember(path, Rate(machine="m", threads=1, size_class=machine_rates.size_class(size), bytes_per_ns=400.0))
    assert floor.measure(reference, path, "m").roofline_ns == pytest.approx(size / 400.0)
    lines = path.read_bytes().splitlines()
    reference.check_health("nothing")
    # A worker on which not even the empty kernel runs is sick.
    reference.null.write_bytes(b"no library")
    with pytest.raises(BoardError, match="after a crash, ") as caught:
        reference.check_health("a crash")
    assert caught.value.code == "worker_sick"
    assert path.read_bytes().splitlines() == lines


# ---- who goes on -----------------------------------------------------------------------------------------------------


def test_the_faster_half_goes_on_with_ties_and_the_baseline():
    times = {f"c{k}": float(k + 1) for k in range(16)}
    assert halving.survivors(times) == {f"c{k}" for k in range(8)}
    assert halving.survivors(times, baseline="c15") == {f"c{k}" for k in range(8)} | {"c15"}
    assert "c8" in halving.survivors(times | {"c8": 8.1})
    assert halving.survivors({"a": 1.0, "b": 9.0}) == {"a", "b"}
    assert halving.survivors({}) == set()


# ---- contract edges --------------------------------------------------------------------------------------------------


def test_extents_just_outside_the_contract():
    spec = make_task().spec

    def inputs(meta):
        return [f for each in _extents(meta, spec) for f in each.change.fields if f[0] == "in"]

    assert [f[1:2] + f[3:] for f in inputs(make_meta())] == [
        (0, 0, ROWS - 1), (0, 0, ROWS + 1), (0, 1, COLUMNS - 1), (0, 1, COLUMNS + 1), (1, 0, COLUMNS - 1), (1, 0, COLUMNS + 1),
    ]  # fmt: skip
    free = [InputDecl(name="x", rank=2, dims=[None, None]), InputDecl(name="w", rank=1, dims=[None])]
    meta = make_meta(inputs=free, constraints=Constraints(divisible=[(0, 1, COLUMNS)]))
    assert [f[4] for f in inputs(meta)] == [-1, -1, -1, COLUMNS - 1]
    assert any(f"divisible by {COLUMNS}" in each.declared for each in _extents(meta, spec))


def test_a_divisor_that_the_region_does_not_have_is_a_wrong_shape(tmp_path):
    constraints = Constraints(divisible=[(0, 1, 2)])
    options = JudgeOptions(budget_s=BUDGET_S, mode="optional", limits=PATIENT)
    text = kernel(HONEST, constraints=constraints)
    result = judge.evaluate(make_task(), {"even": text}, ARCH, tmp_path, options).candidates[0]
    assert result.verdict is Verdict.WRONG_SHAPE
    assert f"divisible by 2, and the region has {COLUMNS}" in result.reason


@pytest.mark.parametrize("alignment", [1, 4, 64, 256])
def test_no_buffer_is_aligned_better_than_the_contract_asks(alignment):
    layout = plan([4096, 100, 128], [512], 64, Placement.END, alignment)
    for kind in (Kind.INPUT, Kind.OUTPUT):
        for buffer in layout.of(kind):
            assert buffer.first <= buffer.offset
            assert buffer.offset + buffer.size <= buffer.last
            assert buffer.offset % alignment == 0
            # Whole pages too: they would be aligned to a page.
            assert buffer.offset % (2 * alignment) != 0


def test_a_candidate_is_compiled_once_and_again_when_anything_differs(tmp_path):
    kept = Compiled(tmp_path / "kept")
    bundle, other = parse_bundle(kernel(HONEST), "x"), parse_bundle(kernel(HONEST, "// other"), "x")
    seconds = []
    for number, (each, flags) in enumerate([(bundle, []), (bundle, []), (other, []), (bundle, ["-O2"])]):
        directory = tmp_path / str(number)
        directory.mkdir()
        meta = msgspec.structs.replace(each.meta, compile_flags=flags)
        built = build(msgspec.structs.replace(each, meta=meta), ARCH, directory, "optional", kept)
        assert built.library is not None
        assert built.library.parent == directory
        seconds.append(built.seconds)
    assert [second == 0.0 for second in seconds] == [False, True, False, False]
    assert (tmp_path / "0" / "kernel.so").read_bytes() == (tmp_path / "1" / "kernel.so").read_bytes()


def test_what_does_not_compile_is_not_kept_and_the_oldest_go(tmp_path, monkeypatch):
    kept = Compiled(tmp_path / "kept")
    (tmp_path / "d").mkdir()
    assert build(parse_bundle(kernel("no C++"), "x"), ARCH, tmp_path / "d", "optional", kept).library is None
    assert list((tmp_path / "kept").iterdir()) == []
    monkeypatch.setattr(compiled, "KEPT", 2)
    library = tmp_path / "lib.so"
    for number in range(4):
        library.write_text(str(number))
        kept.keep(f"k{number}", library)
        os.utime(tmp_path / "kept" / f"k{number}.so", (number, number))
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["k2.so", "k3.so"]
    assert not kept.take("k0", library)
    assert kept.take("k3", library)
    assert library.read_text() == "3"


# ---- used or not -----------------------------------------------------------------------------------------------------


def test_only_the_languages_own_libraries_are_no_strangers():
    mapped = [
        "/w/kernel.so",
        "/lib/libgomp.so.1",
        "/lib/libm.so.6",
        "/usr/lib/libopenblas.so.0",
        "/usr/lib/locale/x",
        "/p/_x.so",
    ]
    assert foreign(mapped, ["/p/_x.so"]) == ["/usr/lib/libopenblas.so.0"]


def test_the_worker_is_tried_after_a_crash_before_it_takes_more(tmp_path, monkeypatch):
    tried = []

    def sick(_self, after):
        tried.append(after)
        raise BoardError("sick", code="worker_sick")

    monkeypatch.setattr(rounds.Reference, "check_health", sick)
    options = JudgeOptions(budget_s=BUDGET_S, threads=1, mode="optional", limits=PATIENT, in_full=True)
    texts = {"crashes": kernel("*(volatile int*)0 = 1;"), "honest": kernel(HONEST)}
    with pytest.raises(BoardError, match="sick"):
        judge.evaluate(make_task(), texts, ARCH, tmp_path, options)
    assert tried == ["crashes ended with RUNTIME_ERROR"]


def test_every_candidate_is_compared_with_the_baseline(tmp_path):
    options = JudgeOptions(
        budget_s=BUDGET_S, threads=1, mode="optional", baseline="plain", limits=PATIENT, in_full=True
    )
    slow = kernel(HONEST.replace("for (", "for (volatile int k = 0; k < 200000; ++k) {} for (", 1))
    texts = {"plain": kernel(HONEST), "slow": slow, "wrong": kernel("")}
    evaluation = judge.evaluate(make_task(), texts, ARCH, tmp_path, options)
    by_id = {c.id: c for c in evaluation.candidates}
    assert evaluation.baseline == "plain"
    ratio = by_id["slow"].baseline
    assert ratio is not None
    assert (ratio.to, ratio.pairs >= 4) == ("plain", True)
    assert 1 < ratio.low <= ratio.median <= ratio.high
    assert by_id["plain"].baseline.median == 1.0
    assert by_id["wrong"].baseline is None
