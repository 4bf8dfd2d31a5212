"""A search goes on where it was, whoever is killed in the middle of it: real daemons, real handlers, and every batch once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ytk_core.jobs import JobKind, JobSpec, JobState
from ytk_core.workers import JobView
from ytk_gaia import rungs

from e2e.daemons import SHORT_LEASE_S, Daemon, Gate, Stack, stack, wait_gone
from e2e.gates import ARCH

COUNT = 20
"""Candidates: two batches, then one."""
BATCHES = 3


class Search:
    """A stack with a generator, an evaluator, and one search on it."""

    def __init__(self, running: Stack, *, no_cache: bool = False) -> None:
        self.running = running
        self.record = running.root / "measured.txt"
        self.gate: Gate = running.gate("gate")
        self.generator = self.agent("generator", "generator")
        self.evaluator = self.agent("evaluator", "evaluator")
        region = running.root / "region.pt2"
        region.write_text(json.dumps({"count": COUNT, "gate": str(self.gate.path), "record": str(self.record)}))
        spec = JobSpec(
            kind=JobKind.KERNEL_GENERATE,
            arch_spec=ARCH,
            params={"config": {"deployment_target": "cpu"}},
            no_cache=no_cache,
        )
        self.region, self.spec = region, spec
        self.job = self.submit().id

    def agent(self, name: str, mode: str) -> Daemon:
        return self.running.part(name, "e2e.searchers", "--mode", mode)

    def submit(self) -> JobView:
        with self.running.client() as client:
            return client.submit(self.spec, {"region.pt2": self.region}).job

    def measure(self, batches: int) -> None:
        """Let so many evaluations through."""
        for _ in range(batches):
            self.gate.wait_started()
            self.gate.open()

    def ended(self) -> JobView:
        with self.running.client() as client:
            return list(client.watch(self.job))[-1]

    def measured(self) -> list[str]:
        """What was measured: one line of candidates for each batch."""
        return self.record.read_text().splitlines() if self.record.exists() else []

    def check(self, job: JobView, *, twice: int = 0) -> None:
        assert job.state is JobState.SUCCEEDED, job.failure
        assert job.result is not None
        assert job.result.summary["winner"] == "c00"
        times = Counter(self.measured())
        assert len(times) == BATCHES
        assert sum(times.values()) == BATCHES + twice, times


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Stack]:
    with stack(tmp_path) as made:
        yield made


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[Stack]:
    """A stack that notices a lost agent within seconds."""
    with stack(tmp_path, lease_s=SHORT_LEASE_S) as made:
        yield made


def test_the_batches_are_as_the_plan_says() -> None:
    assert rungs.rung_count(COUNT - 1) == 2
    sizes = [len(rungs.deal([f"c{k}" for k in range(n)], "c0", 1.0)) for n in (COUNT, 1 + rungs.LAST_SIZE)]
    assert sum(sizes) == BATCHES


def test_a_killed_generators_search_goes_on_elsewhere_even_without_cache(hasty: Stack) -> None:
    search = Search(hasty, no_cache=True)
    search.measure(1)
    at_work = search.gate.wait_started()
    search.generator.kill()
    wait_gone(at_work)  # a lost parent's children end with it
    search.agent("other-generator", "generator")
    search.measure(BATCHES - 1)
    job = search.ended()
    assert job.attempts == 2
    search.check(job)  # what was finished before is not measured again
    # Another search that asks for no cache measures everything anew.
    search.job = search.submit().id
    search.measure(BATCHES)
    search.check(search.ended(), twice=BATCHES)


def test_a_killed_evaluator_costs_one_batch(hasty: Stack) -> None:
    search = Search(hasty)
    search.measure(1)
    at_work = search.gate.wait_started()
    search.evaluator.kill()
    wait_gone(at_work)
    search.agent("other-evaluator", "evaluator")
    search.measure(BATCHES - 1)
    search.check(search.ended())


def test_a_killed_controller_loses_nothing(running: Stack) -> None:
    search = Search(running)
    search.measure(1)
    search.gate.wait_started()
    running.controller.kill()
    running.restart_controller()
    search.gate.open()
    search.measure(BATCHES - 2)
    search.check(search.ended())
    # The same again is answered at once: nobody opens a gate.
    again = search.submit()
    assert again.state is JobState.SUCCEEDED
    assert again.from_cache


def test_batches_of_a_rung_are_measured_by_all_evaluators_at_once(running: Stack) -> None:
    search = Search(running)
    search.gate.wait_started()
    search.agent("second", "evaluator")
    search.gate.wait_started()  # the second batch stands at the gate while the first is still there
    with running.client() as client:
        children = client.jobs(parent_id=search.job)
        assert {child.worker_id for child in children if child.state is JobState.RUNNING} == {"evaluator", "second"}
    search.gate.open()
    search.gate.open()
    search.measure(BATCHES - 2)
    search.check(search.ended())
