"""Operators of other libraries that an entry of the catalogue computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_ops = torch.ops.ytk_catalogue
_full = torch.ops.aten.full.default

Rewrite = Callable[[torch.fx.Graph, dict[str, Any]], torch.fx.Node]
"""Given the graph, at the place of a node, and the node's arguments by name: makes the catalogue's call."""


def _ones(graph: torch.fx.Graph, like: torch.fx.Node) -> torch.fx.Node:
    """Make a tensor of rank 4 with nothing in it but a one, for an input that is not looked at."""
    node = graph.call_function(_full, ([1, 1, 1, 1], 1.0), {"dtype": like.meta["val"].dtype})
    node.meta["val"] = like.meta["val"].new_full((1, 1, 1, 1), 1.0)
    return node


def _deform_conv2d(graph: torch.fx.Graph, given: dict[str, Any]) -> torch.fx.Node:
    pairs = [[given[f"{name}_h"], given[f"{name}_w"]] for name in ("stride", "pad", "dilation")]
    # Without a mask torchvision passes a tensor of another rank in its place.
    mask = given["mask"] if given["use_mask"] else _ones(graph, given["input"])
    tensors = [given["input"], given["offset"], given["weight"], given["bias"], mask]
    groups = [given["groups"], given["offset_groups"]]
    return graph.call_function(_ops.deform_conv2d.default, (*tensors, *pairs, *groups, int(given["use_mask"])))


def _roi_align(graph: torch.fx.Graph, given: dict[str, Any]) -> torch.fx.Node:
    size = [given["pooled_height"], given["pooled_width"]]
    settings = (size, given["sampling_ratio"], int(given["aligned"]), given["spatial_scale"])
    return graph.call_function(_ops.roi_align.default, (given["input"], given["rois"], *settings))


FOREIGN: dict[str, Rewrite] = {
    "torchvision::deform_conv2d": _deform_conv2d,
    "torchvision::roi_align": _roi_align,
}
"""By the name of the operator."""


def adopt(node: torch.fx.Node) -> bool:
    """Write a node as the catalogue's operator that computes the same; False if there is none, then nothing changes."""
    schema = node.target._schema  # noqa: SLF001 - the only way to the names of an operator's arguments
    rewrite = FOREIGN.get(schema.name)
    if rewrite is None:
        return False
    names = [argument.name for argument in schema.arguments]
    with node.graph.inserting_before(node):
        found = rewrite(node.graph, {**dict(zip(names, node.args, strict=False)), **node.kwargs})
    # The node itself takes the other's call: whoever knows it by name still finds it.
    node.target, node.args, node.kwargs = found.target, found.args, found.kwargs
    node.graph.erase_node(found)
    return True
