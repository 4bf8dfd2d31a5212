"""The judge of CUDA kernels on a GPU, with a driver whose GPU is the emulation; what no GPU is needed for, and its absence."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ytk_core.archspec import ArchSpec
from ytk_core.formats.kernel_bundle import parse_bundle
from ytk_gaia.emulation.build import Check, Emulator
from ytk_gaia.evaluator import cuda_build, cuda_choice, cuda_device, cuda_judge
from ytk_gaia.evaluator.build import compiler
from ytk_gaia.evaluator.cuda_device import GpuDevice, GpuState, drift
from ytk_gaia.evaluator.options import JudgeOptions
from ytk_gaia.evaluator.session import CandidateFaultError
from ytk_gaia.evaluator.verdicts import Verdict

from fakes import cuda_kernels
from fakes.judge_limits import BUDGET_S, PATIENT, end_soon

DRIVER = Path(__file__).parents[2] / "fakes" / "fake_gpu_driver.cpp"
ORIN = ArchSpec.parse("arm64-sm87-dos6010-cu114-trt86")
DEVICE = GpuDevice(
    index=0, name="emulated", uuid="ab" * 16, sm=87, l2_bytes=1 << 16, bandwidth=2e11, driver_cuda=(11, 4)
)
FAULTS = {
    fault.name: fault
    for fault in cuda_kernels.FAULTS
    if fault.name in {"the other row", "writes one too far", "writes an input"}
}


# ---- without a driver ------------------------------------------------------------------------------------------------


def test_a_device_serves_its_own_capability_and_no_newer_cuda():
    assert DEVICE.serves(ORIN)
    assert not DEVICE.serves(ArchSpec.parse("arm64-sm87-l4t364-cu126-trt103"))
    assert not DEVICE.serves(ArchSpec.parse("amd64-sm90-linux-cu114-trt86"))
    assert not DEVICE.serves(ArchSpec.parse("amd64-cpuv3-linux-glibc236-ov20264"))
    assert DEVICE.device_uid == "gpu-" + "ab" * 16


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        ({"sm_mhz": 1290}, ""),
        ({"sm_mhz": 900}, "clock went from 1300 to 900"),
        ({"temperature_c": 80}, "rose by 30"),
        ({"throttle": 0x40}, "throttled (reasons 0x40)"),
        ({"throttle": 0x4}, ""),  # the power cap: how this GPU always runs
    ],
)
def test_a_disturbed_gpu_is_said_to_be(after, reason):
    found = drift(GpuState(sm_mhz=1300, temperature_c=50, throttle=0), GpuState(**after))
    assert reason in found
    assert bool(found) == bool(reason)


def test_no_bindings_or_no_driver_is_an_answer(monkeypatch):
    monkeypatch.setattr(cuda_device, "_driver", lambda: None)
    assert cuda_device.find_devices() == ([], "cuda-bindings is not installed (pip install 'yasp-toolkit[gaia-cuda]')")

    class Refusing:
        def cuInit(self, _flags):
            return (100,)

    monkeypatch.setattr(cuda_device, "_driver", Refusing)
    devices, reason = cuda_device.find_devices()
    assert devices == []
    assert "100" in reason
    assert cuda_choice.device_for(ORIN) is None


def test_what_the_process_says_names_the_fault():
    fault = CandidateFaultError(Verdict.RUNTIME_ERROR, "launch returned 7")
    found = cuda_judge.named(fault, "x\nytk-gpu: out of bounds: a store beside output 0, at byte (76)\n")
    assert (found.verdict, found.reason) == (
        Verdict.OUT_OF_BOUNDS,
        "out of bounds: a store beside output 0, at byte 76",
    )
    assert cuda_judge.named(fault, "ytk-gpu: cuLaunchKernel (719)\n").verdict is Verdict.RUNTIME_ERROR
    assert cuda_judge.named(fault, "nothing") is fault


def test_the_floor_is_what_memory_could_move():
    assert cuda_judge.floor_ns(8_000_000, 2e11) == pytest.approx(10_000)
    assert cuda_judge.floor_ns(8_000_000, 0.0) == 0.0


# ---- with one whose GPU is the emulation -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory):
    """Every candidate gets a driver that emulates its own kernels: the GPU evaluator cannot tell."""
    patch, root = pytest.MonkeyPatch(), tmp_path_factory.mktemp("gpu")
    emulator = Emulator.prepare(root / "emulation", "optional")
    candidates = {"right": cuda_kernels.right(), "again": cuda_kernels.right()}
    candidates |= {name: cuda_kernels.faulty(fault) for name, fault in FAULTS.items()}
    build = cuda_build.build

    def build_with_driver(bundle, arch, nvrtc, device, directory, mode):
        (directory / "emulated").mkdir()
        emulated = emulator.build(bundle, directory / "emulated", [Check.NOTHING])[Check.NOTHING]
        driver = directory / "libcuda.so.1"
        define = f'-DEMULATED="{emulated.library}"'
        argv = [compiler(), "-shared", "-fPIC", define, str(DRIVER), "-ldl", "-o", str(driver)]
        subprocess.run(argv, check=True, capture_output=True)
        patch.setattr(cuda_build, "LIBCUDA", str(driver))
        return build(bundle, arch, nvrtc, device, directory, mode)

    patch.setattr(cuda_build, "build", build_with_driver)
    patch.setattr(cuda_judge, "ROUNDS", 2)
    end_soon(patch, cuda_judge, "endless")
    options = JudgeOptions(budget_s=BUDGET_S, mode="optional", limits=PATIENT)
    try:
        yield cuda_judge.evaluate({0: cuda_kernels.make_task()}, candidates, ORIN, DEVICE, root, options)
    finally:
        patch.undo()


def test_a_right_kernel_is_timed_by_the_gpus_clock(evaluation):
    found = {c.id: c for c in evaluation.candidates}
    right = found["right"]
    assert (right.verdict, right.reason) == (Verdict.PASSED, ""), right.log
    assert right.median_ms > 0
    assert len(right.times_ms) == 2 * 3
    assert right.cold_ms is not None
    assert {right.ratio.to, found["again"].ratio.to} <= {"right", "again"}
    assert right.device.sm == "sm_87"
    assert not evaluation.emulated
    assert evaluation.gpu.name == "emulated"
    assert evaluation.conditions.device_uid == DEVICE.device_uid
    assert evaluation.floor_bytes == 4 * cuda_kernels.ROWS


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_one_is_not(evaluation, name):
    found = next(c for c in evaluation.candidates if c.id == name)
    assert found.verdict is FAULTS[name].verdict, (found.verdict, found.reason, found.log)
    assert found.median_ms is None


def test_the_unit_gives_each_variant_its_number():
    unit = cuda_build.unit(parse_bundle(cuda_kernels.right(), "right"))
    assert "ytk_gpu::call(ctx, in, nin, out, nout, formats[variant], ytk_launch)" in unit
    assert cuda_build.variant_code(0) == 1
