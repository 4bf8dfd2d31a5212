"""Graphs inside of higher-order operators: the branches of torch.cond."""

from __future__ import annotations

import torch

from ytk_core.digests import digest_bytes
from ytk_core.formats.region import operation_lines


def graph_of(node: torch.fx.Node, root: torch.nn.Module) -> torch.fx.GraphModule | None:
    """Give the graph that a node stands for: a branch of torch.cond."""
    inner = getattr(root, str(node.target), None) if node.op == "get_attr" else None
    return inner if isinstance(inner, torch.fx.GraphModule) else None


def graph_text(module: torch.fx.GraphModule) -> str:
    """Give what a graph inside of a higher-order operator computes, whatever it, its nodes and its tensors are called."""
    held = [
        f"%{count} = {_held_text(node, module)}"
        for count, node in enumerate(module.graph.nodes)
        if node.op == "get_attr"
    ]
    return f"graph({', '.join([*held, *operation_lines(module.graph.nodes)])})"


def _held_text(node: torch.fx.Node, module: torch.fx.GraphModule) -> str:
    inner = graph_of(node, module)
    if inner is not None:
        return graph_text(inner)
    value = getattr(module, str(node.target))
    if not isinstance(value, torch.Tensor):
        return str(node.target)
    # By what it holds: tensors of two branches may have one name.
    raw = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{value.dtype}{list(value.shape)} {digest_bytes(raw)}"
