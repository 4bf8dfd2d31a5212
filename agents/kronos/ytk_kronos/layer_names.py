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


def calls_by_node(calls: Mapping[str, int], names: Mapping[str, str]) -> dict[str, int]:
    """Give calls by ONNX node, from those by the engine's layer names (:meth:`ytk_kronos.engines.base.LoadedEngine.plugin_calls`)."""
    found: dict[str, int] = {}
    for layer, count in calls.items():
        node = _lookup(layer, names)
        if node is not None:
            found[node] = found.get(node, 0) + count
    return found


def plugin_uses(
    layers: Iterable[Layer],
    plugin_nodes: Iterable[PluginNode],
    calls: Mapping[str, int] | None = None,
    runs: int = 0,
) -> tuple[PluginUse, ...]:
    """Count, per placeholder, its nodes, those of them that are plugin layers, and the calls of their kernels.

    Nested nodes count as layers: engines do not list the layers of a loop's or branch's body. Whether their kernel ran is the
    branch's decision, so they are never idle.

    Args:
        layers: Mapped.
        plugin_nodes: The graph's custom nodes.
        calls: By ONNX node, over ``runs`` runs; None: the engine does not count.
        runs: How often the engine ran.
    """
    ran = {node for layer in layers if layer.plugin for node in layer.onnx_nodes}
    by_name: dict[str, list[PluginNode]] = {}
    for node in plugin_nodes:
        by_name.setdefault(node.placeholder, []).append(node)
    return tuple(
        PluginUse(
            placeholder=name,
            nodes=len(nodes),
            layers=sum(node.nested or node.name in ran for node in nodes),
            calls=None if calls is None else sum(calls.get(node.name, 0) for node in nodes),
            runs=runs,
            idle=()
            if calls is None or not runs
            else tuple(node.name for node in nodes if not node.nested and not calls.get(node.name)),
            nested=sum(node.nested for node in nodes),
        )
        for name, nodes in sorted(by_name.items())
    )


def check_kernels_called(uses: Iterable[PluginUse]) -> None:
    """Check that the kernel of every plugin node was called: a layer that carries its name is no proof.

    Raises:
        UserError: ``plugin_not_used``: names the nodes, and how often the engine ran.
    """
    for use in uses:
        if use.idle:
            more = f" and {len(use.idle) - 5} more" if len(use.idle) > 5 else ""
            raise UserError(
                f"the kernel of {use.placeholder} was never called in {use.runs} runs of the engine, for {', '.join(use.idle[:5])}{more}",
                code="plugin_not_used",
                hint="The engine folded the node away or computed it by other means; what was timed is not your kernel.",
            )


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
