"""From an engine's layers to the ONNX nodes they stand for, and which of them are plugins.

Engines merge, split and rename: OpenVINO appends ``/WithoutBiases`` or ``.0``, puts unnamed ``Convert_123`` between,
and calls a change of layout ``<producer>_<format>_<format>_<consumer>``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ytk_core.errors import UserError
from ytk_core.formats.verify_report import PluginUse
from ytk_kronos.engine_files import Layer, PluginNode

_REORDER = "Reorder"
_SUFFIX = re.compile(r"(?:/WithoutBiases|/sink_port_\d+|\.\d+)\Z")


def map_layers(
    layers: Sequence[Layer], names: Mapping[str, str], plugin_nodes: Iterable[PluginNode]
) -> tuple[Layer, ...]:
    """Fill in ``onnx_nodes`` and ``plugin``.

    Args:
        layers: As the engine reports them, producers first.
        names: Every node and tensor name of the ONNX graph to its node's name.
        plugin_nodes: The graph's custom nodes.
    """
    placeholders = {node.name: node.placeholder for node in plugin_nodes}
    known: dict[str, tuple[str, ...]] = {}
    mapped: list[Layer] = []
    for layer in layers:
        nodes = _direct(layer, names)
        if not nodes and layer.type == _REORDER:
            nodes = _sides(layer.name, names, {other.name: other for other in layers})
        if not nodes:
            # What the engine put in (a conversion, a merged slice) belongs to what feeds it.
            nodes = next((known[source] for source in layer.inputs if known.get(source)), ())
        known[layer.name] = nodes
        plugin = next((placeholders[node] for node in nodes if node in placeholders), "") if layer.external else ""
        mapped.append(msgspec.structs.replace(layer, onnx_nodes=nodes, plugin=plugin))
    return tuple(mapped)


def plugin_uses(layers: Iterable[Layer], plugin_nodes: Iterable[PluginNode]) -> tuple[PluginUse, ...]:
    """Count, per placeholder, its nodes and those of them that are plugin layers; nested nodes count as used.

    Engines do not list the layers of a loop's or branch's body.
    """
    ran = {node for layer in layers if layer.plugin for node in layer.onnx_nodes}
    counts: dict[str, tuple[int, int]] = {}
    for node in plugin_nodes:
        nodes, used = counts.get(node.placeholder, (0, 0))
        counts[node.placeholder] = (nodes + 1, used + (node.nested or node.name in ran))
    return tuple(PluginUse(placeholder=name, nodes=n, layers=used) for name, (n, used) in sorted(counts.items()))


def check_plugins_used(layers: Iterable[Layer], plugin_nodes: Sequence[PluginNode]) -> None:
    """Check that every plugin node is a plugin layer: some engines prefer an operator of their own, silently.

    Raises:
        UserError: ``plugin_not_used``: names the nodes.
    """
    ran = {node for layer in layers if layer.plugin for node in layer.onnx_nodes}
    lost = [node for node in plugin_nodes if not node.nested and node.name not in ran]
    if lost:
        text = ", ".join(f"{node.name} ({node.placeholder})" for node in lost[:5])
        raise UserError(
            f"{len(lost)} of {len(plugin_nodes)} plugin nodes are no plugin layer in the built engine: {text}",
            code="plugin_not_used",
            hint="The engine optimised it away (its result is not used), or has an operator of that name: rename the placeholder.",
        )


def _direct(layer: Layer, names: Mapping[str, str]) -> tuple[str, ...]:
    found: list[str] = []
    for source in (*layer.sources, layer.name):
        node = _lookup(source, names)
        if node is not None and node not in found:
            found.append(node)
    return tuple(found)


def _lookup(name: str, names: Mapping[str, str]) -> str | None:
    while name not in names:
        shorter = _SUFFIX.sub("", name)
        if shorter == name:
            return None
        name = shorter
    return names[name]


def _sides(name: str, names: Mapping[str, str], layers: Mapping[str, Layer]) -> tuple[str, ...]:
    """The nodes before and after a change of layout; names may hold underscores, so the longest that fit are taken."""

    def nodes_of(layer: str) -> tuple[str, ...]:
        return _direct(layers[layer], names)

    before = max((each for each in layers if name.startswith(f"{each}_")), key=len, default=None)
    after = max((each for each in layers if name.endswith(f"_{each}") and each != before), key=len, default=None)
    both = [node for side in (before, after) if side is not None for node in nodes_of(side)]
    return tuple(dict.fromkeys(both))
