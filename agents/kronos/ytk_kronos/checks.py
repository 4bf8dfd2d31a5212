"""What is checked before anything of others is loaded: digests, arch specs, and that every node has its plugin."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

from ytk_core.archspec import ArchSpec, host_arch_specs, nearest
from ytk_core.digests import digest_file
from ytk_core.errors import FormatError, UserError
from ytk_core.formats.engine_bundle import EngineManifest
from ytk_core.formats.plugin_manifest import PluginManifest, read_plugin_manifest
from ytk_core.formats.plugin_meta import DeploymentTarget
from ytk_core.preflight import compare_node_meta, node_contracts_from_onnx
from ytk_kronos import hostlib
from ytk_kronos.engine_files import PluginNode
from ytk_kronos.engines.base import PluginFile


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckedPlugin:
    """A plugin whose file is what its manifest says."""

    path: Path
    digest: str
    manifest: PluginManifest

    @property
    def file(self) -> PluginFile:
        """What an engine needs of it."""
        meta = self.manifest.meta
        return PluginFile(
            path=self.path, namespace=meta.plugin_namespace, name=meta.plugin_name, version=meta.plugin_version
        )


def worker_arch_specs() -> list[ArchSpec]:
    """Give the arch specs that this worker serves, best first.

    Raises:
        NotAvailableError: OpenVINO is not installed, or this machine is no CPU target.
    """
    return host_arch_specs(hostlib.engine_field())


def check_arch(text: str, what: str) -> ArchSpec:
    """Check that this worker can run something made for an arch spec.

    Args:
        text: The arch spec.
        what: What was made for it, for the message.

    Raises:
        UserError: ``bad_arch_spec``; ``arch_mismatch``: names the fields that differ.
    """
    wanted = ArchSpec.parse(text)
    served = worker_arch_specs()
    if wanted in served:
        return wanted
    best = nearest(wanted, served)
    assert best is not None
    spec, fields = best
    differing = ", ".join(f"{field} {getattr(wanted, field)} instead of {getattr(spec, field)}" for field in fields)
    raise UserError(
        f"{what} is for {wanted}, which this worker cannot run: {differing}",
        code="arch_mismatch",
        hint=f"Build it for one of: {', '.join(map(str, served))}; or choose a worker of that arch spec.",
    )


def check_plugin(library: Path, manifest_path: Path, arch: ArchSpec) -> CheckedPlugin:
    """Check a plugin file against its manifest and this worker; nothing is loaded.

    Args:
        library: The ``.so``.
        manifest_path: Its manifest.
        arch: What the engine is for: a plugin of a higher CPU level does not fit it.

    Raises:
        FormatError: The manifest is none; ``plugin_digest``: the file is not the one the manifest is about.
        UserError: ``arch_mismatch``; ``plugin_audit``: it was built with a failed check; ``deployment_target``.
    """
    manifest = read_plugin_manifest(manifest_path)
    name = f"plugin {manifest.meta.plugin_namespace}::{manifest.meta.plugin_name} ({library.name})"
    digest = digest_file(library)
    if digest != manifest.so_digest:
        raise FormatError(
            f"{name}: the file has {digest}, its manifest is about {manifest.so_digest}",
            code="plugin_digest",
            hint="Keep the .so and the .so.manifest.json of one build together; build it again with `ytk embedded build-plugin`.",
        )
    if failed := [check for check in manifest.checks if not check.ok]:
        raise UserError(
            f"{name} failed the check {failed[0].name!r}: found {failed[0].found}, wanted {failed[0].wanted}",
            code="plugin_audit",
            hint=failed[0].fix or "Build it again with `ytk embedded build-plugin`.",
        )
    if manifest.meta.deployment_target is not DeploymentTarget.CPU:
        raise UserError(
            f"{name} was generated for deployment_target={manifest.meta.deployment_target}, this engine takes cpu",
            code="deployment_target",
            hint="Generate it with `ytk kernelgen compile --config deployment_target=cpu`.",
        )
    built_for = check_arch(manifest.arch_spec, name)
    served = worker_arch_specs()
    if served.index(built_for) < served.index(arch):
        raise UserError(
            f"{name} is for {built_for}, which is above the engine's {arch}: device {built_for.device} instead of {arch.device}",
            code="arch_mismatch",
            hint=f"Build it with `ytk embedded build-plugin -a {arch}`.",
        )
    return CheckedPlugin(path=library, digest=digest, manifest=manifest)


def check_registered(nodes: Iterable[PluginNode], plugins: Sequence[PluginFile]) -> None:
    """Check that every custom node has a plugin of its name, namespace and version, and that no two plugins share them.

    Raises:
        UserError: ``duplicate_plugin``; ``plugin_version``; ``missing_plugin``: names all that are missing.
    """
    by_name: dict[str, PluginFile] = {}
    for plugin in plugins:
        other = by_name.setdefault(plugin.placeholder, plugin)
        if other is not plugin:
            raise UserError(
                f"two plugins register {plugin.placeholder}: {other.path.name} and {plugin.path.name}",
                code="duplicate_plugin",
                hint="Give one --custom-plugin per placeholder.",
            )
    missing: dict[str, int] = {}
    for node in nodes:
        found = by_name.get(node.placeholder)
        if found is None:
            missing[node.placeholder] = missing.get(node.placeholder, 0) + 1
        elif found.version != node.version:
            raise UserError(
                f"node {node.name!r} asks for {node.placeholder} version {node.version!r}, {found.path.name} is version {found.version!r}",
                code="plugin_version",
                hint="Build the plugin from a kernel bundle of the node's version.",
            )
    if missing:
        text = ", ".join(f"{name} ({count} node{'s' if count > 1 else ''})" for name, count in sorted(missing.items()))
        given = ", ".join(sorted(by_name)) or "none"
        raise UserError(
            f"no plugin is registered for {text}; given: {given}",
            code="missing_plugin",
            hint="Build each with `ytk embedded build-plugin` and pass it with --custom-plugin.",
        )


def check_contracts(model: Path, plugins: Sequence[CheckedPlugin], precision: str, arch: ArchSpec) -> None:
    """Compare every custom node with its plugin's contract; engines would report a difference late and vaguely.

    Raises:
        UserError: ``plugin_mismatch``: names the first difference.
    """
    metas = {plugin.file.placeholder: plugin.manifest.meta for plugin in plugins}
    for node in node_contracts_from_onnx(model):
        meta = metas.get(f"{node.namespace}::{node.name}")
        differences = compare_node_meta(node, meta, precision, arch) if meta is not None else []
        if differences:
            more = f" (and {len(differences) - 1} more differences)" if len(differences) > 1 else ""
            raise UserError(f"{differences[0].text()}{more}", code="plugin_mismatch", hint=differences[0].hint)


def check_bundle(manifest: EngineManifest, origin: str) -> ArchSpec:
    """Check that this worker can run an engine bundle, before it is unpacked.

    Raises:
        UserError: ``arch_mismatch``; ``engine_version``: it was built by another version.
    """
    arch = check_arch(manifest.arch_spec, origin)
    here = hostlib.openvino_version()
    if manifest.engine_version != here:
        raise UserError(
            f"{origin} was built by {manifest.engine_name} {manifest.engine_version}, this worker has {here}",
            code="engine_version",
            hint="Build it again with `ytk embedded compile`, or choose a worker with that version.",
        )
    return arch
