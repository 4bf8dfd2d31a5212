"""Permutes of more axes than the target takes, as one or several of fewer axes.

Cutting an image or a video into patches is a view to 8, 9 or more axes, a permute, and a view back. Axes that stay neighbours move as
one, and axes of extent 1 need not be there; what still has too many axes is done in steps, each of which brings the first axes of
the result to the front.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import torch

from ytk_client.frontend import torch_adapter
from ytk_client.frontend.forms import RewrittenOp

_aten = torch.ops.aten
_VIEWS = frozenset({_aten.view.default, _aten._unsafe_view.default, _aten.reshape.default})  # noqa: SLF001 - an operator name


@dataclass(frozen=True)
class Step:
    """View as ``dims``, then permute by ``order``."""

    dims: tuple[int, ...]
    order: tuple[int, ...]


def split_permute(dims: Sequence[int], order: Sequence[int], max_rank: int) -> list[Step]:
    """Give permutes of at most ``max_rank`` axes that together move elements as one permute does.

    Args:
        dims: Extents before.
        order: Of the axes after: axis ``i`` of the result is axis ``order[i]`` before.
        max_rank: At least 4.

    Returns:
        The steps; none where no element moves.
    """
    real = [axis for axis in order if dims[axis] != 1]
    places = {axis: index for index, axis in enumerate(sorted(real))}
    extents = [dims[axis] for axis in sorted(real)]
    wanted = [places[axis] for axis in real]
    steps: list[Step] = []
    while True:
        done = _merged(extents, wanted)
        if len(done.dims) <= max_rank:
            return [*steps, done] if len(done.dims) > 1 else steps
        # As many of the result's first axes as can go to the front at once; the others keep their order.
        for count in range(len(wanted) - 1, 0, -1):
            first = wanted[:count]
            step = _merged(extents, [*first, *(axis for axis in range(len(extents)) if axis not in first)])
            if len(step.dims) <= max_rank:
                break
        steps.append(step)
        rest = [axis for axis in range(len(extents)) if axis not in first]
        # What is in place is one axis from now on.
        extents = [math.prod(extents[axis] for axis in first), *(extents[axis] for axis in rest)]
        places = {axis: index for index, axis in enumerate(rest, start=1)}
        wanted = [0, *(places[axis] for axis in wanted[count:])]


def _merged(dims: Sequence[int], order: Sequence[int]) -> Step:
    """Let axes that stay neighbours be one."""
    runs: list[list[int]] = []
    for axis in order:
        if runs and runs[-1][-1] + 1 == axis:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    before = sorted(runs)
    return Step(
        tuple(math.prod(dims[axis] for axis in run) for run in before), tuple(before.index(run) for run in runs)
    )


def lower_permutes(
    program: torch.export.ExportedProgram, max_rank: int, keep: AbstractSet[torch.fx.Node] = frozenset()
) -> list[RewrittenOp]:
    """Rewrite permutes between views; what is used at its high rank by anything else stays and is carved.

    Args:
        program: Decomposed, not carved yet; changed in place.
        max_rank: Of the target.
        keep: Nodes that stay as they are.
    """
    found = []
    graph = program.graph_module.graph
    for node in list(graph.nodes):
        order = _order(node)
        if order is None or len(order) <= max_rank or node in keep:
            continue
        source = node.args[0]
        ends = _ends(node, max_rank)
        plain = isinstance(source, torch.fx.Node) and source.target in _VIEWS
        if not plain or not ends or not keep.isdisjoint({source, *ends}):
            continue
        data = source.args[0]
        dims = list(source.meta["val"].shape)
        if data.meta["val"].dim() > max_rank or not all(isinstance(extent, int) for extent in dims):
            continue
        steps = split_permute(dims, order, max_rank)
        for end in ends:
            _replace(program, end, data, steps)
        found.append(RewrittenOp(f"{len(order)}-D permute", ("permute",) * len(steps), 1, node.name))
    if found:
        graph.eliminate_dead_code()
        program.graph_module.recompile()
    return found


def _order(node: torch.fx.Node) -> list[int] | None:
    """Give the order of axes of a node that only moves them."""
    if node.target not in {_aten.permute.default, _aten.transpose.int}:
        return None
    rank = node.meta["val"].dim()
    if node.target is _aten.permute.default:
        return [int(axis) % rank for axis in node.args[1]]
    order = list(range(rank))
    one, other = (int(axis) % rank for axis in node.args[1:3])
    order[one], order[other] = other, one
    return order


def _ends(node: torch.fx.Node, max_rank: int) -> list[torch.fx.Node]:
    """Give the views that bring a value back to few axes; none where anything else uses it."""
    ends: list[torch.fx.Node] = []
    for user in node.users:
        if user.target is _aten.clone.default:
            further = _ends(user, max_rank)
            if not further:
                return []
            ends += further
        elif user.target in _VIEWS and user.meta["val"].dim() <= max_rank:
            ends.append(user)
        else:
            return []
    return ends


def _replace(
    program: torch.export.ExportedProgram, end: torch.fx.Node, data: torch.fx.Node, steps: Sequence[Step]
) -> None:
    """Give what ``end`` gives, from the value before the first view."""
    graph = program.graph_module.graph
    value = data

    def emit(target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        with graph.inserting_before(end):
            node = graph.call_function(target, args, kwargs)
        node.meta = {key: each for key, each in end.meta.items() if key != "val"}
        real = [arg.meta["val"] if isinstance(arg, torch.fx.Node) else arg for arg in args]
        with data.meta["val"].fake_mode:
            node.meta["val"] = target(*real, **kwargs)
        return node

    for step in steps:
        value = emit(_aten.permute.default, emit(_aten.view.default, value, list(step.dims)), list(step.order))
        value = emit(_aten.clone.default, value, memory_format=torch.contiguous_format)
    value = emit(_aten.view.default, value, list(end.meta["val"].shape))
    end.replace_all_uses_with(value)
    torch_adapter.replace_in_signature(program, end.name, value.name)
    graph.erase_node(end)
