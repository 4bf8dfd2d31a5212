"""What the client checks about kernels and plugins before anything is sent.

An engine would answer the same mistakes after minutes with ``Error 9`` or ``could not find any supported formats``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from ytk_core.archspec import FIELDS, ArchSpec
from ytk_core.errors import FormatError, UserError
from ytk_core.formats.plugin_manifest import SUFFIX, PluginManifest, read_plugin_manifest
from ytk_core.formats.plugin_meta import DeploymentTarget, PluginMeta
from ytk_core.preflight import Difference, check_plugins, compare_node_meta, node_contracts_from_onnx
from ytk_core.targets import load_profile

TARGET_OF_ENGINE: dict[str, DeploymentTarget] = {
    "openvino": DeploymentTarget.CPU,
    "onnxruntime": DeploymentTarget.CPU,
    "tensorrt": DeploymentTarget.TENSORRT,
}


class CustomPlugin(msgspec.Struct, frozen=True, kw_only=True):
    """A ``--custom-plugin`` with the manifest beside it."""

    path: Path
    manifest: PluginManifest


def manifest_path(so_path: Path) -> Path:
    """Give the manifest's place: beside the ``.so``, under its name and ``.manifest.json``."""
    return so_path.with_name(so_path.name + SUFFIX)


def prepare_source(
    source: Path, arch_text: str, *, name: str, namespace: str | None, onnx: Path | None = None, precision: str = "fp32"
) -> str:
    """Read a kernel bundle and give the text of a copy under the plugin's name; the file itself stays as it is.

    Args:
        source: The bundle.
        arch_text: The target.
        name: What the plugin will register.
        namespace: The same, where it is not the bundle's.
        onnx: A model whose nodes of that name the plugin is for; they are compared with its contract.
        precision: What the engine of that model will be built with.

    Raises:
        FormatError: It is not a kernel bundle, or ``onnx`` is no model.
        UserError: The arch spec is bad, the kernel was made for another kind of target (``wrong_deployment_target``), the name
            is one that the engine's own importer takes (``builtin_name``), or a node differs (``preflight``).
    """
    from ytk_client.handwritten.skeleton import with_state
    from ytk_core.formats.kernel_bundle import parse_bundle, read_bundle, renamed, render_bundle

    arch = ArchSpec.parse(arch_text)
    text = render_bundle(with_state(read_bundle(source)))
    text = renamed(text, name=name, namespace=namespace, origin=str(source))
    meta = parse_bundle(text, str(source)).meta
    check_target(meta, arch, str(source))
    check_name(meta, arch)
    if onnx is not None:
        check_nodes(onnx, meta, precision=precision, arch=arch)
    return text


def check_name(meta: PluginMeta, arch: ArchSpec) -> None:
    """Check that no importer of the engine takes the plugin's name before the plugin is looked up.

    Raises:
        UserError: Code ``builtin_name``.
    """
    if arch.engine_name == "tensorrt" and load_profile(arch).is_builtin(meta.plugin_name):
        raise UserError(
            f"{meta.plugin_namespace}::{meta.plugin_name}: TensorRT's own importer takes {meta.plugin_name}, silently: the plugin would "
            "never be used",
            code="builtin_name",
            hint="Prepare the model with another name (`ytk embedded prepare --plugin NAMESPACE::NAME=...`), and give it to --plugin-name.",
        )


