"""Forge's work as task functions: run in a child process of the agent (trusted; the compiler and the probe are sandboxed)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from ytk_core.agent.tasks import report_progress
from ytk_core.archspec import ArchSpec
from ytk_core.sandbox import SandboxMode
from ytk_core.signing import load_key
from ytk_forge.build import build_plugin
from ytk_forge.toolchain import load_toolchains


class BuildTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What :func:`build` takes; paths are absolute or below the working directory."""

    source: str
    arch_spec: str
    cache_dir: str
    sandbox_mode: SandboxMode
    out_dir: str = "out"
    toolchain_dirs: tuple[str, ...] = ()
    signing_key: str | None = None
    """Path of the private key; None: the manifest is not signed."""
    declared_abi: bool = False


def build(task: dict[str, Any], workdir: Path) -> dict[str, Any]:
    """Build a plugin; ``task`` is a :class:`BuildTask`.

    Returns:
        The job's summary: name, namespace, version, digest and size of the library, toolchain, names of the checks, what only
        the target can tell, id of the key that signed it.
    """
    wanted = msgspec.convert(task, BuildTask)
    report_progress(0.0, "building")
    out_dir = workdir / wanted.out_dir
    manifest = build_plugin(
        workdir / wanted.source,
        ArchSpec.parse(wanted.arch_spec),
        out_dir,
        Path(wanted.cache_dir),
        wanted.sandbox_mode,
        toolchains=load_toolchains([Path(entry) for entry in wanted.toolchain_dirs]),
        log=_say,
        signing_key=load_key(Path(wanted.signing_key)) if wanted.signing_key else None,
        declared_abi=wanted.declared_abi,
    )
    report_progress(1.0, "built")
    return {
        "namespace": manifest.meta.plugin_namespace,
        "name": manifest.meta.plugin_name,
        "version": manifest.meta.plugin_version,
        "arch_spec": manifest.arch_spec,
        "so_digest": manifest.so_digest,
        "so_bytes": (out_dir / "plugin.so").stat().st_size,
        "toolchain": manifest.toolchain,
        "checks": [check.name for check in manifest.checks],
        "unverified": list(manifest.unseen),
        "target_verified": manifest.target_verified,
        "signed_by": None if isinstance(manifest.signature, msgspec.UnsetType) else manifest.signature.key_id,
    }


def _say(text: str) -> None:
    """Write to the job's log at once: a compiler may take minutes."""
    sys.stdout.write(text)
    sys.stdout.flush()
