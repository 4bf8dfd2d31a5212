"""The job kinds that Kronos takes. The agent's process imports no engine: each step is a task in a child of its own."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ytk_core.agent.handler import JobContext
from ytk_core.errors import FailureClass, UserError
from ytk_core.formats.engine_bundle import read_manifest
from ytk_core.formats.plugin_manifest import SUFFIX
from ytk_core.jobs import EngineBuildParams, EngineProfileParams, EngineVerifyParams, JobKind, JobResult
from ytk_core.sandbox import SandboxPolicy
from ytk_kronos import hostlib
from ytk_kronos.task_types import (
    BUNDLE,
    INPUTS,
    OUT,
    VERIFY,
    BuildTask,
    Measuring,
    OpenTask,
    PluginInput,
    ReassembleTask,
    RunTask,
    VerifyTask,
)
from ytk_kronos.trust import PluginTrust

_MODEL = "model.onnx"
_WEIGHTS = "model.npz"
_PLUGINS = "plugins/"
_REFERENCE = "reference.npz"
# The sandboxed part of a job that also holds secrets of the judge works below this, and sees nothing beside it.
_CONFINED = "engine"
_UNPACKED = f"{_CONFINED}/in/bundle"
_MAX_FILE_BYTES = 16 * 1024**3
_MAX_PROCESSES = 512  # threads count: the engine's pool and each kernel's

Params = TypeVar("Params", EngineBuildParams, EngineProfileParams, EngineVerifyParams)


class _Handler:
    """What the three kinds share.

    Args:
        cache_dir: Where the compiled engine host library is kept.
        device_uid: The device that measurements are of.
        trust: Whose plugins are loaded; by default nobody's.
    """

    def __init__(self, cache_dir: Path, device_uid: str = "", *, trust: PluginTrust | None = None) -> None:
        self._cache_dir = cache_dir
        self._device_uid = device_uid
        self._trust = trust or PluginTrust()

    async def _vouched(self, ctx: JobContext, plugins: tuple[PluginInput, ...]) -> tuple[PluginInput, ...]:
        """Give the plugins with the key that signed each.

        Raises:
            UserError: As :meth:`ytk_kronos.trust.PluginTrust.check`.
        """
        found: list[PluginInput] = []
        for plugin in plugins:
            library = Path(plugin.file)
            key_id = await asyncio.to_thread(self._trust.check, library, Path(plugin.manifest))
            who = (
                f"signed with key {key_id}"
                if key_id
                else "no trusted Forge signed it; this worker loads such plugins too"
            )
            ctx.log(f"plugin {library.name}: {who}")
            found.append(msgspec.structs.replace(plugin, signed_by=key_id))
        return tuple(found)

    async def _check_bundled(self, ctx: JobContext, bundle: Path) -> bool:
        """Check who vouches for the plugins of an unpacked bundle; gives whether it has any.

        Raises:
            UserError: As :meth:`ytk_kronos.trust.PluginTrust.check`.
            FormatError: A manifest is missing in the bundle.
        """
        entries = (await asyncio.to_thread(read_manifest, bundle)).plugins
        root = ctx.workdir / _UNPACKED
        files = [(str(root / entry.file), str(root / f"{entry.file}{SUFFIX}")) for entry in entries]
        await self._vouched(ctx, tuple(PluginInput(file=file, manifest=manifest) for file, manifest in files))
        return bool(entries)

    async def _host_library(self, ctx: JobContext) -> str:
        # Compiling our own sources is trusted work, and the sandbox could not keep its result.
        lines: list[str] = []
        try:
            return str(await asyncio.to_thread(hostlib.ensure_host, self._cache_dir, lines.append))
        finally:
            for line in lines:
                ctx.log(line)

    def _measuring(self, ctx: JobContext, params: Params) -> Measuring:
        available = len(os.sched_getaffinity(0))
        if not 0 <= params.threads <= available:
            raise UserError(
                f"threads is {params.threads}, this worker has {available} CPUs",
                code="threads",
                hint=f"Use 1 to {available}, or 0 for all of them.",
            )
        return Measuring(
            iterations=params.iterations,
            warmup=params.warmup,
            threads=params.threads or available,
            worker_id=ctx.worker_id,
            device_uid=self._device_uid,
        )


class BuildHandler(_Handler):
    """``engine.build``: model, weights and plugins to an engine bundle."""

    kinds = frozenset({JobKind.ENGINE_BUILD})

    async def run(self, ctx: JobContext) -> JobResult:
        """Build.

        Raises:
            YtkError: As :mod:`ytk_kronos.tasks`; UserError ``bad_params``, ``no_manifest``, or who may not be loaded:
                :class:`ytk_kronos.trust.PluginTrust`.
        """
        params = _params(ctx, EngineBuildParams)
        measuring = self._measuring(ctx, params)
        model = await ctx.fetch(_MODEL)
        weights = (await ctx.fetch_all(_WEIGHTS)).get(_WEIGHTS)
        plugins = await self._vouched(ctx, _pair_up(await ctx.fetch_all(_PLUGINS)))
        host = await self._host_library(ctx) if plugins else None
        task = BuildTask(
            model=str(model),
            weights=str(weights) if weights else None,
            plugins=plugins,
            host_library=host,
            arch=ctx.spec.arch_spec,
            precision=params.precision,
            measuring=measuring,
            ranges=params.ranges,
        )
        await ctx.run_task("ytk_kronos.tasks:build_engine", _plain(task), sandbox=_policy(host), blame=_blame(plugins))
        ctx.progress(0.9, "writing the engine bundle")
        summary = await ctx.run_task("ytk_kronos.tasks:assemble_bundle", _plain(task), sandbox=None)
        outputs = await ctx.publish({BUNDLE: ctx.workdir / BUNDLE})
        return JobResult(outputs=outputs, summary=summary)


class ProfileHandler(_Handler):
    """``engine.profile``: an engine bundle to the same with measurements taken anew."""

    kinds = frozenset({JobKind.ENGINE_PROFILE})

    async def run(self, ctx: JobContext) -> JobResult:
        """Profile.

        Raises:
            YtkError: As :mod:`ytk_kronos.tasks`; UserError ``bad_params``.
        """
        params = _params(ctx, EngineProfileParams)
        measuring = self._measuring(ctx, params)
        bundle = await ctx.fetch(BUNDLE)
        opening = OpenTask(bundle=str(bundle), dest=_UNPACKED)
        await ctx.run_task("ytk_kronos.tasks:open_bundle", _plain(opening), sandbox=None)
        host = await self._host_library(ctx) if await self._check_bundled(ctx, bundle) else None
        task = RunTask(bundle_dir="in/bundle", host_library=host, measuring=measuring)
        await ctx.run_task(
            "ytk_kronos.tasks:profile_engine",
            _plain(task),
            sandbox=_policy(host),
            blame=_blame(host),
            subdir=_CONFINED,
        )
        again = ReassembleTask(bundle=str(bundle), bundle_dir=_UNPACKED, fresh=f"{_CONFINED}/{OUT}")
        summary = await ctx.run_task("ytk_kronos.tasks:reassemble_bundle", _plain(again), sandbox=None)
        outputs = await ctx.publish({BUNDLE: ctx.workdir / BUNDLE})
        return JobResult(outputs=outputs, summary=summary)


class VerifyHandler(_Handler):
    """``engine.verify``: an engine bundle and a reference to a report."""

    kinds = frozenset({JobKind.ENGINE_VERIFY})

    async def run(self, ctx: JobContext) -> JobResult:
        """Run the engine on the reference's inputs, and judge its outputs where it cannot reach.

        Raises:
            YtkError: As :mod:`ytk_kronos.tasks`; UserError ``bad_params``.
        """
        params = _params(ctx, EngineVerifyParams)
        measuring = self._measuring(ctx, params)
        bundle, reference = await ctx.fetch(BUNDLE), await ctx.fetch(_REFERENCE)
        opening = OpenTask(bundle=str(bundle), dest=_UNPACKED, reference=str(reference))
        await ctx.run_task("ytk_kronos.tasks:open_bundle", _plain(opening), sandbox=None)
        host = await self._host_library(ctx) if await self._check_bundled(ctx, bundle) else None
        task = RunTask(
            bundle_dir="in/bundle",
            host_library=host,
            measuring=measuring,
            inputs=f"in/{INPUTS}",
        )
        await ctx.run_task(
            "ytk_kronos.tasks:run_samples", _plain(task), sandbox=_policy(host), blame=_blame(host), subdir=_CONFINED
        )
        ctx.progress(0.9, "comparing")
        judging = VerifyTask(
            bundle=str(bundle),
            reference=str(reference),
            results=f"{_CONFINED}/{OUT}",
            rtol=params.rtol,
            atol=params.atol,
        )
        summary = await ctx.run_task("ytk_kronos.tasks:verify_outputs", _plain(judging), sandbox=None)
        outputs = await ctx.publish({VERIFY: ctx.workdir / VERIFY})
        return JobResult(outputs=outputs, summary=summary)


def _params(ctx: JobContext, kind: type[Params]) -> Params:
    try:
        return msgspec.convert(ctx.spec.params, kind)
    except msgspec.ValidationError as err:
        raise UserError(
            f"{ctx.spec.kind}: {err}", code="bad_params", hint=f"Parameters: {', '.join(kind.__struct_fields__)}."
        ) from err


def _pair_up(files: dict[str, Path]) -> tuple[PluginInput, ...]:
    """Put each library with its manifest.

    Raises:
        UserError: ``no_manifest``: one of the two is missing.
    """
    libraries = sorted(name for name in files if not name.endswith(SUFFIX))
    for name in libraries:
        if f"{name}{SUFFIX}" not in files:
            raise UserError(
                f"{name} came without {Path(name).name}{SUFFIX}",
                code="no_manifest",
                hint="Keep the two files that `ytk embedded build-plugin` writes together.",
            )
    if orphans := [name for name in files if name.endswith(SUFFIX) and name.removesuffix(SUFFIX) not in files]:
        raise UserError(f"{orphans[0]} came without its library", code="no_manifest", hint="Send both files.")
    return tuple(PluginInput(file=str(files[name]), manifest=str(files[f"{name}{SUFFIX}"])) for name in libraries)


def _policy(host_library: str | None) -> SandboxPolicy:
    """What an engine's process may use: all of the machine's memory, but no more (else the whole worker dies)."""
    return SandboxPolicy(
        read_only=(Path(host_library),) if host_library else (),
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        file_bytes=_MAX_FILE_BYTES,
        processes=_MAX_PROCESSES,
    )


def _blame(plugins: object) -> FailureClass:
    """A crash is the kernel's if there is one; else the engine's, which is ours to choose."""
    return FailureClass.CANDIDATES if plugins else FailureClass.OURS


def _plain(task: msgspec.Struct) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(task)
    return plain
