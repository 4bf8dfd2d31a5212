"""What the client checks about kernels and plugins before anything is sent.

An engine would answer the same mistakes after minutes with ``Error 9`` or ``could not find any supported formats``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from ytk_core.archspec import FIELDS, ArchSpec
from ytk_core.errors import FormatError, UserError
from ytk_core.formats.plugin_manifest import SUFFIX, PluginManifest, read_plugin_manifest
from ytk_core.formats.plugin_meta import DeploymentTarget, PluginMeta
from ytk_core.preflight import NodeContract, compare_node_meta, node_contracts_from_onnx

TARGET_OF_ENGINE: dict[str, DeploymentTarget] = {
    "openvino": DeploymentTarget.CPU,
    "onnxruntime": DeploymentTarget.CPU,
    "tensorrt": DeploymentTarget.TENSORRT,
}


class CustomPlugin(msgspec.Struct, frozen=True, kw_only=True):
    """A ``--custom-plugin`` with the manifest beside it."""

    path: Path
    manifest: PluginManifest

    @property
    def identity(self) -> tuple[str, str, str]:
        """Namespace, name and version: what a node asks for."""
        meta = self.manifest.meta
        return meta.plugin_namespace, meta.plugin_name, meta.plugin_version


def manifest_path(so_path: Path) -> Path:
    """Give the manifest's place: beside the ``.so``, under its name and ``.manifest.json``."""
    return so_path.with_name(so_path.name + SUFFIX)


def prepare_source(source: Path, arch_text: str, *, name: str, namespace: str | None) -> str:
    """Read a kernel bundle and give the text of a copy under the plugin's name; the file itself stays as it is.

    Raises:
        FormatError: It is not a kernel bundle.
        UserError: The arch spec is bad, or the kernel was made for another kind of target.
    """
    from ytk_core.formats.kernel_bundle import parse_bundle, read_bundle, renamed, render_bundle

    arch = ArchSpec.parse(arch_text)
    text = render_bundle(read_bundle(source))
    text = renamed(text, name=name, namespace=namespace, origin=str(source))
    check_target(parse_bundle(text, str(source)).meta, arch, str(source))
    return text


def check_target(meta: PluginMeta, arch: ArchSpec, origin: str) -> None:
    """Check that a kernel is for the kind of target that an arch spec names.

    Raises:
        UserError: Code ``wrong_deployment_target`` or ``wrong_arch``.
    """
    wanted = TARGET_OF_ENGINE[arch.engine_name]
    if meta.deployment_target is not wanted:
        raise UserError(
            f"{origin} was generated for deployment_target={meta.deployment_target}, but {arch} runs "
            f"{arch.engine_name}, which takes deployment_target={wanted}",
            code="wrong_deployment_target",
            hint=f"Generate it again: ytk kernelgen compile ... --config deployment_target={wanted}",
        )
    for field, value in meta.constraints.arch.items():
        if field in FIELDS and getattr(arch, field) != value:
            raise UserError(
                f"{origin} is for {field}={value}, the arch spec {arch} has {field}={getattr(arch, field)}",
                code="wrong_arch",
                hint=f"Generate the kernel on a worker with {field}={getattr(arch, field)}, or build for another -a.",
            )


def load_plugins(paths: Sequence[Path]) -> tuple[CustomPlugin, ...]:
    """Read the manifest beside each plugin and check that it is that file's.

    Raises:
        UserError: A manifest is missing, of another file, or of one that failed its audit; two plugins are the same.
    """
    from ytk_core.digests import digest_file

    plugins: list[CustomPlugin] = []
    for path in paths:
        beside = manifest_path(path)
        if not beside.is_file():
            raise FormatError(
                f"{path}: no manifest beside it ({beside.name} is missing), so nobody can tell what it is",
                code="no_manifest",
                hint="`ytk embedded build-plugin` writes both; copy the manifest along with the .so.",
            )
        manifest = read_plugin_manifest(beside)
        if digest_file(path) != manifest.so_digest:
            raise FormatError(
                f"{path} is not the file that {beside.name} describes",
                code="manifest_mismatch",
                hint="Build the plugin again with `ytk embedded build-plugin`.",
            )
        if failed := [check for check in manifest.checks if not check.ok]:
            raise FormatError(
                f"{path} failed its audit: {failed[0].name}: found {failed[0].found}, wanted {failed[0].wanted}",
                code="audit_failed",
                hint=failed[0].fix,
            )
        plugin = CustomPlugin(path=path, manifest=manifest)
        for other in plugins:
            if other.identity == plugin.identity:
                raise UserError(
                    f"{other.path} and {path} both are {_shown(plugin.identity)}",
                    code="duplicate_plugin",
                    hint="Name one of them, or build one under another --plugin-name.",
                )
        plugins.append(plugin)
    return tuple(plugins)


