"""Who gets which job."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ytk_controller.jobs.model import JobRecord
from ytk_controller.scheduling.scheduler import FreeWorker, Round, schedule
from ytk_core.jobs import JobKind, JobSpec, JobState
from ytk_core.workers import WorkerDescription

K = JobKind
VERIFIED, DECLARED = "target_verified==amd64-cpuv3-linux-glibc236-ov20264", {"declared_abi": True}
V3, V4 = "amd64-cpuv3-linux-glibc236-ov20264", "amd64-cpuv4-linux-glibc236-ov20264"


def free(worker_id: str, *kinds: JobKind, slots: int = 1, **facts) -> FreeWorker:
    worker = WorkerDescription(worker_id=worker_id, role="r", kinds=kinds or (K.PLUGIN_BUILD,), slots=slots, **facts)
    claims = tuple(f"{worker_id}-c{number}" for number in range(slots))
    return FreeWorker(worker=worker, session_id=f"{worker_id}-s", claim_ids=claims)


def job(number: int, kind: JobKind = K.PLUGIN_BUILD, *, excluded: tuple[str, ...] = (), **spec) -> JobRecord:
    return JobRecord(
        id=f"j{number}",
        seq=number,
        spec=JobSpec(kind=kind, **spec),
        cache_key="",
        state=JobState.QUEUED,
        excluded_workers=excluded,
    )


def pairs(assigned) -> list[tuple[str, str]]:
    return [(one.job_id, one.worker_id) for one in assigned]


@pytest.mark.parametrize(
    ("workers", "jobs", "busy", "wanted"),
    [
        ([free("a")], [job(1), job(2)], (), [("j1", "a")]),
        ([free("a", slots=2)], [job(1), job(2), job(3)], (), [("j1", "a"), ("j2", "a")]),
        ([free("a")], [job(1), job(2, priority=1)], (), [("j2", "a")]),
        ([free("a", K.ENGINE_BUILD)], [job(1)], (), []),
        ([free("a", arch_specs=(V3,))], [job(1, arch_spec=V4), job(2, arch_spec=V3)], (), [("j2", "a")]),
        ([free("a", arch_specs=(V4, V3))], [job(1, arch_spec=V3)], (), [("j1", "a")]),
        ([free("a", capabilities=("x==1",))], [job(1, requirements=("x==2",))], (), []),
        ([free("a", capabilities=("x==1", "y"))], [job(1, requirements=("y", "x==1"))], (), [("j1", "a")]),
        # the specialist takes it, the other stays free for what only it can do
        ([free("a", K.PLUGIN_BUILD, K.ENGINE_BUILD), free("b")], [job(1), job(2, K.ENGINE_BUILD)], (),
         [("j1", "b"), ("j2", "a")]),
        # devices
        ([free("a", slots=2, device_uid="d")], [job(1, measuring=True), job(2, measuring=True), job(3)], (),
         [("j1", "a"), ("j3", "a")]),
        ([free("a", device_uid="d"), free("b", device_uid="d")], [job(1, measuring=True), job(2, measuring=True)], (),
         [("j1", "a")]),
        ([free("a", device_uid="d")], [job(1, measuring=True)], ("d",), []),
        ([free("a", device_uid="d")], [job(1)], ("d",), [("j1", "a")]),
        ([free("a", slots=2)], [job(1, measuring=True), job(2, measuring=True)], (), [("j1", "a"), ("j2", "a")]),
        # a search holds no device, even where it says that it measures
        ([free("a", K.KERNEL_GENERATE, device_uid="d")], [job(1, K.KERNEL_GENERATE, measuring=True)], ("d",),
         [("j1", "a")]),
        # a plugin that is verified for its target is better than a marked one, whoever has fewer talents
        ([free("a", arch_specs=(V3,)), free("b", arch_specs=(V3, V4), capabilities=(VERIFIED, "x"))],
         [job(1, arch_spec=V3)], (), [("j1", "b")]),
        ([free("a", arch_specs=(V3,)), free("b", arch_specs=(V3,), capabilities=(VERIFIED,))],
         [job(1, arch_spec=V3), job(2, arch_spec=V3)], (), [("j1", "b")]),
        ([free("a", arch_specs=(V3,)), free("b", arch_specs=(V3,), capabilities=(VERIFIED,))],
         [job(1, arch_spec=V3, params=DECLARED), job(2, arch_spec=V3, params=DECLARED)], (), [("j1", "b"), ("j2", "a")]),
        ([free("a", arch_specs=(V3,)), free("b", arch_specs=(V3,), capabilities=(VERIFIED,))],
         [job(1, arch_spec=V3, excluded=("b",))], (), [("j1", "a")]),
        ([free("a", arch_specs=(V4,)), free("b", arch_specs=(V3,), capabilities=(VERIFIED,))],
         [job(1, arch_spec=V4)], (), [("j1", "a")]),
        # elsewhere
        ([free("a"), free("b")], [job(1, excluded=("a",))], (), [("j1", "b")]),
        ([free("a")], [job(1, excluded=("a",))], (), [("j1", "a")]),
        ([free("a"), free("b", K.ENGINE_BUILD)], [job(1, excluded=("a",))], (), [("j1", "a")]),
    ],
)  # fmt: skip
def test_assignments_for_any_order(workers, jobs, busy, wanted) -> None:
    for some_workers in itertools.permutations(workers):
        for some_jobs in itertools.permutations(jobs):
            assert pairs(schedule(some_workers, some_jobs, busy)) == wanted


def test_a_job_waits_for_a_busy_worker_rather_than_go_back_to_the_one_that_failed() -> None:
    busy = free("b").worker
    assert schedule([free("a")], [job(1, excluded=("a",))], (), live=[free("a").worker, busy]) == []


def test_a_plugin_waits_for_the_busy_forge_that_has_the_headers() -> None:
    marked, busy = free("a", arch_specs=(V3,)), free("b", arch_specs=(V3,), capabilities=(VERIFIED,)).worker
    assert schedule([marked], [job(1, arch_spec=V3)], (), live=[marked.worker, busy]) == []
    assert pairs(schedule([marked], [job(1, arch_spec=V3, params=DECLARED)], (), live=[marked.worker, busy])) == [
        ("j1", "a")
    ]
    assert pairs(schedule([marked], [job(1, arch_spec=V3)], (), live=[marked.worker])) == [("j1", "a")]


def test_an_assignment_names_the_claim_and_the_device() -> None:
    (one,) = schedule([free("a", device_uid="d")], [job(1, measuring=True)], ())
    assert (one.session_id, one.claim_id, one.device_uid) == ("a-s", "a-c0", "d")
    (two,) = schedule([free("a", device_uid="d")], [job(1)], ())
    assert two.device_uid == ""


WORKERS = st.lists(
    st.builds(
        free,
        st.sampled_from(["a", "b", "c", "d"]),
        st.sampled_from([K.PLUGIN_BUILD, K.ENGINE_BUILD]),
        slots=st.integers(1, 3),
        device_uid=st.sampled_from(["", "d1", "d2"]),
    ),
    unique_by=lambda one: one.worker.worker_id,
)
JOBS = st.lists(
    st.builds(
        job,
        st.integers(1, 30),
        st.sampled_from([K.PLUGIN_BUILD, K.ENGINE_BUILD]),
        measuring=st.booleans(),
        priority=st.integers(0, 2),
        excluded=st.sampled_from([(), ("a",), ("a", "b")]),
    ),
    unique_by=lambda one: one.id,
)


@settings(max_examples=100, deadline=None, database=None, derandomize=True)
@given(workers=WORKERS, jobs=JOBS, page=st.integers(1, 5), order=st.randoms())
def test_pages_add_up_and_order_does_not_matter(workers, jobs, page, order) -> None:
    whole = schedule(workers, jobs, ())
    turn = Round.begin(workers, [one.worker for one in workers], ())
    queue = sorted(jobs, key=lambda one: (-one.spec.priority, one.seq))
    for start in range(0, len(queue), page):
        turn.give(queue[start : start + page])
    assert turn.assigned == whole
    order.shuffle(jobs)
    order.shuffle(workers)
    assert schedule(workers, jobs, ()) == whole

    devices = [one.device_uid for one in whole if one.device_uid]
    assert len(devices) == len(set(devices))
    claims = [one.claim_id for one in whole]
    assert len(claims) == len(set(claims))
    # Nothing was left that somebody could still have taken.
    given = {one.job_id for one in whole}
    rest = schedule(turn.free.values(), [one for one in jobs if one.id not in given],
                    turn.busy_devices, live=[one.worker for one in workers])  # fmt: skip
    assert rest == []
