"""Faults seeded into the judge: with each, a kernel of the exploit suite gets away with something, so the suite has teeth.

One fault at a time takes one check out of the judge. The suite (test_evaluator) would fail then, because the kernel named here
no longer gets the verdict, or the reason, that its case asks for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import pytest

from ytk_core.formats.kernel_bundle import parse_bundle
from ytk_gaia.evaluator import arena, child, compare, edges, floor, judge, prepare, rounds, session, side_by_side
from ytk_gaia.evaluator.floor import Floors
from ytk_gaia.evaluator.options import JudgeOptions
from ytk_gaia.evaluator.reference import build_reference
from ytk_gaia.evaluator.track import Track
from ytk_gaia.evaluator.verdicts import Verdict
from ytk_gaia.task_format import Task

from fakes.judge_kernels import ARCH, Case, cheats, make_task
from fakes.judge_limits import BUDGET_S, PATIENT

CASES = cheats("/etc/hostname", 1)


def no_canaries(patch):
    patch.setattr(arena.Arena, "damaged", lambda _self: "")


def no_guard_pages(patch):
    plan = session.plan
    patch.setattr(session, "plan", lambda *args: replace(plan(*args), guards=()))


def writable_inputs(patch):
    mapping = session.Session._mapping
    patch.setattr(session.Session, "_mapping", lambda self, layout: mapping(self, layout) | {"read_only": []})


def inputs_not_compared(patch):
    def inspect(_self, at, _fed):
        if at.damaged():
            raise session.CandidateFaultError(Verdict.OUT_OF_BOUNDS, "beside")

    patch.setattr(session.Session, "_inspect", inspect)


def bits_not_compared(patch):
    patch.setattr(rounds, "digest_bytes", lambda _raw: "the same")


def only_the_first_calls_judged(patch):
    judge_call, counts = rounds.judge_call, {}

    def first_only(track, task, sample, call):
        counts[track.id] = counts.get(track.id, 0) + 1
        if counts[track.id] <= 3:
            judge_call(track, task, sample, call)

    patch.setattr(rounds, "judge_call", first_only)
    patch.setattr(side_by_side, "judge_call", first_only)


def last_element_not_compared(patch):
    def all_but_one(got, want, *args):
        got = got.copy()
        got.reshape(-1)[-1] = want.reshape(-1)[-1]
        return compare_one(got, want, *args)

    compare_one = compare.compare
    patch.setattr(compare, "compare", all_but_one)


def nan_is_right(patch):
    compare_one = compare.compare
    patch.setattr(compare, "compare", lambda got, want, *a: compare_one(np.where(np.isnan(got), want, got), want, *a))


def loose_limits(patch):
    judge_sample = rounds.judge_sample

    def loose(task, sample, raws):
        limits = tuple(msgspec.structs.replace(s, atol=(0.2,)) for s in task.spec.samples)
        return judge_sample(Task(msgspec.structs.replace(task.spec, samples=limits), task.samples), sample, raws)

    patch.setattr(rounds, "judge_sample", loose)
    patch.setattr(edges, "judge_sample", loose)


def no_floor(patch):
    patch.setattr(floor.Floors, "floor_ns", property(lambda _self: 0.0))


def only_the_process_clock(patch):
    patch.setattr(rounds, "unseen_ns", lambda *_args: 0)


def no_control(patch):
    patch.setattr(session.Session, "control", lambda *_args: None)


def foreign_libraries_ignored(patch):
    patch.setattr(rounds, "foreign", lambda *_args: [])


def edges_not_tried(patch):
    patch.setattr(rounds, "check_edges", lambda *_args: None)


def no_sandbox(patch):
    def plain(argv, _policy, _mode, *, env):
        return ["env", *(f"{k}={v}" for k, v in env.items()), *argv]

    patch.setattr(child, "wrap", plain)


def late_look(patch):
    """Outputs are taken from live memory some time after the call, not as they were when it returned."""
    call = session.Session.call

    def from_live_memory(self, inputs, **options):
        # A judge that looks late sees a late thread's work as if it had been done in time.
        array_equal, copied = np.array_equal, self._arena.layout.of(arena.Kind.OUTPUT)
        damaged = self._arena.damaged

        def unwritten(buffer):
            view = self._arena.view(buffer)
            return bool((view == view[0]).all())

        def wait(*_args):
            deadline = time.monotonic() + PATIENT.call_s
            while any(map(unwritten, copied)) and time.monotonic() < deadline:
                time.sleep(0.002)
            time.sleep(0.02)  # the thread is seen in the middle of its work
            for out, snap in zip(copied, self._arena.layout.of(arena.Kind.SNAPSHOT), strict=True):
                self._arena.view(snap)[:] = self._arena.view(out)
            return damaged()

        self._arena.damaged = wait
        try:
            assert array_equal is np.array_equal
            return call(self, inputs, **options)
        finally:
            del self._arena.damaged

    patch.setattr(session.Session, "call", from_live_memory)
    # The checksum of what there was in time would show it as well.
    patch.setattr(session.Session, "_check_late", lambda *_args: None)


@dataclass(frozen=True)
class Fault:
    seed: Callable[[pytest.MonkeyPatch], None]
    escapes: str
    """The kernel of the suite that gets away with it."""


FAULTS = [
    Fault(no_canaries, "writes_one_after"),
    Fault(no_guard_pages, "writes_far_after"),
    Fault(writable_inputs, "mutates_and_restores"),
    Fault(inputs_not_compared, "unprotects_and_mutates"),
    Fault(bits_not_compared, "differs_between_calls"),
    Fault(only_the_first_calls_judged, "first_calls_only"),
    Fault(last_element_not_compared, "all_but_the_last"),
    Fault(nan_is_right, "nan_wildcard"),
    Fault(loose_limits, "reduced_precision"),
    Fault(no_floor, "stops_the_clock"),
    Fault(only_the_process_clock, "slows_the_clock"),
    Fault(no_control, "works_without_being_called"),
    Fault(foreign_libraries_ignored, "has_another_library"),
    Fault(edges_not_tried, "hard_coded_shape"),
    Fault(no_sandbox, "reads_expected_data"),
    Fault(late_look, "later_thread"),
]
FAULTS = [fault for fault in FAULTS if fault.escapes in CASES]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Compile every kernel once, and give what the judge's ``build`` would."""
    directory = tmp_path_factory.mktemp("built")
    texts = {fault.escapes: CASES[fault.escapes].text for fault in FAULTS}
    tracks = [Track(name) for name in texts]
    prepare.prepare_all(tracks, texts, make_task(), ARCH, directory, "required", float("inf"))
    libraries = {parse_bundle(texts[t.id], t.id).source: t.built for t in tracks if t.built}
    assert len(libraries) == len(FAULTS)
    like = next(t.bundle for t in tracks if t.bundle)
    reference = build_reference(like, make_task(), ARCH, directory, 1, "required", PATIENT)
    return libraries | {"reference": reference}


