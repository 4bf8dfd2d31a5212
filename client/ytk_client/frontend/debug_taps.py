"""``--debug-taps``: a copy of the graph that gives out what enters and leaves every plugin, and a reference for it.

An engine built from the copy takes the same plugins; where it differs from torch, the first tap that is wrong names the
region.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx

from ytk_core.errors import ToolkitError

STANDARD = frozenset({"", "ai.onnx"})


@dataclass(frozen=True)
class Tap:
    """One extra output. ``node``: the placeholder's name in the ONNX; ``index``: among its inputs or outputs."""

    name: str
    node: str
    is_input: bool
    index: int


def write_debug_graph(onnx_path: Path, debug_path: Path) -> list[Tap]:
    """Write the copy; its weights stay in the npz of the original, which lies in the same directory.

    A value that enters one plugin and leaves another has one tap. Values that are inputs or outputs of the graph need none.

    Args:
        onnx_path: The graph.
        debug_path: The copy.

    Returns:
        The taps in the order of the extra outputs: along the graph, what enters a node before what leaves it.

    Raises:
        ToolkitError: A value at a plugin has no type.
    """
    model = onnx.load(str(onnx_path), load_external_data=False)
    graph = model.graph
    types = {info.name: info.type for info in graph.value_info}
    known = {info.name for info in (*graph.input, *graph.output)} | {tensor.name for tensor in graph.initializer}
    taken = {name for node in graph.node for name in node.output} | known
    found: dict[str, Tap] = {}
    for node in [each for each in graph.node if each.domain not in STANDARD]:
        borders = [(True, index, name) for index, name in enumerate(node.input)]
        borders += [(False, index, name) for index, name in enumerate(node.output)]
        for is_input, index, value in borders:
            if not value or value in known or value in found:
                continue
            if value not in types:
                msg = f"the exported graph has no type for {value!r} at a placeholder"
                raise ToolkitError(msg, code="untyped_placeholder")
            name = f"tap_{node.name}_{'in' if is_input else 'out'}{index}"
            while name in taken:
                name += "_"
            taken.add(name)
            found[value] = Tap(name, node.name, is_input, index)
            graph.output.append(onnx.helper.make_value_info(name, types[value]))
    # Renamed, not copied by an Identity: an engine removes that, and with it the name of the plugin's layer.
    _rename(graph, {value: tap.name for value, tap in found.items()})
    debug_path.write_bytes(model.SerializeToString())
    return list(found.values())


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    for info in graph.value_info:
        info.name = names.get(info.name, info.name)
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _rename(inner, names)
