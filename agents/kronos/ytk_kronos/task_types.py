"""What the tasks of Kronos take, and the names of what they leave. Paths are absolute or relative to the work directory."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from ytk_core.errors import ToolkitError
from ytk_core.formats.verify_report import PluginUse
from ytk_core.input_ranges import InputRange
from ytk_kronos.engine_files import BenchmarkFile

OUT = "out"
"""Directory of what a sandboxed task leaves."""
BUNDLE = "engine.tgz"
VERIFY = "verify.json"
OUTPUTS = "outputs.npz"
INPUTS = "inputs.npz"
RUN = "run.json"
RUN_SCHEMA_VERSION = 1

T = TypeVar("T")


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class PluginInput(_Strict, frozen=True, kw_only=True):
    """A plugin of a build: library and manifest. ``signed_by``: the trusted key that signed it, if one did."""

    file: str
    manifest: str
    signed_by: str | None = None


class Measuring(_Strict, frozen=True, kw_only=True):
    """How to measure, and on what."""

    iterations: int
    warmup: int
    threads: int
    worker_id: str = ""
    device_uid: str = ""


class BuildTask(_Strict, frozen=True, kw_only=True):
    """For ``build_engine`` and ``assemble_bundle``."""

    model: str
    weights: str | None
    plugins: tuple[PluginInput, ...]
    host_library: str | None
    arch: str
    precision: str
    measuring: Measuring
    ranges: tuple[InputRange, ...] = ()


class OpenTask(_Strict, frozen=True, kw_only=True):
    """For ``open_bundle``: unpack into ``dest``, and the reference's inputs (never its outputs) beside it."""

    bundle: str
    dest: str
    reference: str | None = None


class RunTask(_Strict, frozen=True, kw_only=True):
    """For ``profile_engine`` and ``run_samples``; ``bundle_dir`` is an unpacked bundle, ``name`` the benchmark row's."""

    bundle_dir: str
    host_library: str | None
    measuring: Measuring
    inputs: str | None = None
    name: str = "engine"


class ReassembleTask(_Strict, frozen=True, kw_only=True):
    """For ``reassemble_bundle``: a bundle, the same unpacked, and the directory with the measurements taken anew."""

    bundle: str
    bundle_dir: str
    fresh: str


class VerifyTask(_Strict, frozen=True, kw_only=True):
    """For ``verify_outputs``; ``results`` is the directory that ``run_samples`` filled."""

    bundle: str
    reference: str
    results: str
    rtol: float | None = None
    atol: float | None = None


class RunFile(_Strict, frozen=True, kw_only=True):
    """``run.json``, which ``run_samples`` leaves beside ``outputs.npz``."""

    outputs: tuple[str, ...]
    samples: int
    benchmark: BenchmarkFile
    plugins: tuple[PluginUse, ...]
    schema_version: int = RUN_SCHEMA_VERSION


def decode(task: dict[str, Any], kind: type[T]) -> T:
    """Give a task's parameters.

    Raises:
        ToolkitError: ``bad_task``: the handler passed something else.
    """
    try:
        return msgspec.convert(task, kind, strict=True)
    except msgspec.ValidationError as err:
        raise ToolkitError(f"{kind.__name__}: {err}", code="bad_task") from err


def sample_key(index: int, name: str) -> str:
    """Give the member name of a tensor of a sample."""
    return f"sample{index}/{name}"