def check_nodes(onnx: Path, meta: PluginMeta, *, precision: str, arch: ArchSpec) -> None:
    """Compare the nodes that a plugin is for with its contract.

    Raises:
        FormatError: It is no ONNX model.
        UserError: Code ``preflight``: the model has no such node, or the first difference.
    """
    nodes = node_contracts_from_onnx(onnx)
    mine = [node for node in nodes if (node.namespace, node.name) == (meta.plugin_namespace, meta.plugin_name)]
    if not mine:
        there = ", ".join(sorted({f"{node.namespace}::{node.name}" for node in nodes})) or "no custom node"
        raise UserError(
            f"{onnx} has no node {meta.plugin_namespace}::{meta.plugin_name}; it has {there}",
            code="preflight",
            hint="--plugin-name (and --plugin-namespace) must be a node's, letter by letter.",
        )
    for node in mine:
        if differences := compare_node_meta(node, meta, precision, arch):
            raise UserError(
                f"{onnx} and the kernel do not fit: {differences[0].text()}", code="preflight", hint=differences[0].hint
            )


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
            hint=f"Generate it again: `ytk kernelgen compile -r {meta.plugin_name}.pt2 -g {arch} --config deployment_target={wanted} -o {origin}`.",
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
        UserError: A manifest is missing, of another file, or of one that failed its audit.
    """
    from ytk_core.digests import digest_file

    plugins: list[CustomPlugin] = []
    for path in paths:
        beside = manifest_path(path)
        if not beside.is_file():
            raise FormatError(
                f"{path}: no manifest beside it ({beside.name} is missing), so nobody can tell what it is",
                code="no_manifest",
                hint="`ytk embedded build-plugin` writes both: copy the manifest along with the .so. A library made by hand has none: put its "
                "kernel into a kernel bundle (`ytk kernelgen skeleton` writes the frame) and build that. "
                f"`ytk embedded inspect {path}` says what this file is.",
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
        plugins.append(CustomPlugin(path=path, manifest=manifest))
    return tuple(plugins)


def check_model(
    onnx: Path,
    plugins: Sequence[CustomPlugin],
    *,
    precision: str,
    arch: ArchSpec,
    shipped: Mapping[str, PluginMeta] | None = None,
) -> None:
    """Compare the custom nodes of a model with the plugins given for it, and with shipped ones that will be built.

    Raises:
        FormatError: It is no ONNX model.
        UserError: Code ``wrong_arch``, or ``preflight`` with the first difference; the hint names further ones.
    """
    for plugin in plugins:
        check_plugin_arch(plugin, arch)
    nodes = node_contracts_from_onnx(onnx)
    metas = {str(plugin.path): plugin.manifest.meta for plugin in plugins} | dict(shipped or {})
    differences = check_plugins(nodes, metas, precision=precision, arch=arch)
    if not differences:
        return
    first, *others = differences
    further = [_text(difference) for difference in others if difference.where != first.where]
    hint = first.hint
    if further:
        hint += f"\n        Also: {'; '.join(further[:3])}{' ...' if len(further) > 3 else ''}"
    raise UserError(f"{onnx} and its plugins do not fit: {_text(first)}", code="preflight", hint=hint)


def _text(difference: Difference) -> str:
    match difference.check:
        case "plugin":
            return f"no plugin was given for {difference.where}"
        case "unused-plugin":
            return f"{difference.where} {difference.plugin_side}, the model has {difference.node_side}"
        case _:
            return difference.text()


def check_plugin_arch(plugin: CustomPlugin, arch: ArchSpec) -> None:
    """Check that a plugin was built for the arch spec.

    Raises:
        UserError: Code ``wrong_arch``, with the fields that differ.
    """
    built = ArchSpec.parse(plugin.manifest.arch_spec)
    if fields := arch.differing_fields(built):
        parts = ", ".join(f"{field} {getattr(built, field)} instead of {getattr(arch, field)}" for field in fields)
        meta = plugin.manifest.meta
        raise UserError(
            f"{plugin.path} was built for {built}, not for {arch}: {parts}{_interface_note(built, arch)}",
            code="wrong_arch",
            hint=f"Build it for this target: `ytk embedded build-plugin -a {arch} --plugin-name {meta.plugin_name} -s SOURCE -o {plugin.path}`.",
        )


def _interface_note(built: ArchSpec, arch: ArchSpec) -> str:
    """Say what the engine would not find in a plugin for another generation of TensorRT: it says nothing itself."""
    if built.engine_name != "tensorrt" or arch.engine_name != "tensorrt":
        return ""
    looks, has = (_TENSORRT_ENTRY[spec.engine.startswith("trt8")] for spec in (arch, built))
    return "" if looks == has else f". TensorRT would look for {looks} in it, and it has {has}"


_TENSORRT_ENTRY = {True: "getPluginCreators", False: "getCreators"}


def plugin_inputs(plugins: Iterable[CustomPlugin]) -> dict[str, Path]:
    """Give the inputs ``plugins/<file>`` and ``plugins/<file>.manifest.json`` of an engine build.

    Plugins of one file name from different directories get names of their own.
    """
    files: dict[str, Path] = {}
    for plugin in plugins:
        name = f"plugins/{plugin.path.name}"
        if name in files:
            meta = plugin.manifest.meta
            name = f"plugins/{meta.plugin_namespace or 'default'}-{meta.plugin_name}-{meta.plugin_version}.so"
        files[name] = plugin.path
        files[name + SUFFIX] = manifest_path(plugin.path)
    return files
