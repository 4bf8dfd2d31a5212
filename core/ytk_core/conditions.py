"""Measurement conditions: what the machine was like before and after a measurement.

They go with every time that is printed. Where they drifted, the sample says so: void on a board, unstable on a shared CPU.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

_CPU = Path("/sys/devices/system/cpu")
_THERMAL = Path("/sys/class/thermal")


class Snapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The machine at one moment; None where this machine does not say.

    ``load_1m``: runnable processes, 1-minute mean. ``cpu_mhz``: mean over the CPUs. ``temperature_c``: the hottest zone.
    ``throttle_count``: thermal throttle events since boot, all CPUs. ``governor``: of CPU 0.
    """

    load_1m: float
    cpus: int
    cpu_mhz: float | None = None
    temperature_c: float | None = None
    throttle_count: int | None = None
    governor: str | None = None


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """How much may change before a measurement counts as disturbed."""

    load_per_cpu: float = 0.75
    mhz_ratio: float = 0.10
    temperature_c: float = 15.0


class Conditions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a measurement was made. ``pinned``: clocks or CPUs were fixed by the worker. ``stable`` is False with a ``reason``."""

    before: Snapshot
    after: Snapshot
    iterations: int
    warmup: int
    threads: int
    engine: str
    worker_id: str = ""
    device_uid: str = ""
    pinned: bool = False
    stable: bool = True
    reason: str = ""


def _read(path: Path) -> str | None:
    # A file that this kernel or container does not offer is "not readable", never a failed measurement.
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return path.read_text().strip()
    return None


def _numbers(paths: list[Path]) -> list[int]:
    texts = (_read(path) for path in paths)
    return [int(text) for text in texts if text and text.lstrip("-").isdigit()]


def _mhz(cpu: Path, proc: Path) -> float | None:
    if khz := _numbers(sorted(cpu.glob("cpu[0-9]*/cpufreq/scaling_cur_freq"))):
        return sum(khz) / len(khz) / 1000
    lines = (_read(proc / "cpuinfo") or "").splitlines()
    values = [float(line.partition(":")[2]) for line in lines if line.startswith("cpu MHz")]
    return sum(values) / len(values) if values else None


def snapshot(*, cpu: Path = _CPU, thermal: Path = _THERMAL, proc: Path = Path("/proc")) -> Snapshot:
    """Read the machine's state; takes well under a millisecond per CPU. The paths are for tests."""
    # Idle zones of some boards report 0 or a negative sentinel.
    zones = [value / 1000 for value in _numbers(sorted(thermal.glob("thermal_zone*/temp"))) if value > 0]
    throttles = _numbers(sorted(cpu.glob("cpu[0-9]*/thermal_throttle/package_throttle_count")))
    load = (_read(proc / "loadavg") or "").split()
    return Snapshot(
        load_1m=float(load[0]) if load else os.getloadavg()[0],
        cpus=len(os.sched_getaffinity(0)),
        cpu_mhz=_mhz(cpu, proc),
        temperature_c=max(zones, default=None),
        throttle_count=sum(throttles) if throttles else None,
        governor=_read(cpu / "cpu0/cpufreq/scaling_governor"),
    )


def drift_reason(before: Snapshot, after: Snapshot, *, threads: int, drift: Drift | None = None) -> str:
    """Say why a measurement between two snapshots is disturbed; empty if it is not.

    Args:
        before: Taken before the warm-up.
        after: Taken after the last iteration.
        threads: CPU threads of the measurement itself: they count in the load of ``after``.
        drift: The limits.
    """
    limits = drift or Drift()
    reasons: list[str] = []
    if before.load_1m > limits.load_per_cpu * before.cpus:
        reasons.append(f"load {before.load_1m:.2f} on {before.cpus} CPUs before the measurement")
    if after.load_1m - before.load_1m > threads + limits.load_per_cpu * after.cpus:
        reasons.append(f"load rose from {before.load_1m:.2f} to {after.load_1m:.2f} with {threads} threads of our own")
    if before.cpu_mhz and after.cpu_mhz and abs(after.cpu_mhz / before.cpu_mhz - 1) > limits.mhz_ratio:
        reasons.append(f"CPU clock went from {before.cpu_mhz:.0f} to {after.cpu_mhz:.0f} MHz")
    if before.temperature_c is not None and after.temperature_c is not None:
        rise = after.temperature_c - before.temperature_c
        if rise > limits.temperature_c:
            reasons.append(f"temperature rose by {rise:.0f} degrees C to {after.temperature_c:.0f}")
    if (
        before.throttle_count is not None
        and after.throttle_count is not None
        and after.throttle_count > before.throttle_count
    ):
        reasons.append(f"{after.throttle_count - before.throttle_count} thermal throttle events")
    if before.governor != after.governor:
        reasons.append(f"the governor went from {before.governor} to {after.governor}")
    return "; ".join(reasons)


def make_conditions(
    before: Snapshot,
    after: Snapshot,
    *,
    iterations: int,
    warmup: int,
    threads: int,
    engine: str,
    worker_id: str = "",
    device_uid: str = "",
    pinned: bool = False,
    drift: Drift | None = None,
) -> Conditions:
    """Put two snapshots and the run's figures together and decide whether the run was stable."""
    reason = drift_reason(before, after, threads=threads, drift=drift)
    return Conditions(
        before=before,
        after=after,
        iterations=iterations,
        warmup=warmup,
        threads=threads,
        engine=engine,
        worker_id=worker_id,
        device_uid=device_uid,
        pinned=pinned,
        stable=not reason,
        reason=reason,
    )
