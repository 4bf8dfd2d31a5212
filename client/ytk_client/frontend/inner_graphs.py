"""Graphs inside of higher-order operators: the branches of torch.cond."""

from __future__ import annotations

import torch

from ytk_core.formats.region import operation_lines


def graph_of(node: torch.fx.Node, root: torch.nn.Module) -> torch.fx.GraphModule | None:
    """Give the graph that a node stands for: a branch of torch.cond."""
    inner = getattr(root, str(node.target), None) if node.op == "get_attr" else None
    return inner if isinstance(inner, torch.fx.GraphModule) else None


def graph_text(module: torch.fx.GraphModule) -> str:
    """Give what a graph inside of a higher-order operator computes, whatever it and its nodes are called."""
    held = [
        f"%{count} = {node.target if inner is None else graph_text(inner)}"
        for count, node in enumerate(module.graph.nodes)
        if node.op == "get_attr"
        for inner in [graph_of(node, module)]
    ]
    return f"graph({', '.join([*held, *operation_lines(module.graph.nodes)])})"
