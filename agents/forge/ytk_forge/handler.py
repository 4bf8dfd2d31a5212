"""The job kind that Forge takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ytk_core.agent.handler import JobContext
from ytk_core.errors import UserError
from ytk_core.jobs import JobKind, JobResult, PluginBuildParams
from ytk_forge.cache import FILES
from ytk_forge.tasks import BuildTask


class BuildHandler:
    """``plugin.build``: input ``source``; outputs ``plugin.so``, ``manifest.json``, ``build.log``."""

    kinds = frozenset({JobKind.PLUGIN_BUILD})

    def __init__(
        self, cache_dir: Path, toolchain_dirs: Sequence[Path] = (), *, signing_key: Path | None = None
    ) -> None:
        """Take paths only: the key is read in the trusted child that signs.

        Args:
            cache_dir: Finished builds.
            toolchain_dirs: Before the shipped toolchain files.
            signing_key: File of the private key; None leaves manifests unsigned.
        """
        self._cache_dir = cache_dir
        self._signing_key = signing_key
        self._toolchain_dirs = tuple(toolchain_dirs)

    async def run(self, ctx: JobContext) -> JobResult:
        """Build in a trusted child, which puts the compiler and the probe into the sandbox.

        Raises:
            YtkError: As :func:`ytk_forge.build.build_plugin`; UserError ("bad_params") for unknown parameters.
        """
        try:
            params = msgspec.convert(ctx.spec.params, PluginBuildParams)
        except msgspec.ValidationError as err:
            msg = f"plugin.build: {err}"
            raise UserError(
                msg,
                code="bad_params",
                hint="plugin.build takes declared_abi and nothing else; names are in the bundle.",
            ) from err
        source = await ctx.fetch("source")
        task = BuildTask(
            source=str(source),
            arch_spec=ctx.spec.arch_spec,
            cache_dir=str(self._cache_dir),
            sandbox_mode=ctx.sandbox_mode,
            toolchain_dirs=tuple(map(str, self._toolchain_dirs)),
            signing_key=str(self._signing_key) if self._signing_key else None,
            declared_abi=params.declared_abi,
        )
        summary = await ctx.run_task("ytk_forge.tasks:build", msgspec.to_builtins(task), sandbox=None)
        outputs = await ctx.publish({name: ctx.workdir / task.out_dir / name for name in FILES})
        return JobResult(outputs=outputs, summary=summary)
