"""Which nodes go into a region together with a refused one."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ytk_client.frontend import draws
from ytk_core.dtypes import DType
from ytk_core.errors import UserError

if TYPE_CHECKING:
    from ytk_core.targets import TargetProfile

MAX_PLUGIN_RANK = 8
"""``YTK_MAX_RANK`` of the kernel ABI."""
DTYPES = {getattr(torch, str(dtype)): dtype for dtype in DType}
"""Our word for each torch dtype that a tensor between nodes can have."""


@dataclass(frozen=True)
class Border:
    """Which tensors the target lets pass between its own layers and a plugin."""

    dtypes: frozenset[DType] = frozenset(DType)
    max_rank: int = MAX_PLUGIN_RANK

    def objection(self, value: Any) -> str | None:
        """Say why a value cannot pass, or None; ``value`` is a node's ``val``."""
        if not isinstance(value, torch.Tensor):
            return f"a {type(value).__name__}, not a tensor"
        dtype = DTYPES.get(value.dtype)
        if dtype is None or dtype not in self.dtypes:
            return f"of type {str(value.dtype).removeprefix('torch.')}"
        if value.dim() > self.max_rank:
            return f"of rank {value.dim()}, and {self.max_rank} is the highest"
        return None


def border_of(profile: TargetProfile) -> Border:
    """Give what a target passes to plugins: its own types, and those that it stores in one of its own."""
    dtypes = frozenset(dtype for dtype in DType if profile.narrowed.get(dtype, dtype) in profile.dtypes)
    return Border(dtypes, min(profile.max_rank or MAX_PLUGIN_RANK, MAX_PLUGIN_RANK))


ANY_BORDER = Border()
"""For a target without limits of its own."""


def is_expressible(node: torch.fx.Node) -> bool:
    """Tell whether a node's value can be the value of an ONNX node at all, whatever the target."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype in DTYPES


def grow(seed: torch.fx.Node, border: Border) -> set[torch.fx.Node]:
    """Give the smallest region around a node whose border consists of tensors that can pass.

    Tuples, complex tensors, sizes and numbers cannot enter or leave an ONNX node, so whatever makes or takes them goes
    into the region too; so does what makes or takes a tensor that the target does not have, as far as there is
    something to take in: a region that keeps such a tensor at its border is marked, not refused.

    Raises:
        UserError: ``not_carvable``: a value that ONNX has no word for is an input or output of the model itself.
    """
    region: set[torch.fx.Node] = set()
    waiting = [seed]
    while waiting:
        node = waiting.pop()
        if node in region:
            continue
        region.add(node)
        for arg in node.all_input_nodes:
            if border.objection(arg.meta.get("val")):
                waiting += _absorbed(arg, arg)
            elif _is_own_scalar(arg):
                waiting.append(arg)
        if border.objection(node.meta.get("val")) and node.op != "get_attr":
            for user in node.users:
                waiting += _absorbed(user, node)
    return convex_closure(region)


def _is_own_scalar(node: torch.fx.Node) -> bool:
    """Tell whether a node makes one constant number for one user.

    Type promotion turns Python numbers into such nodes; they are attributes of the operator, not inputs of a kernel.
    """
    value = node.meta.get("val")
    constant = node.op == "call_function" and not node.all_input_nodes and len(node.users) == 1
    return constant and isinstance(value, torch.Tensor) and value.numel() == 1 and not is_random(node)


def is_random(node: torch.fx.Node) -> bool:
    """Tell whether a node draws random numbers, by torch's own mark on the operator.

    Not by values that differ, for two draws may agree. What may drop out values does so only where it is told to train,
    and with a probability above 0.
    """
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    given = draws.bound_arguments(node.target, node.args, dict(node.kwargs))
    if any(given.get(name) is False for name in ("train", "training")):
        return False
    probabilities = {"dropout_p", "dropout"} | ({"p"} if "dropout" in node.target.__name__ else set())
    return not any(given.get(name) == 0 for name in probabilities)


def _absorbed(node: torch.fx.Node, value_of: torch.fx.Node) -> list[torch.fx.Node]:
    """Give the node if it can go into a region; nothing if it cannot and its value may stay at the border."""
    if node.op in {"call_function", "get_attr"}:
        return [node]
    if is_expressible(value_of):
        return []
    value = value_of.meta.get("val")
    kind = str(value.dtype) if isinstance(value, torch.Tensor) else type(value).__name__
    side = "output" if node.op == "output" else "input"
    msg = f"{value_of.name!r}, an {side} of the model beside an operator to carve, is {kind}: no engine takes it"
    hint = "Use torch.view_as_real." if isinstance(value, torch.Tensor) and value.is_complex() else "Cast it."
    raise UserError(msg, code="not_carvable", hint=f"Give the model a real {side} of a common type. {hint}")


def seed_of(node: torch.fx.Node) -> torch.fx.Node:
    """Give the operator behind a getitem, else the node itself."""
    return node.all_input_nodes[0] if node.target is operator.getitem else node


def convex_closure(region: set[torch.fx.Node]) -> set[torch.fx.Node]:
    """Add every node that lies on a path from the region back into it: otherwise the operator would feed itself."""
    while True:
        after = _reachable(region, lambda node: node.users)
        before = _reachable(region, lambda node: node.all_input_nodes)
        between = (after & before) - region
        if not between:
            return region
        region = region | between


def is_convex(region: set[torch.fx.Node]) -> bool:
    """Tell whether no path leaves the region and comes back."""
    return convex_closure(region) == region


def _reachable(
    start: set[torch.fx.Node], step: Callable[[torch.fx.Node], Iterable[torch.fx.Node]]
) -> set[torch.fx.Node]:
    found: set[torch.fx.Node] = set()
    waiting = [following for node in start for following in step(node)]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting.extend(step(node))
    return found
