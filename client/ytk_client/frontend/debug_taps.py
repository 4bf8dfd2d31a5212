"""``--debug-taps``: a copy of the graph that gives out what enters and leaves every plugin, and a reference for it.

An engine built from the copy takes the same plugins; where it differs from torch, the first tap that is wrong names the
region.
"""

from __future__ import annotations

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

    Args:
        onnx_path: The graph.
        debug_path: The copy.

    Returns:
        The taps in the order of the extra outputs: along the graph, what enters a node before what leaves it.
    """
    model = onnx.load(str(onnx_path), load_external_data=False)
    graph = model.graph
    types = {info.name: info.type for info in (*graph.value_info, *graph.input, *graph.output)}
    constant = {tensor.name for tensor in graph.initializer}
    taken = {name for node in graph.node for name in node.output} | set(types) | constant
    taps: list[Tap] = []
    for node in [each for each in graph.node if each.domain not in STANDARD]:
        borders = [(True, index, name) for index, name in enumerate(node.input)]
        borders += [(False, index, name) for index, name in enumerate(node.output)]
        for is_input, index, value in borders:
            if not value or value in constant:
                continue
            if value not in types:
                msg = f"the exported graph has no type for {value!r} at a placeholder"
                raise ToolkitError(msg, code="untyped_placeholder")
            name = f"tap_{node.name}_{'in' if is_input else 'out'}{index}"
            while name in taken:
                name += "_"
            taken.add(name)
            # A node of its own: the value may be a graph output already, or an input.
            graph.node.append(onnx.helper.make_node("Identity", [value], [name], name=f"{name}_node"))
            graph.output.append(onnx.helper.make_value_info(name, types[value]))
            taps.append(Tap(name, node.name, is_input, index))
    debug_path.write_bytes(model.SerializeToString())
    return taps
