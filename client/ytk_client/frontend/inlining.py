"""Put what an ordinary function computes in the place of one node of a captured program."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from ytk_client.frontend import torch_adapter
from ytk_client.frontend.draws import bound_arguments, works_in_place


def replace_by(
    program: torch.export.ExportedProgram, node: torch.fx.Node, compute: Callable[[dict[str, Any]], Any]
) -> None:
    """Trace a function of an operator's arguments and put its operators in the place of the node.

    Args:
        program: Holds the node.
        node: A call of an operator.
        compute: Takes the arguments by the names of the schema, gives what the operator gives.
    """
    given = bound_arguments(node.target, node.args, dict(node.kwargs))
    tensors = node.all_input_nodes

    def run(*values: torch.Tensor) -> Any:
        known = dict(zip(tensors, values, strict=True))
        return compute(torch.fx.node.map_arg(given, known.__getitem__))

    with torch_adapter.fake_mode_of(program):
        body = make_fx(run)(*(arg.meta["val"] for arg in tensors))
    put_in_place(node, body, tensors)


def put_in_place(node: torch.fx.Node, body: torch.fx.GraphModule, inputs: Sequence[torch.fx.Node]) -> None:
    """Put the nodes of a traced function in the place of a node; they keep its module and source line.

    Args:
        node: A call of an operator; one that works in place becomes a copy into its first argument. Of a tuple, elements
            that the function does not give must be unused.
        body: From ``make_fx``.
        inputs: What its placeholders stand for.
    """
    graph = node.graph
    names = [each for each in body.graph.nodes if each.op == "placeholder"]
    copies: dict[torch.fx.Node, torch.fx.Node] = dict(zip(names, inputs, strict=True))
    results: Any = ()
    with graph.inserting_before(node):
        for each in body.graph.nodes:
            if each.op == "output":
                results = torch.fx.node.map_arg(each.args[0], copies.__getitem__)
            elif each.op != "placeholder":
                copies[each] = graph.node_copy(each, copies.__getitem__)
                copies[each].meta = {**node.meta, "val": each.meta["val"]}
        if works_in_place(node.target):
            written = graph.call_function(torch.ops.aten.copy_.default, (node.args[0], results))
            written.meta = dict(node.meta)
            results = written
    if isinstance(results, (tuple, list)):
        for user in list(node.users):
            if user.users:
                user.replace_all_uses_with(results[user.args[1]])
            graph.erase_node(user)
    else:
        node.replace_all_uses_with(results)
    graph.erase_node(node)


def used_elements(node: torch.fx.Node) -> set[int]:
    """Give which elements of a node's tuple are used."""
    return {int(user.args[1]) for user in node.users if user.target is operator.getitem and user.users}
