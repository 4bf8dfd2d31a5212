"""What Kronos has to know of an ONNX file before an engine sees it: custom nodes, names, external weights."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from ytk_core.errors import FormatError, UserError
from ytk_core.formats.weights_npz import read_index
from ytk_kronos.engine_files import PluginNode

_MAX_ONNX_BYTES = 2 * 1024**3  # protobuf's own limit; weights are external
# Domains of operators that engines implement themselves or that exporters bring along as functions.
_ENGINE_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft", "org.openvinotoolkit"})
_NAMESPACE_ATTRIBUTE = "plugin_namespace"
_VERSION_ATTRIBUTE = "plugin_version"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What the ONNX file says.

    Attributes:
        plugin_nodes: Nodes that need a plugin, nested ones included.
        names: Every node and tensor name to the name of the node that it belongs to.
        unnamed: Whether a node that needs a plugin has no name.
        locations: File names of external data.
    """

    plugin_nodes: tuple[PluginNode, ...]
    names: dict[str, str]
    unnamed: bool
    locations: frozenset[str]


def _load(path: Path) -> Any:
    import onnx
    from google.protobuf.message import DecodeError

    size = path.stat().st_size
    if size == 0 or size > _MAX_ONNX_BYTES:
        raise FormatError(f"{path.name}: {size} bytes is no ONNX model", code="bad_onnx", hint="Check --onnx.")
    try:
        model = onnx.load(path, load_external_data=False)
    except DecodeError as err:
        raise FormatError(
            f"{path.name}: not an ONNX model, or truncated ({err})",
            code="bad_onnx",
            hint="Check --onnx, or run prepare again.",
        ) from err
    if not model.graph.node:
        raise FormatError(f"{path.name}: an ONNX model without nodes", code="bad_onnx", hint="Check --onnx.")
    return model


def read_facts(path: Path) -> ModelFacts:
    """Read an ONNX file without its weights.

    Raises:
        FormatError: ``bad_onnx``: it is not one.
        UserError: ``plugin_namespace``: a node's domain and its plugin_namespace contradict each other.
    """
    model = _load(path)
    functions = {(function.domain, function.name) for function in model.functions}
    plugin_nodes: list[PluginNode] = []
    names: dict[str, str] = {}
    unnamed = False
    for node, nested in _walk(model.graph):
        label = node.name or next((output for output in node.output if output), node.op_type)
        for name in (node.name, *node.output):
            if name:
                names.setdefault(name, label)
        if (found := _plugin_node(node, label, functions, nested=nested)) is not None:
            plugin_nodes.append(found)
            unnamed = unnamed or not node.name
    return ModelFacts(
        plugin_nodes=tuple(plugin_nodes), names=names, unnamed=unnamed, locations=frozenset(_locations(model))
    )


def _walk(graph: Any, *, nested: bool = False) -> Iterator[tuple[Any, bool]]:
    for node in graph.node:
        yield node, nested
        for attribute in node.attribute:
            for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _walk(body, nested=True)


def _plugin_node(node: Any, label: str, functions: set[tuple[str, str]], *, nested: bool) -> PluginNode | None:
    import onnx

    attributes = {attribute.name: attribute for attribute in node.attribute}
    marked = _NAMESPACE_ATTRIBUTE in attributes
    if not marked:
        if (node.domain, node.op_type) in functions:
            return None
        known = onnx.defs.has(node.op_type, node.domain) or (
            node.domain not in {"", "ai.onnx"} and node.domain in _ENGINE_DOMAINS
        )
        if known:
            return None
    domain = "" if node.domain == "ai.onnx" else node.domain
    namespace = attributes[_NAMESPACE_ATTRIBUTE].s.decode() if marked else domain
    if namespace != domain:
        raise UserError(
            f"node {label!r}: its domain is {domain!r} and its plugin_namespace {namespace!r}; engines read one or the other",
            code="plugin_namespace",
            hint="Run prepare again: it writes both alike.",
        )
    version = attributes[_VERSION_ATTRIBUTE].s.decode() if _VERSION_ATTRIBUTE in attributes else "1"
    return PluginNode(name=label, namespace=namespace, op=node.op_type, version=version, nested=nested)


