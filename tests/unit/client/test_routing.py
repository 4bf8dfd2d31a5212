"""Which evaluator `-g` means, and whether an engine in view could use the kernel."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from ytk_client.routing import check_deployment, choose, offers
from ytk_core.errors import UserError
from ytk_core.formats.plugin_meta import DeploymentTarget
from ytk_core.jobs import JobKind
from ytk_core.workers import WorkerDescription, WorkerState, WorkerView

V4 = "amd64-cpuv4-linux-glibc236-ov20264"
V3 = "amd64-cpuv3-linux-glibc236-ov20264"
ORIN = "arm64-sm87-dos6010-cu114-trt86"


def worker(worker_id, specs, *, device="", kinds=(JobKind.KERNEL_EVALUATE,), state=WorkerState.IDLE, role="gaia"):
    about = WorkerDescription(worker_id=worker_id, role=role, kinds=kinds, arch_specs=tuple(specs), device_name=device)
    return WorkerView(description=about, state=state, last_seen_at=datetime(2026, 1, 1, tzinfo=UTC))


CPU = worker("eval-cpu", [V4, V3], device="x86-64-v4 (Test CPU)")
BOARD = worker("eval-orin", [ORIN], device="Orin")
GENERATOR = worker("gen", [], kinds=(JobKind.KERNEL_GENERATE,))
FOUND = offers([GENERATOR, BOARD, CPU])


@pytest.mark.parametrize(
    ("gpu", "arch"),
    [
        ("cpu", V4),
        ("CPU", V4),
        (V3, V3),
        ("Orin", ORIN),
        ("orin", ORIN),
        ("sm87", ORIN),
        ("Test CPU", V4),
        ("eval-orin", ORIN),
    ],
)
def test_a_word_finds_its_evaluator(gpu, arch):
    assert str(choose(FOUND, gpu).arch) == arch


def test_what_is_not_offered_lists_what_is():
    with pytest.raises(UserError, match="no evaluator offers -g H100") as caught:
        choose(FOUND, "H100")
    assert caught.value.code == "gpu_not_offered"
    assert "Orin" in caught.value.hint
    assert V4 in caught.value.hint


def test_arch_spec_that_is_not_offered_names_the_nearest_and_the_field():
    with pytest.raises(UserError) as caught:
        choose(FOUND, V4.replace("glibc236", "glibc231"))
    assert f"The nearest is {V4}, which differs in runtime" in caught.value.hint


def test_bad_arch_spec_is_called_so():
    with pytest.raises(UserError) as caught:
        choose(FOUND, "amd64-cpuv9-linux-glibc236-ov20264")
    assert caught.value.code == "bad_arch_spec"


def test_no_evaluator_at_all():
    with pytest.raises(UserError, match="no evaluator is connected"):
        choose(offers([GENERATOR, worker("gone", [V4], state=WorkerState.LOST)]), "cpu")


KRONOS_CPU = worker("k", [V4], kinds=(JobKind.ENGINE_BUILD,), role="kronos")
KRONOS_TRT = worker("t", [ORIN], kinds=(JobKind.ENGINE_BUILD,), role="kronos")


@pytest.mark.parametrize(
    ("target", "gpu", "engines"),
    [
        (DeploymentTarget.CPU, "cpu", [KRONOS_CPU]),
        (DeploymentTarget.CPU, "cpu", [KRONOS_CPU, KRONOS_TRT]),
        (DeploymentTarget.CPU, "cpu", []),
        (DeploymentTarget.TENSORRT, "Orin", [KRONOS_TRT]),
        (DeploymentTarget.TORCH, "cpu", [KRONOS_CPU]),
    ],
)
def test_fitting_deployment_target(target, gpu, engines):
    check_deployment(target, choose(FOUND, gpu), engines)


@pytest.mark.parametrize(
    ("target", "gpu", "engines", "fitting"),
    [
        (None, "cpu", [KRONOS_CPU], "cpu"),
        (None, "Orin", [KRONOS_TRT], "tensorrt"),
        (DeploymentTarget.TENSORRT, "cpu", [KRONOS_CPU], "cpu"),
        (DeploymentTarget.CPU, "Orin", [KRONOS_TRT], "tensorrt"),
        (DeploymentTarget.TENSORRT, "Orin", [KRONOS_CPU], "cpu"),
    ],
)
def test_wrong_deployment_target_names_the_fitting_one(target, gpu, engines, fitting):
    with pytest.raises(UserError) as caught:
        check_deployment(target, choose(FOUND, gpu), engines)
    assert caught.value.code == "wrong_deployment_target"
    assert f"deployment_target={fitting}" in caught.value.hint
