"""The GPUs of this machine, and the state that they are in. Where there is none, or no library to ask, that is an answer too."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from ytk_core.archspec import ArchSpec

_NODES = ("/dev/nvidia[0-9]*", "/dev/nvidiactl", "/dev/nvidia-uvm*", "/dev/nvhost*", "/dev/nvmap", "/dev/nvgpu*")
"""Device nodes of a GPU: of a server's, and of a Jetson's or DRIVE's."""


class GpuDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU. ``driver_cuda``: newest CUDA that the driver knows, as ``(12, 6)``; ``bandwidth``: of its memory, bytes per second."""

    index: int
    name: str
    uuid: str
    sm: int
    l2_bytes: int
    bandwidth: float
    driver_cuda: tuple[int, int]

    @property
    def device_uid(self) -> str:
        """What measuring jobs hold."""
        return f"gpu-{self.uuid or self.index}"

    def serves(self, arch: ArchSpec) -> bool:
        """Whether kernels for an arch spec run here: the same compute capability, and a driver that reads its cubins."""
        if arch.device_kind != "gpu" or arch.device != f"sm{self.sm}":
            return False
        return self.driver_cuda[0] >= int(arch.runtime[2:4])


class GpuState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A GPU at one moment; None where NVML does not say. ``throttle``: bits of ``nvmlClocksEventReasons``."""

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    throttle: int | None = None


class GpuConditions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The GPU of a measurement, before and after it. ``reason``: why its times are not to be trusted; empty: they are."""

    name: str
    uuid: str
    driver_cuda: str
    before: GpuState
    after: GpuState
    reason: str = ""


_MHZ_RATIO = 0.10
_RISE_C = 15
_HARMFUL = 0x08 | 0x20 | 0x40 | 0x80
"""Hardware slowdown, software and hardware thermal slowdown, power brake; not idle, application clocks or the power cap."""


def drift(before: GpuState, after: GpuState) -> str:
    """Say why a measurement between two states is disturbed; empty if it is not."""
    reasons = []
    if before.sm_mhz and after.sm_mhz and abs(after.sm_mhz / before.sm_mhz - 1) > _MHZ_RATIO:
        reasons.append(f"GPU clock went from {before.sm_mhz} to {after.sm_mhz} MHz")
    if before.temperature_c is not None and after.temperature_c is not None:
        rise = after.temperature_c - before.temperature_c
        if rise > _RISE_C:
            reasons.append(f"GPU temperature rose by {rise} degrees C to {after.temperature_c}")
    harm = ((before.throttle or 0) | (after.throttle or 0)) & _HARMFUL
    if harm:
        reasons.append(f"the GPU was throttled (reasons 0x{harm:x})")
    return "; ".join(reasons)


def _driver() -> Any | None:
    try:
        from cuda.bindings import driver
    except ImportError:
        return None
    return driver


def _value(answer: tuple[Any, ...]) -> Any:
    """Give the value of a driver call.

    Raises:
        OSError: The driver refused.
    """
    status, *values = answer
    if int(status) != 0:
        raise OSError(int(status), f"the CUDA driver answered {status}")
    return values[0] if len(values) == 1 else tuple(values) or None


def find_devices() -> tuple[list[GpuDevice], str]:
    """Give the GPUs of this machine, or none and why."""
    driver = _driver()
    if driver is None:
        return [], "cuda-bindings is not installed (pip install 'yasp-toolkit[gaia-cuda]')"
    try:
        _value(driver.cuInit(0))
        version = int(_value(driver.cuDriverGetVersion()))
        count = int(_value(driver.cuDeviceGetCount()))
        return [_describe(driver, index, version) for index in range(count)], "" if count else "no CUDA device"
    except (OSError, RuntimeError) as err:
        # cuda-bindings raises RuntimeError where libcuda.so.1 is not there.
        return [], f"no CUDA driver: {str(err).splitlines()[0]}"


def _describe(driver: Any, index: int, version: int) -> GpuDevice:
    device = _value(driver.cuDeviceGet(index))
    names = driver.CUdevice_attribute

    def attribute(name: str) -> int:
        return int(_value(driver.cuDeviceGetAttribute(getattr(names, f"CU_DEVICE_ATTRIBUTE_{name}"), device)))

    uuid = bytes(_value(driver.cuDeviceGetUuid(device)).bytes).hex()
    # Two transfers a clock; kHz and bits.
    rate = 2 * attribute("MEMORY_CLOCK_RATE") * 1000 * attribute("GLOBAL_MEMORY_BUS_WIDTH") / 8
    return GpuDevice(
        index=index,
        name=_value(driver.cuDeviceGetName(128, device)).split(b"\0")[0].decode(),
        uuid=uuid,
        sm=attribute("COMPUTE_CAPABILITY_MAJOR") * 10 + attribute("COMPUTE_CAPABILITY_MINOR"),
        l2_bytes=attribute("L2_CACHE_SIZE"),
        bandwidth=rate,
        driver_cuda=(version // 1000, version % 1000 // 10),
    )


def device_nodes() -> tuple[Path, ...]:
    """Give the device nodes that a process needs to use a GPU."""
    root = Path("/")
    return tuple(sorted(path for pattern in _NODES for path in root.glob(pattern[1:]) if not path.is_dir()))


@contextlib.contextmanager
def _nvml(uuid: str) -> Iterator[tuple[Any, Any] | None]:
    try:
        import pynvml
    except ImportError:
        yield None
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None  # a board whose driver has no NVML
        return
    try:
        text = f"GPU-{uuid[:8]}-{uuid[8:12]}-{uuid[12:16]}-{uuid[16:20]}-{uuid[20:]}"
        yield pynvml, pynvml.nvmlDeviceGetHandleByUUID(text.encode())
    except pynvml.NVMLError:
        yield None
    finally:
        pynvml.nvmlShutdown()


def gpu_state(device: GpuDevice) -> GpuState:
    """Read a GPU's clocks, temperature, power and throttle reasons through NVML; what it does not say is None."""
    with _nvml(device.uuid) as found:
        if found is None:
            return GpuState()
        nvml, handle = found

        def asked(function: Any, *arguments: Any) -> Any:
            try:
                return function(handle, *arguments)
            except nvml.NVMLError:
                return None  # not every GPU has every sensor

        power = asked(nvml.nvmlDeviceGetPowerUsage)
        return GpuState(
            sm_mhz=asked(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
            memory_mhz=asked(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_MEM),
            temperature_c=asked(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
            power_w=None if power is None else power / 1000,
            throttle=asked(nvml.nvmlDeviceGetCurrentClocksThrottleReasons),
        )