def _tensors(model: Any) -> Iterator[Any]:
    yield from model.graph.initializer
    for node, _ in _walk(model.graph):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from body.initializer


def _external(model: Any) -> Iterator[tuple[str, dict[str, str]]]:
    import onnx

    for tensor in _tensors(model):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            yield tensor.name, {entry.key: entry.value for entry in tensor.external_data}


def _locations(model: Any) -> Iterator[str]:
    for name, entry in _external(model):
        location = entry.get("location", "")
        pure = PurePosixPath(location)
        if not location or pure.is_absolute() or ".." in pure.parts or "\\" in location:
            raise FormatError(
                f"weight {name!r} lies in {location!r}, outside of the model's directory",
                code="bad_onnx",
                hint="Run prepare again.",
            )
        yield location


def check_weights(path: Path, weights: Path | None) -> None:
    """Check that every external weight lies inside one array of the npz.

    Raises:
        FormatError: ``bad_npz``: the npz is truncated or no npz; ``bad_weights``: a weight points elsewhere.
        UserError: ``missing_weights``: the model has external weights and there is no npz.
    """
    wanted = list(_external(_load(path)))
    if weights is None:
        if wanted:
            raise UserError(
                f"{path.name} has {len(wanted)} external weights and no npz was given",
                code="missing_weights",
                hint="Give --npz.",
            )
        return
    spans = {(entry.span.offset, entry.span.length) for entry in read_index(weights).values()}
    for name, entry in wanted:
        try:
            span = (int(entry.get("offset", "0")), int(entry["length"]))
        except (KeyError, ValueError) as err:
            raise FormatError(
                f"weight {name!r}: bad external data {entry}", code="bad_weights", hint="Run prepare again."
            ) from err
        if span not in spans:
            raise FormatError(
                f"weight {name!r} is expected at byte {span[0]} ({span[1]} bytes), where {weights.name} has no array",
                code="bad_weights",
                hint="The .onnx and the .npz are not of one prepare run: run it again.",
            )


def lay_out(path: Path, weights: Path | None, facts: ModelFacts, directory: Path) -> Path:
    """Give a model file that engines can read: weights beside it under the name the model uses, plugin nodes with names.

    That is the very file if both are so already. Else model and npz are copied: engines refuse links that lead out of the
    model's directory, and the inputs' own directory may be read-only.

    Args:
        path: The ONNX file.
        weights: The npz.
        facts: From :func:`read_facts`.
        directory: For the copies; made if needed.

    Raises:
        FormatError: ``bad_weights``: the model refers to more than one weights file.
        UserError: ``missing_weights``.
    """
    if len(facts.locations) > 1:
        raise FormatError(
            f"the weights lie in {len(facts.locations)} files ({', '.join(sorted(facts.locations)[:3])}), one is expected",
            code="bad_weights",
            hint="Run prepare again: it writes one npz.",
        )
    if facts.locations and weights is None:
        raise UserError(
            "the model has external weights and no npz was given", code="missing_weights", hint="Give --npz."
        )
    in_place = {weights.name} if weights is not None and weights.parent == path.parent else set()
    if facts.locations <= in_place and not facts.unnamed:
        return path
    for location in facts.locations:
        assert weights is not None
        copy = directory / location
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(weights, copy)
    directory.mkdir(exist_ok=True)
    model = directory / f"{_free_name(facts.locations)}.onnx"
    if facts.unnamed:
        _write_named(path, model)
    else:
        shutil.copyfile(path, model)
    return model


def _free_name(taken: frozenset[str]) -> str:
    name = "model"
    while f"{name}.onnx" in taken:
        name += "_"
    return name


def _write_named(path: Path, destination: Path) -> None:
    model = _load(path)
    functions = {(function.domain, function.name) for function in model.functions}
    for node, nested in _walk(model.graph):
        if not node.name:
            label = next((output for output in node.output if output), node.op_type)
            if _plugin_node(node, label, functions, nested=nested) is not None:
                node.name = label
    destination.write_bytes(model.SerializeToString())
