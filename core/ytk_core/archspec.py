"""Arch specs: ``<cpu>-<device>-<os>-<runtime>-<engine>``, the name of one kind of target.

Examples: ``arm64-sm87-dos6010-cu114-trt86`` (Orin, DRIVE OS 6.0.10, CUDA 11.4, TensorRT 8.6),
``amd64-cpuv4-linux-glibc236-ov20264`` (x86-64-v4, glibc 2.36, OpenVINO 2026.4).
"""

from __future__ import annotations

import dataclasses
import os
import platform
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from ytk_core.errors import NotAvailableError, UserError

FIELDS = ("cpu", "device", "os", "runtime", "engine")

_PATTERNS: dict[str, tuple[re.Pattern[str], str]] = {
    "cpu": (re.compile(r"amd64|arm64"), "amd64 or arm64"),
    "device": (
        re.compile(r"sm[1-9]\d{1,2}[a-z]?|cpuv[234]|cpu(?:8[0-9]|9[0-9])"),
        "sm<compute capability> (sm87), cpuv2|cpuv3|cpuv4 on amd64, cpu80|cpu82|... on arm64",
    ),
    "os": (
        re.compile(r"linux|dos[1-9]\d{2,4}|jp[1-9]\d{0,3}|l4t[1-9]\d{1,3}|qnx\d{2,4}"),
        "linux, dos<version> (dos6010), jp<version>, l4t<version> (l4t364)",
    ),
    "runtime": (
        re.compile(r"cu[1-9]\d{1,3}|glibc2\d{1,2}"),
        "cu<version> (cu114) on a GPU, glibc<version> (glibc236) on a CPU",
    ),
    "engine": (
        re.compile(r"trt[1-9]\d{1,3}|ov20\d{3}|ort[1-9]\d{1,3}"),
        "trt<version> (trt86), ov<version> (ov20264), ort<version> (ort132)",
    ),
}
_EXAMPLE = "arm64-sm87-dos6010-cu114-trt86 or amd64-cpuv3-linux-glibc236-ov20264"

ENGINE_NAMES = {"trt": "tensorrt", "ov": "openvino", "ort": "onnxruntime"}