@contextmanager
def seeded(fault, built):
    with pytest.MonkeyPatch.context() as patch:
        plain = prepare.build
        patch.setattr(prepare, "build", lambda bundle, *args: built.get(bundle.source) or plain(bundle, *args))
        patch.setattr(judge, "build_reference", lambda *_args: built["reference"])
        patch.setattr(judge, "_references", lambda *_args: Floors(1000, 50_000, 50_000, 100.0))
        fault.seed(patch)
        yield


def in_order(case: Case, result) -> bool:
    """Whether the suite's test of this case would pass."""
    return result.verdict is case.verdict and all(word in result.reason for word in case.words)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.seed.__name__)
def test_a_fault_in_the_judge_shows_in_the_suite(fault, built, tmp_path):
    name, case = fault.escapes, CASES[fault.escapes]
    options = JudgeOptions(budget_s=BUDGET_S, threads=1, mode="required", limits=PATIENT, in_full=True)
    results = {}
    for word, faults in (("sound", lambda _patch: None), ("faulty", fault.seed)):
        with seeded(Fault(faults, name), built):
            evaluation = judge.evaluate(make_task(), {name: case.text}, ARCH, tmp_path / word, options)
        results[word] = evaluation.candidates[0]
    assert in_order(case, results["sound"]), results["sound"].reason
    assert not in_order(case, results["faulty"]), results["faulty"].reason
