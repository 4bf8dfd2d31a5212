"""Rules of the judge without a process: rooflines, clocks, waiting, filters, contracts and their edges."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest

from ytk_core.formats.kernel_bundle import parse_bundle
from ytk_core.formats.plugin_meta import BY_HAND, Extent, InputDecl
from ytk_gaia.evaluator import candidate_runner, edges, ranges, waiting
from ytk_gaia.evaluator.contract import contract_problem, variant_of
from ytk_gaia.evaluator.floor import Floors, InARow, rooflines, suspicion, times_in_a_row
from ytk_gaia.evaluator.session import Attempt
from ytk_gaia.evaluator.system_calls import before_calling, before_loading, filters
from ytk_gaia.evaluator.untouched import rewritten
from ytk_gaia.evaluator.verdicts import CandidateResult, Verdict
from ytk_gaia.handlers import _roofline_figures
from ytk_gaia.report import _roofline
from ytk_gaia.task_format import SampleShapes

from fakes.judge_kernels import HONEST, kernel, make_meta, make_task

FLOORS = Floors(null_ns=1000, around_ns=40_000, idle_ns=0, roofline_ns=0)


def dynamic_task(low=64, high=512):
    """The task with a first axis that differs between samples: captured at 256."""
    task = make_task(timed=2, shape=(256, 256))
    shapes = [SampleShapes(inputs=((n, 256), (256,)), outputs=((n, 256),)) for n in (low, high)]
    limits = [
        msgspec.structs.replace(s, shapes=sh, timed=False) for s, sh in zip(task.spec.samples[:2], shapes, strict=True)
    ]
    extents = (Extent(input=0, axis=0, min=low, opt=256, max=high),)
    spec = msgspec.structs.replace(
        task.spec, samples=(*limits, *task.spec.samples[2:]), must_read_bytes=256 * 256 * 4, extents=extents
    )
    return type(task)(spec, task.samples)


# ---- roofline --------------------------------------------------------------------------------------------------------


def test_every_shape_has_its_floor_and_the_timed_one_comes_first():
    found = rooflines(dynamic_task(), 10.0, 8.0)
    assert [each.shapes for each in found] == ["256x256, 256", "64x256, 256", "512x256, 256"]
    assert [each.bytes for each in found] == [2 * 256 * 256 * 4, 64 * 256 * 4, 512 * 256 * 4]
    first = found[0]
    assert (first.measured_gb_s, first.peak_gb_s) == (8.0, 10.0)
    assert first.roofline_ms == pytest.approx(first.bytes / 10e9 * 1e3)
    assert first.floor_ms == pytest.approx(0.3 * first.roofline_ms)
    assert rooflines(dynamic_task(), 0.0, 0.0) == ()
    assert rooflines(make_task(), 10.0, 8.0) == ()  # seven kilobytes take no time that one could tell


def test_the_report_says_how_much_the_winner_reached():
    class Judged:
        rooflines = rooflines(dynamic_task(), 10.0, 8.0)
        candidates = (CandidateResult(id="w", verdict=Verdict.PASSED, median_ms=0.1, min_ms=0.09),)

    found = _roofline([Judged], Judged.candidates)
    assert found["share"] == pytest.approx(Judged.rooflines[0].roofline_ms / 0.1)
    assert _roofline([Judged], ()) is None

    class Report:
        roofline = found

    figures = _roofline_figures(Report)
    assert figures["roofline"].startswith("52% of 10.0 GB/s (0.0524 ms for 524288 bytes)")
    assert figures["bandwidth"].startswith("8.0 GB/s measured, 10.0 GB/s at best; no time below 0.0157 ms")
    Report.roofline = None
    assert _roofline_figures(Report) == {}


# ---- clocks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "row", "words"),
    [
        ([100_000], InARow(100, 10_000_000, 10_100_000, 10_000_000), ""),
        ([50_000], InARow(100, 5_000_000, 10_000_000, 10_000_000), "of which the process reported 5.000 ms"),
        # Honest in a row, and false alone.
        ([50_000], InARow(100, 10_000_000, 10_000_000, 10_000_000), "and was reported with 0.0500 ms alone"),
        # A process that had to wait for a busy machine was not slow.
        ([100_000], InARow(100, 30_000_000, 30_100_000, 9_000_000), ""),
    ],
)
def test_calls_in_a_row_hold_a_clock_to_its_word(times, row, words):
    found = suspicion(times, [0], [0], FLOORS, [row])
    assert (words in found) if words else found == ""
    assert suspicion(times, [0], [0], FLOORS, [row, InARow(100, 10_000_000, 10_000_000, 1_000_000)]) == ""


def test_only_short_calls_are_made_in_a_row():
    assert times_in_a_row(10_000) == 400
    assert times_in_a_row(1_000_000) == 10
    assert times_in_a_row(3_000_000) == 0


def test_a_limit_grows_by_what_the_machine_took():
    assert waiting.allowed_s(20, 0) == 20
    assert waiting.allowed_s(20, 5) == 25
    assert waiting.allowed_s(1, 1000) == 10
    assert waiting.waited_s(2**22 + 1) == 0.0


@pytest.mark.parametrize(("text", "waited_ns"), [("1 2500 3\n", 2500), ("", 0), ("1 x 3", 0), (None, 0)])
def test_the_wait_for_a_processor_is_the_second_figure_of_the_scheduler(tmp_path, text, waited_ns):
    path = tmp_path / "schedstat"
    if text is not None:
        path.write_text(text)
    assert waiting._run_queue_ns(path) == waited_ns


# ---- the process -----------------------------------------------------------------------------------------------------


def test_code_that_is_no_longer_the_files_is_named():
    clean = ["7f00-7f01 r-xp 00002000 fe:00 26 /usr/lib/libc.so.6", "Anonymous:             0 kB"]
    data = ["7f01-7f02 rw-p 00003000 fe:00 26 /usr/lib/libc.so.6", "Anonymous:             8 kB"]
    own = ["7f03-7f04 r-xp 00000000 00:00 0 ", "Anonymous:             4 kB"]
    assert rewritten([*clean, *data, *own]) == ""
    dirty = [clean[0], "Anonymous:             4 kB"]
    assert rewritten([*data, *dirty]) == "/usr/lib/libc.so.6"
    vdso = ["7f05-7f06 r-xp 00000000 00:00 0                          [vdso]", "Anonymous:             4 kB"]
    assert rewritten(vdso) == "[vdso]"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_filters_are_whole_programs_and_end_in_an_answer(machine):
    for program in (before_loading(machine), before_calling(machine)):
        assert len(program) % 8 == 0
        steps = [program[k : k + 8] for k in range(0, len(program), 8)]
        assert steps[-1][:2] == b"\x06\x00"
        for place, step in enumerate(steps):
            assert place + 1 + max(step[2], step[3]) < len(steps) or step[:2] == b"\x06\x00"
    assert filters("riscv64") == "-"


# ---- contracts -------------------------------------------------------------------------------------------------------


def of(**changes):
    inputs = [InputDecl(name="x", rank=2, dims=[None, 256]), InputDecl(name="w", rank=1, dims=[256])]
    return make_meta(**({"inputs": inputs} | changes))


def test_one_step_outside_of_a_range_changes_what_belongs_together():
    task = dynamic_task()
    meta = of(extents=list(task.spec.extents))
    found = list(ranges.outside(meta, task.spec))
    assert [(spec.inputs[0].shape, spec.outputs[0].shape) for _, spec in found] == [((63, 256),) * 2, ((513, 256),) * 2]
    assert found[0][0] == "with 63 at input 0 axis 0, outside of its range 64 to 512"
    assert list(ranges.outside(of(), task.spec)) == []
    # Of two extents nobody knows whether they depend on one another.
    other = Extent(input=1, axis=0, min=1, opt=256, max=512)
    assert list(ranges.outside(of(extents=[*task.spec.extents, other]), task.spec)) == []


def test_a_range_narrower_than_the_regions_does_not_serve_it():
    task = dynamic_task()
    bundle = parse_bundle(kernel(HONEST), "x")
    narrow = Extent(input=0, axis=0, min=64, opt=256, max=300)
    found = contract_problem(msgspec.structs.replace(bundle, meta=of(extents=[narrow])), task)
    dynamic = msgspec.structs.replace(task.spec.inputs[0], dynamic_axes=(0,))
    assert found is not None
    assert found[0] is Verdict.WRONG_SHAPE
    assert "declared 64 to 300, and the region has 64 to 512" in found[1]
    spec = msgspec.structs.replace(task.spec, inputs=(dynamic, task.spec.inputs[1]))
    fits = msgspec.structs.replace(bundle, meta=of(extents=list(task.spec.extents)))
    assert contract_problem(fits, type(task)(spec, task.samples)) is None


def test_the_variant_with_the_tasks_types_is_called():
    meta = make_meta()
    other = msgspec.structs.replace(
        meta.variants[0], id="h", inputs=[msgspec.structs.replace(t, dtype="float16") for t in meta.variants[0].inputs]
    )
    assert variant_of(msgspec.structs.replace(meta, variants=[other, meta.variants[0]]), make_task().spec) == 1
    assert variant_of(msgspec.structs.replace(meta, variants=[other]), make_task().spec) is None


def test_a_kernel_outside_its_range_that_refuses_must_not_have_written():
    task = dynamic_task()

    class Track:
        bundle = msgspec.structs.replace(parse_bundle(kernel(HONEST), "x"), meta=of(extents=list(task.spec.extents)))

    class Process:
        answer = Attempt(3, (), "", False)
        asked = ()

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def attempt(self, inputs, _change):
            Process.asked = (*self.asked, [a.shape for a in inputs])
            return self.answer

    ranges.check_ranges(Track, task, lambda _spec: Process())
    assert Process.asked == ([(63, 256), (256,)], [(513, 256), (256,)])
    Process.answer = Attempt(3, (), "output 0", False)
    with pytest.raises(
        ranges.CandidateFaultError, match=r"with 63 at input 0 axis 0, outside .* had written to output 0"
    ):
        ranges.check_ranges(Track, task, lambda _spec: Process())


def test_a_kernel_by_hand_was_promised_that_the_call_is_checked_before():
    bundle = parse_bundle(kernel(HONEST), "x")
    generator = msgspec.structs.replace(bundle.meta.generator, strategy=BY_HAND)

    class Process:
        threads, workspace_bytes = 2, 64
        asked = ()

        def attempt(self, _inputs, change):
            self.asked = (*self.asked, change)
            return Attempt(candidate_runner.NOT_TRIED, (), "", False)

    for meta, least, most in ((bundle.meta, 11, 30), (msgspec.structs.replace(bundle.meta, generator=generator), 2, 2)):
        process = Process()
        track = SimpleNamespace(bundle=msgspec.structs.replace(bundle, meta=meta), variant=0)
        edges.check_edges(process, track, make_task())
        assert [change.threads for change in process.asked if change.threads] == [1, 3]
        assert least <= len(process.asked) <= most