def _bad(text: str, message: str) -> UserError:
    return UserError(
        f"bad arch spec {text!r}: {message}",
        code="bad_arch_spec",
        hint=f"An arch spec is <cpu>-<device>-<os>-<runtime>-<engine>, for example {_EXAMPLE}; "
        "`ytk embedded workers` lists the ones that exist.",
    )


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class ArchSpec:
    """One kind of target; a value type. ``str()`` and :meth:`parse` are inverse to each other."""

    cpu: str
    device: str
    os: str
    runtime: str
    engine: str

    def __post_init__(self) -> None:
        for field in FIELDS:
            value = getattr(self, field)
            pattern, allowed = _PATTERNS[field]
            if not pattern.fullmatch(value):
                raise _bad(str(self), f"the field {field!r} is {value!r}; allowed: {allowed}")
        if self.device.startswith("cpu") and self.device.startswith("cpuv") != (self.cpu == "amd64"):
            raise _bad(str(self), f"the field 'device' is {self.device!r}, which is no {self.cpu} CPU level")
        if (self.device_kind == "gpu") != self.runtime.startswith("cu"):
            raise _bad(
                str(self), f"the field 'runtime' is {self.runtime!r}, which does not go with the device {self.device!r}"
            )
        if self.engine_name == "tensorrt" and self.device_kind != "gpu":
            raise _bad(
                str(self), f"the field 'engine' is {self.engine!r}, which needs a GPU device, not {self.device!r}"
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the five fields.

        Raises:
            UserError: ``bad_arch_spec``; the message names the field that is wrong.
        """
        parts = text.split("-")
        if len(parts) != len(FIELDS):
            missing = f", {FIELDS[len(parts)]!r} is missing" if len(parts) < len(FIELDS) else ""
            raise _bad(text, f"it has {len(parts)} fields instead of {len(FIELDS)}{missing}")
        return cls(*parts)

    def __str__(self) -> str:
        return "-".join(getattr(self, field) for field in FIELDS)

    def differing_fields(self, other: ArchSpec) -> tuple[str, ...]:
        """Give the names of the fields whose values differ, in the order of the spec."""
        return tuple(field for field in FIELDS if getattr(self, field) != getattr(other, field))

    @property
    def engine_name(self) -> str:
        """``openvino``, ``onnxruntime`` or ``tensorrt``."""
        return ENGINE_NAMES[self.engine.rstrip("0123456789")]

    @property
    def engine_version(self) -> tuple[int, int]:
        """Major and minor: ``trt86`` is (8, 6), ``trt1014`` (10, 14), ``ov20264`` (2026, 4), ``ort132`` (1, 32)."""
        kind = self.engine.rstrip("0123456789")
        digits = self.engine[len(kind) :]
        # TensorRT went from 8 to 10 and has had two-digit majors since, so a leading 1 starts a two-digit major.
        major_digits = {"trt": 2 if digits.startswith("1") else 1, "ov": 4, "ort": 1}[kind]
        return int(digits[:major_digits]), int(digits[major_digits:] or 0)

    @property
    def device_kind(self) -> str:
        """``cpu`` or ``gpu``."""
        return "cpu" if self.device.startswith("cpu") else "gpu"


# A wrong engine version is nearer than another board: weights decide which existing spec is the helpful one to name.
_FIELD_WEIGHT = {"cpu": 16, "device": 8, "os": 2, "runtime": 1, "engine": 4}


def nearest(wanted: ArchSpec, existing: Iterable[ArchSpec]) -> tuple[ArchSpec, tuple[str, ...]] | None:
    """Give the existing spec that differs least, with the names of the differing fields; None if none exists.

    The answer does not depend on the order of ``existing``.
    """

    def distance(spec: ArchSpec) -> tuple[int, int, int, str]:
        fields = wanted.differing_fields(spec)
        other_engine = int(wanted.engine_name != spec.engine_name) + int(wanted.device_kind != spec.device_kind)
        versions = sum(abs(a - b) for a, b in zip(wanted.engine_version, spec.engine_version, strict=True))
        return other_engine * 16 + sum(_FIELD_WEIGHT[field] for field in fields), len(fields), versions, str(spec)

    best = min(existing, key=distance, default=None)
    return None if best is None else (best, wanted.differing_fields(best))


# ---- this host -------------------------------------------------------------------------------------------------------

# Linux flag names of the micro-architecture levels (x86-64 psABI); abm stands for lzcnt, pni for sse3.
_X86_LEVELS: tuple[tuple[str, frozenset[str]], ...] = (
    ("cpuv2", frozenset({"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"})),
    ("cpuv3", frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"})),
    ("cpuv4", frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})),
)
_ARM_LEVELS: tuple[tuple[str, frozenset[str]], ...] = (
    ("cpu80", frozenset({"fp", "asimd"})),
    ("cpu82", frozenset({"atomics", "asimdrdm", "fphp", "asimdhp", "asimddp"})),
)
_CPU_OF_MACHINE = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


def device_levels(cpu: str, flags: Iterable[str]) -> list[str]:
    """Give the CPU levels that a set of CPU flags covers, best first; a level counts only if all below it do."""
    have = frozenset(flags)
    found: list[str] = []
    for level, needed in _X86_LEVELS if cpu == "amd64" else _ARM_LEVELS:
        if not needed <= have:
            break
        found.insert(0, level)
    return found


def host_cpu() -> str:
    """Give the ``cpu`` field of this machine.

    Raises:
        NotAvailableError: The machine is neither x86-64 nor aarch64.
    """
    machine = platform.machine().lower()
    if machine not in _CPU_OF_MACHINE:
        msg = f"this machine is {machine!r}, for which no arch spec exists"
        raise NotAvailableError(msg, hint="Run on x86-64 or aarch64 Linux.")
    return _CPU_OF_MACHINE[machine]


def host_device_levels(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Give the CPU levels that this machine can run, best first.

    Raises:
        NotAvailableError: The CPU is of an unknown kind or below the lowest level.
    """
    cpu = host_cpu()
    flags: list[str] = []
    for line in cpuinfo.read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() in {"flags", "Features"}:
            flags = value.split()
            break
    levels = device_levels(cpu, flags)
    if not levels:
        lowest = (_X86_LEVELS if cpu == "amd64" else _ARM_LEVELS)[0]
        msg = f"this CPU lacks {sorted(lowest[1] - set(flags))} of the lowest level {lowest[0]}"
        raise NotAvailableError(msg, hint="Use a newer CPU; kernels are never compiled below that level.")
    return levels


def host_runtime() -> str:
    """Give the ``runtime`` field of this machine's CPU targets, e.g. ``glibc236``.

    Raises:
        NotAvailableError: The C library is not glibc.
    """
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (ValueError, OSError):
        name, version = "", ""
    if name != "glibc":
        msg = f"the C library of this machine is not glibc (confstr says {name!r})"
        raise NotAvailableError(msg, hint="CPU targets need glibc: use a Debian or Ubuntu based system.")
    return "glibc" + "".join(version.split(".")[:2])


def host_arch_specs(engine: str) -> list[ArchSpec]:
    """Give every arch spec that this machine can run with a CPU engine, best level first.

    Args:
        engine: The ``engine`` field, e.g. ``ov20264``.

    Raises:
        UserError: The engine field is malformed.
        NotAvailableError: This machine is no CPU target.
    """
    return [ArchSpec(host_cpu(), level, "linux", host_runtime(), engine) for level in host_device_levels()]
