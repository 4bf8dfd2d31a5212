"""Audit a library that was built before, against the manifest that came with it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ytk_core.archspec import ArchSpec
from ytk_core.digests import digest_file
from ytk_core.errors import FormatError
from ytk_core.formats.plugin_manifest import SUFFIX, CheckResult, PluginManifest, read_plugin_manifest
from ytk_core.sandbox import SandboxMode
from ytk_forge.audit import audit
from ytk_forge.cache import MANIFEST
from ytk_forge.toolchain import Toolchain, find_compiler, toolchain_for

DIGEST = "digest"
"""The check that the file is the one that its manifest describes."""


def find_manifest(library: Path) -> Path:
    """Give the manifest of a library: ``<file>.manifest.json``, else ``manifest.json`` beside it.

    Raises:
        FormatError: There is neither.
    """
    candidates = (library.with_name(library.name + SUFFIX), library.with_name(MANIFEST))
    for path in candidates:
        if path.is_file():
            return path
    msg = f"{library}: no manifest beside it ({' or '.join(path.name for path in candidates)})"
    raise FormatError(
        msg, code="no_manifest", hint="Name it with --manifest, or build the plugin again: the manifest comes with it."
    )


def check_library(
    library: Path,
    manifest: PluginManifest,
    *,
    toolchains: Sequence[Toolchain] | None = None,
    arch: ArchSpec | None = None,
    mode: SandboxMode = "required",
) -> list[CheckResult]:
    """Audit a library again; the first result, ``digest``, says whether it is the one that the manifest describes.

    Args:
        library: The ``.so``.
        manifest: What it should be.
        toolchains: Instead of the shipped toolchain files.
        arch: Audit for this arch spec instead of the manifest's.
        mode: "optional" loads it without a sandbox where none works.

    Raises:
        FormatError: There is no such library.
        UserError: No toolchain for the arch spec.
        NotAvailableError: The toolchain's compiler is missing.
        BoardError: No sandbox works and ``mode`` is ``required``.
    """
    if not library.is_file():
        msg = f"{library}: no such file (a plugin library is expected here)"
        raise FormatError(msg, code="no_such_file", hint="Check the path.")
    target = arch or ArchSpec.parse(manifest.arch_spec)
    toolchain = toolchain_for(target, toolchains)
    compiler = find_compiler(toolchain)
    found = digest_file(library)
    same = found == manifest.so_digest
    fix = "" if same else "The file was changed or belongs to another manifest: build it again."
    digest = CheckResult(name=DIGEST, ok=same, found=found, wanted=manifest.so_digest, fix=fix)
    if not same:
        # It is not what Forge built, so it is not loaded.
        return [digest]
    return [digest, *audit(library, meta=manifest.meta, arch=target, toolchain=toolchain, compiler=compiler, mode=mode)]


def read_manifest_for(library: Path, manifest: Path | None) -> PluginManifest:
    """Read the named manifest, or the one beside the library."""
    return read_plugin_manifest(manifest or find_manifest(library))
