"""Why a job could never be given to anybody."""

from __future__ import annotations

import pytest

from ytk_controller.scheduling.satisfiable import explain_unsatisfiable
from ytk_core.errors import UserError
from ytk_core.jobs import JobKind, JobSpec
from ytk_core.workers import WorkerDescription

V3 = "amd64-cpuv3-linux-glibc236-ov20264"
V4 = "amd64-cpuv4-linux-glibc236-ov20264"
ORIN = "arm64-sm87-dos6010-cu114-trt86"
KRONOS = WorkerDescription(
    worker_id="k1",
    role="kronos",
    kinds=(JobKind.ENGINE_BUILD,),
    arch_specs=(V3, ORIN),
    capabilities=("engine==openvino",),
)
GAIA = WorkerDescription(
    worker_id="g1", role="gaia", kinds=(JobKind.KERNEL_GENERATE,), capabilities=("torch==2.13.0", "pt2_schema==8")
)
FLEET = (GAIA, KRONOS)


def explained(kind: JobKind, arch: str = "", *requirements: str, workers=FLEET) -> str:
    err = explain_unsatisfiable(JobSpec(kind=kind, arch_spec=arch, requirements=requirements), workers)
    assert err is not None
    assert err.code == "unsatisfiable"
    assert err.hint
    return f"{err.message} | {err.hint}"


@pytest.mark.parametrize(
    ("kind", "arch", "requirements"),
    [
        (JobKind.ENGINE_BUILD, V3, ()),
        (JobKind.ENGINE_BUILD, "", ("engine==openvino",)),
        (JobKind.KERNEL_GENERATE, "", ("torch==2.13.0",)),
    ],
)
def test_what_somebody_could_do_is_satisfiable(kind, arch, requirements) -> None:
    assert explain_unsatisfiable(JobSpec(kind=kind, arch_spec=arch, requirements=requirements), FLEET) is None


def test_nobody_takes_the_kind() -> None:
    text = explained(JobKind.PLUGIN_BUILD)
    assert "plugin.build" in text
    assert "g1 (gaia), k1 (kronos)" in text
    assert "nobody" in explained(JobKind.PLUGIN_BUILD, workers=())


def test_the_nearest_arch_spec_and_the_field_that_differs_are_named() -> None:
    text = explained(JobKind.ENGINE_BUILD, V4)
    assert f"nearest is {V3}, which differs in device (cpuv4, the worker has cpuv3)" in text
    assert f"-a {V3}" in text
    other = explained(JobKind.ENGINE_BUILD, "arm64-sm87-dos6010-cu114-trt104")
    assert f"nearest is {ORIN}, which differs in engine (trt104, the worker has trt86)" in other


def test_an_arch_spec_of_a_worker_of_another_kind_does_not_count() -> None:
    other = WorkerDescription(worker_id="x", role="forge", kinds=(JobKind.PLUGIN_BUILD,), arch_specs=(V4,))
    assert f"nearest is {V3}" in explained(JobKind.ENGINE_BUILD, V4, workers=(KRONOS, other))


def test_workers_without_any_arch_spec_and_with_a_strange_one() -> None:
    bare = WorkerDescription(
        worker_id="b", role="kronos", kinds=(JobKind.ENGINE_BUILD,), arch_specs=("new words here",)
    )
    assert "advertise no arch spec" in explained(JobKind.ENGINE_BUILD, V4, workers=(bare,))


def test_a_wrong_arch_spec_is_the_submitters_mistake() -> None:
    with pytest.raises(UserError, match="nonsense"):
        explain_unsatisfiable(JobSpec(kind=JobKind.ENGINE_BUILD, arch_spec="nonsense"), FLEET)


def test_a_requirement_that_nobody_meets_is_named_with_what_there_is() -> None:
    text = explained(JobKind.KERNEL_GENERATE, "", "torch==2.14.0", "pt2_schema==8")
    assert "g1 comes nearest and lacks torch==2.14.0 (it has torch==2.13.0)" in text
    assert "it has no cuda" in explained(JobKind.KERNEL_GENERATE, "", "cuda==13")
