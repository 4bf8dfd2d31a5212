"""Operators of other libraries that an entry of the catalogue computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Rewrite = Callable[[torch.fx.Graph, dict[str, Any]], torch.fx.Node | None]
"""Given the graph, at the place of a node, and the node's arguments by name: makes nodes of the catalogue's operator and
gives the last; None where the entry does not compute these arguments."""

FOREIGN: dict[str, Rewrite] = {}
"""By the name of the operator."""


def adopt(node: torch.fx.Node) -> bool:
    """Write a node as the catalogue's operator that computes the same; False if there is none, then nothing changes."""
    schema = node.target._schema  # noqa: SLF001 - the only way to the names of an operator's arguments
    rewrite = FOREIGN.get(schema.name)
    if rewrite is None:
        return False
    names = [argument.name for argument in schema.arguments]
    defaults = {argument.name: argument.default_value for argument in schema.arguments}
    with node.graph.inserting_before(node):
        found = rewrite(node.graph, {**defaults, **dict(zip(names, node.args, strict=False)), **node.kwargs})
    if found is None:
        return False
    # The node itself takes the other's call: whoever knows it by name still finds it.
    node.target, node.args, node.kwargs = found.target, found.args, found.kwargs
    node.graph.erase_node(found)
    return True
