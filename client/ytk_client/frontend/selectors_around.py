"""``:around``: the heavy operators of a block and the plumbing around them."""

from __future__ import annotations

import operator

import torch

from ytk_client.frontend.growth import convex_closure
from ytk_client.frontend.selectors import Selector
from ytk_core.errors import UserError

Nodes = set["torch.fx.Node"]

_HEAVY = (
    "conv", "convolution", "linear", "addmm", "addbmm", "baddbmm", "bmm", "mm", "mv", "matmul", "einsum", "scaled_dot_product",
    "_scaled_dot_product", "lstm", "gru", "rnn", "grid_sampler", "col2im", "im2col", "_fft", "cdist", "embedding_bag",
)  # fmt: skip
"""Operators (by prefix of their name) that a kernel is written for."""
_PLUMBING = frozenset(
    [
        "permute",
        "transpose",
        "t",
        "numpy_T",
        "mT",
        "movedim",
        "swapaxes",
        "view",
        "_unsafe_view",
        "reshape",
        "flatten",
        "unflatten",
        "squeeze",
        "unsqueeze",
        "expand",
        "broadcast_to",
        "contiguous",
        "clone",
        "alias",
        "detach",
        "slice",
        "select",
        "narrow",
        "split",
        "split_with_sizes",
        "chunk",
        "unbind",
        "_to_copy",
        "to",
        "type_as",
        "convert_element_type",
        "pad",
        "constant_pad_nd",
        "reflection_pad2d",
        "replication_pad2d",
        "pixel_shuffle",
        "pixel_unshuffle",
        "repeat",
        "_native_batch_norm_legit_no_training",
        "lift_fresh_copy",
        "sym_size",
    ]
)
_POINTWISE = frozenset({"hardswish", "prelu", "dropout", "glu"})
"""Operators without torch's tag that map values one by one (or nearly: glu halves a tensor)."""
_JOINING = frozenset({"cat", "concat", "stack"})


def _name(node: torch.fx.Node) -> str:
    schema = getattr(node.target, "_schema", None)
    return "" if schema is None else str(schema.name).split("::")[-1]


def is_heavy(node: torch.fx.Node) -> bool:
    """Tell whether an operator does the work of a block."""
    return _name(node).startswith(_HEAVY) and not is_plumbing(node)


def is_plumbing(node: torch.fx.Node) -> bool:
    """Tell whether an operator only moves, casts, pads or maps values one by one."""
    pointwise = torch.Tag.pointwise in getattr(node.target, "tags", ())
    return node.target is operator.getitem or pointwise or _name(node) in _PLUMBING | _POINTWISE


def is_joining(node: torch.fx.Node) -> bool:
    """Tell whether an operator concatenates."""
    return _name(node) in _JOINING


def grow_around(selector: Selector, place: str, block: Nodes, owned: Nodes, *, join: bool) -> Nodes:
    """Give the region of one block.

    Args:
        selector: For messages.
        place: The block's path.
        block: All operators of the block; the region does not grow beyond it.
        owned: Those that belong to the block itself and not to a module inside of it: if one of these is heavy, the
            heavy operators of inner modules are not meant.
        join: Take in the concatenation that joins the region's inputs.

    Raises:
        UserError: ``selector_no_match``: nothing heavy in the block; ``selector_not_convex``.
    """
    seeds: Nodes = set()
    for candidates in (owned, block):
        seeds = seeds or {node for node in candidates if is_heavy(node)}
    seeds = seeds or {node for node in block if not is_plumbing(node) and not is_joining(node)}
    if not seeds:
        msg = f"{selector.placeholder} matches nothing: ':around' finds no heavy operator in {place}"
        raise UserError(msg, code="selector_no_match", hint="Leave out ':around' to take the whole block.")
    region = convex_closure(seeds)
    outside = sorted(node.name for node in region - block)
    if outside:
        msg = (
            f"{selector.placeholder} at {place} is not convex: between its heavy operators lie {', '.join(outside[:5])}"
        )
        raise UserError(msg, code="selector_not_convex", hint="Select a block that holds these too.")
    while True:
        added = _before(region, block, join=join) or _after(region, block)
        if not added:
            return region
        region = region | added


def _before(region: Nodes, block: Nodes, *, join: bool) -> Nodes:
    """Give plumbing whose results go nowhere but into the region."""
    args = {arg for node in region for arg in node.all_input_nodes} - region
    return {
        arg
        for arg in args & block
        if (is_plumbing(arg) or (join and is_joining(arg))) and all(user in region for user in arg.users)
    }


def _after(region: Nodes, block: Nodes) -> Nodes:
    """Give one piece of plumbing that takes a result which is then of no use outside."""
    for node in region:
        outside = [user for user in node.users if user not in region]
        if not outside or not all(user in block and is_plumbing(user) for user in outside):
            continue
        grown = region | set(outside)
        if convex_closure(grown) == grown:
            return set(outside)
    return set()