def check_model(onnx: Path, plugins: Sequence[CustomPlugin], *, precision: str, arch: ArchSpec) -> None:
    """Compare each custom node of the model with its plugin.

    Raises:
        UserError: A plugin is for another target, a node has no plugin, a plugin has no node, or the two differ; the first
            difference is the message, further ones are in the hint.
    """
    for plugin in plugins:
        check_plugin_arch(plugin, arch)
    nodes = tuple(node_contracts_from_onnx(onnx))
    by_identity = {plugin.identity: plugin for plugin in plugins}
    missing = [node for node in nodes if _identity(node) not in by_identity]
    asked = {_identity(node) for node in nodes}
    unused = [plugin for plugin in plugins if plugin.identity not in asked]
    if missing:
        raise _missing(onnx, missing, unused, arch)
    if unused:
        others = ", ".join(sorted({_shown(identity) for identity in asked})) or "none"
        raise UserError(
            f"{unused[0].path} registers {_shown(unused[0].identity)}, which no node of {onnx} asks for",
            code="plugin_unused",
            hint=f"Custom nodes of the model: {others}. Leave the plugin out, or build it with the node's --plugin-name.",
        )
    differences = [
        (node, by_identity[_identity(node)], difference)
        for node in nodes
        for difference in compare_node_meta(node, by_identity[_identity(node)].manifest.meta, precision, arch)
    ]
    if not differences:
        return
    node, plugin, first = differences[0]
    more = [f"{other.check} of {place.node_name}" for place, _, other in differences[1:4]]
    further = f" Further differences: {', '.join(more)}." if more else ""
    raise UserError(
        f"node {node.node_name} ({_shown(_identity(node))}) and {plugin.path} differ in {first.check} ({first.where}): "
        f"the node has {first.node_side}, the plugin {first.plugin_side}",
        code="plugin_mismatch",
        hint=first.hint + further,
    )


def check_plugin_arch(plugin: CustomPlugin, arch: ArchSpec) -> None:
    """Check that a plugin was built for the arch spec.

    Raises:
        UserError: Code ``wrong_arch``, with the fields that differ.
    """
    built = ArchSpec.parse(plugin.manifest.arch_spec)
    if fields := arch.differing_fields(built):
        parts = ", ".join(f"{field} {getattr(built, field)} instead of {getattr(arch, field)}" for field in fields)
        raise UserError(
            f"{plugin.path} was built for {built}, not for {arch}: {parts}",
            code="wrong_arch",
            hint=f"Build it for this target: ytk embedded build-plugin -a {arch} ...",
        )


def plugin_inputs(plugins: Iterable[CustomPlugin]) -> dict[str, Path]:
    """Give the inputs ``plugins/<file>`` and ``plugins/<file>.manifest.json`` of an engine build.

    Plugins of one file name from different directories get names of their own.
    """
    files: dict[str, Path] = {}
    for plugin in plugins:
        name = f"plugins/{plugin.path.name}"
        if name in files:
            namespace, plugin_name, version = plugin.identity
            name = f"plugins/{namespace or 'default'}-{plugin_name}-{version}.so"
        files[name] = plugin.path
        files[name + SUFFIX] = manifest_path(plugin.path)
    return files


def _identity(node: NodeContract) -> tuple[str, str, str]:
    return node.namespace, node.name, node.version


def _shown(identity: tuple[str, str, str]) -> str:
    namespace, name, version = identity
    return f"{namespace}::{name} version {version}"


def _missing(onnx: Path, missing: Sequence[NodeContract], unused: Sequence[CustomPlugin], arch: ArchSpec) -> UserError:
    """Give the error for nodes without a plugin; where a plugin is nearly the one, say in what it differs."""
    wanted = sorted({_identity(node) for node in missing})
    names = ", ".join(_shown(identity) for identity in wanted)
    first = wanted[0]
    for plugin in unused:
        differing = [
            f"{field} {have!r} instead of {want!r}"
            for field, have, want in zip(("namespace", "name", "version"), plugin.identity, first, strict=True)
            if have != want
        ]
        near = difflib.SequenceMatcher(None, plugin.identity[1].lower(), first[1].lower()).ratio() > 0.6
        if len(differing) == 1 or near or (len(wanted) == 1 and len(unused) == 1):
            return UserError(
                f"{onnx} asks for {_shown(first)}, but {plugin.path} registers {', '.join(differing)}",
                code="plugin_name",
                hint=f"Build it again with: ytk embedded build-plugin --plugin-name {first[1]} --plugin-namespace {first[0]} ...",
            )
    return UserError(
        f"{onnx} has {len(missing)} custom node(s) without a plugin: {names}",
        code="plugin_missing",
        hint=(
            f"Build it (ytk embedded build-plugin -a {arch} --plugin-name {first[1]} -s SOURCE -o {first[1]}.so) "
            f"and add --custom-plugin {first[1]}.so."
        ),
    )
