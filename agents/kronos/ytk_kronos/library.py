"""Kronos without controller or network: what the agent does, called as a library."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ytk_core.agent.handler import JobHandler
from ytk_core.agent.local import run_job_locally
from ytk_core.archspec import ArchSpec
from ytk_core.files import atomic_write
from ytk_core.formats.engine_bundle import EngineManifest, read_manifest
from ytk_core.formats.plugin_manifest import SUFFIX
from ytk_core.formats.verify_report import VerifyReport, read_verify_report
from ytk_core.jobs import EngineBuildParams, EngineProfileParams, EngineVerifyParams, JobKind, JobSpec
from ytk_core.sandbox import SandboxMode
from ytk_kronos import checks, hostlib
from ytk_kronos.handlers import BuildHandler, ProfileHandler, VerifyHandler
from ytk_kronos.trust import PluginTrust

# Who calls a function with a file of their own vouches for it; an agent, whose files come from others, does not.
CALLER = PluginTrust(allow_unsigned=True)

Log = Callable[[str], Any]


def build(
    onnx: Path,
    npz: Path | None,
    out: Path,
    *,
    plugins: Sequence[Path] = (),
    arch: ArchSpec | None = None,
    params: EngineBuildParams | None = None,
    cache_dir: Path | None = None,
    sandbox_mode: SandboxMode = "optional",
    log: Log | None = None,
    trust: PluginTrust = CALLER,
) -> EngineManifest:
    """Build an engine bundle on this machine.

    Args:
        onnx: The model.
        npz: Its weights; None if they are inline.
        out: The ``.tgz``.
        plugins: Plugin libraries, each with its ``.manifest.json`` beside it.
        arch: One of this machine's arch specs; the best one by default.
        params: Precision, iterations, threads.
        cache_dir: Where the engine host library is kept; per user by default.
        sandbox_mode: As an agent's.
        log: Takes the log text; standard error by default.
        trust: Whose plugins are loaded; by default all.

    Raises:
        YtkError: As :class:`ytk_kronos.handlers.BuildHandler`.
    """
    files = {"model.onnx": onnx}
    if npz is not None:
        files["model.npz"] = npz
    for index, plugin in enumerate(plugins):
        name = f"plugins/{index:02d}/{plugin.name}"
        files |= {name: plugin, f"{name}{SUFFIX}": plugin.with_name(plugin.name + SUFFIX)}
    handler = BuildHandler(cache_dir or hostlib.default_cache_dir(), trust=trust)
    spec = _spec(JobKind.ENGINE_BUILD, params or EngineBuildParams(), str(arch or checks.worker_arch_specs()[0]))
    _run(handler, spec, files, {"engine.tgz": out}, sandbox_mode, log)
    return read_manifest(out)


def profile(
    bundle: Path,
    out: Path,
    *,
    params: EngineProfileParams | None = None,
    cache_dir: Path | None = None,
    sandbox_mode: SandboxMode = "optional",
    log: Log | None = None,
    trust: PluginTrust = CALLER,
) -> EngineManifest:
    """Measure an engine bundle anew on this machine and write it to ``out``; ``trust``: whose plugins are loaded.

    Raises:
        YtkError: As :class:`ytk_kronos.handlers.ProfileHandler`.
    """
    handler = ProfileHandler(cache_dir or hostlib.default_cache_dir(), trust=trust)
    spec = _spec(JobKind.ENGINE_PROFILE, params or EngineProfileParams())
    _run(handler, spec, {"engine.tgz": bundle}, {"engine.tgz": out}, sandbox_mode, log)
    return read_manifest(out)


def verify(
    reference: Path,
    bundle: Path,
    out: Path,
    *,
    params: EngineVerifyParams | None = None,
    cache_dir: Path | None = None,
    sandbox_mode: SandboxMode = "optional",
    log: Log | None = None,
    trust: PluginTrust = CALLER,
) -> VerifyReport:
    """Run an engine bundle on this machine against a reference and write the report to ``out``; ``trust``: whose plugins are loaded.

    Raises:
        YtkError: As :class:`ytk_kronos.handlers.VerifyHandler`.
    """
    handler = VerifyHandler(cache_dir or hostlib.default_cache_dir(), trust=trust)
    spec = _spec(JobKind.ENGINE_VERIFY, params or EngineVerifyParams())
    files = {"engine.tgz": bundle, "reference.npz": reference}
    _run(handler, spec, files, {"verify.json": out}, sandbox_mode, log)
    return read_verify_report(out)


def _spec(kind: JobKind, params: msgspec.Struct, arch: str = "") -> JobSpec:
    return JobSpec(kind=kind, arch_spec=arch, params=msgspec.to_builtins(params), measuring=True)


def _run(
    handler: JobHandler,
    spec: JobSpec,
    files: Mapping[str, Path],
    outputs: Mapping[str, Path],
    sandbox_mode: SandboxMode,
    log: Log | None,
) -> None:
    with tempfile.TemporaryDirectory(prefix="ytk-kronos-") as directory:
        job = run_job_locally(handler, spec, files, Path(directory), sandbox_mode=sandbox_mode, log=log)
        outcome = asyncio.run(job)
        for name, path in outputs.items():
            with outcome.outputs[name].open("rb") as source, atomic_write(path) as stream:
                shutil.copyfileobj(source, stream)
