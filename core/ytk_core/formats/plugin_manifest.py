"""Plugin manifests: what Forge says about one built ``.so``; written beside it as ``<file>.so.manifest.json``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ytk_core.archspec import ArchSpec
from ytk_core.digests import check_digest
from ytk_core.errors import FormatError, UserError
from ytk_core.formats import codec
from ytk_core.formats.plugin_meta import PluginMeta
from ytk_core.formats.plugin_meta_checks import meta_digest, validate

SCHEMA_VERSION = 1
SUFFIX = ".manifest.json"
NOT_TARGET_VERIFIED = "Not target-verified"
"""How the sentence in ``unverified`` begins that says so."""
MARK = " (NOT TARGET-VERIFIED)"


class CheckResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One audit check: what was found, what was wanted, and how to mend it."""

    name: str
    ok: bool
    found: str
    wanted: str
    fix: str = ""


class ManifestSignature(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who vouches for a manifest; made and checked by :mod:`ytk_core.signing`. ``value``: base64."""

    algorithm: str
    key_id: str
    value: str


class PluginManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One built plugin. ``toolchain``: the toolchain file's id; ``tools``: tool name to version.

    A field that is UNSET is absent from the file.
    """

    schema_version: int = SCHEMA_VERSION
    arch_spec: str
    so_digest: str
    meta: PluginMeta
    meta_digest: str
    bundle_digest: str
    toolchain: str
    tools: dict[str, str]
    checks: tuple[CheckResult, ...]
    unverified: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """What no check could see on the machine that built it, a sentence each: only the target can tell."""
    signature: ManifestSignature | msgspec.UnsetType = msgspec.UNSET

    @property
    def unseen(self) -> tuple[str, ...]:
        """What only the target can tell; empty where every check was made."""
        return () if isinstance(self.unverified, msgspec.UnsetType) else self.unverified

    @property
    def mark(self) -> str:
        """What tables add to its name; empty where there is nothing to warn of."""
        return "" if self.target_verified else MARK

    @property
    def target_verified(self) -> bool:
        """Whether it was compiled against the target engine's own interface; no table shows the plugin without this mark."""
        return not any(text.startswith(NOT_TARGET_VERIFIED) for text in self.unseen)

    @property
    def ok(self) -> bool:
        """Whether every check passed."""
        return all(check.ok for check in self.checks)


def _check(manifest: PluginManifest, origin: str) -> None:
    try:
        ArchSpec.parse(manifest.arch_spec)
        for field in ("so_digest", "bundle_digest"):
            check_digest(getattr(manifest, field))
        validate(manifest.meta)
    except UserError as err:
        msg = f"{origin}: {err.message}"
        raise FormatError(msg, hint="Build the plugin again with `ytk embedded build-plugin`.") from err
    if manifest.meta_digest != meta_digest(manifest.meta):
        msg = f"{origin}: $.meta_digest is {manifest.meta_digest!r}, the meta's is {meta_digest(manifest.meta)}"
        raise FormatError(msg, hint="The manifest was edited; build the plugin again with `ytk embedded build-plugin`.")
    names = [check.name for check in manifest.checks]
    if len(set(names)) != len(names):
        msg = f"{origin}: $.checks has two entries of one name"
        raise FormatError(msg, hint="Build the plugin again with `ytk embedded build-plugin`.")


def make_manifest(
    *,
    arch: ArchSpec,
    so_digest: str,
    meta: PluginMeta,
    bundle_digest: str,
    toolchain: str,
    tools: dict[str, str],
    checks: Sequence[CheckResult],
    unverified: Sequence[str] = (),
) -> PluginManifest:
    """Put a manifest together; the meta's digest is computed."""
    return PluginManifest(
        arch_spec=str(arch),
        so_digest=so_digest,
        meta=meta,
        meta_digest=meta_digest(meta),
        bundle_digest=bundle_digest,
        toolchain=toolchain,
        tools=dict(sorted(tools.items())),
        checks=tuple(checks),
        unverified=tuple(unverified) or msgspec.UNSET,
    )


def write_plugin_manifest(path: Path | str, manifest: PluginManifest) -> None:
    """Write a manifest.

    Raises:
        FormatError: It contradicts itself.
        BoardError: ``disk_full``.
    """
    _check(manifest, str(path))
    codec.write_json(path, manifest)


def read_plugin_manifest(path: Path | str) -> PluginManifest:
    """Read a manifest.

    Raises:
        FormatError: It is not one, or it contradicts itself.
    """
    text = codec.read_bytes(path, "plugin manifest")
    manifest = codec.decode(text, PluginManifest, str(path), schema_version=SCHEMA_VERSION, what="plugin manifest")
    _check(manifest, str(path))
    return manifest
