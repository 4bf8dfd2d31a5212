"""Take the operators out of contexts that change nothing: ``torch.no_grad()`` and a disabled ``torch.autocast``.

torch.export puts what happens in a context into a graph of its own, and torch's decomposition gives all of it the place of the context:
a selector, a message and a profile would then see one module where there are many. What is inlined before keeps its own place.
An autocast that is enabled stays for torch, which puts in its casts (:func:`torch_adapter.decompose` keeps the places there).
"""

from __future__ import annotations

from typing import Any

import torch

_hop = torch.ops.higher_order


def inline_contexts(program: torch.export.ExportedProgram) -> int:
    """Inline contexts of the top graph, and those that come up with them.

    Args:
        program: Captured, not decomposed yet; changed in place.

    Returns:
        How many were inlined.
    """
    module = program.graph_module
    count = 0
    while True:
        found = next((node for node in module.graph.nodes if _body_index(node) is not None), None)
        if found is None:
            break
        _inline(program, found)
        count += 1
    if count:
        module.graph.eliminate_dead_code()
        module.recompile()
    return count


def _body_index(node: torch.fx.Node) -> int | None:
    """Give which argument is the graph of a context that changes nothing."""
    if node.target is _hop.wrap_with_set_grad_enabled:
        return 1
    if node.target is _hop.wrap_with_autocast and node.args[2] is False:
        return 4
    return None


def _inline(program: torch.export.ExportedProgram, node: torch.fx.Node) -> None:
    module, graph = program.graph_module, program.graph_module.graph
    index = _body_index(node)
    assert index is not None
    reference: Any = node.args[index]
    body = getattr(module, reference.target)
    values: dict[torch.fx.Node, Any] = {}
    given = iter(node.args[index + 1 :])
    results: Any = ()
    with graph.inserting_before(node):
        for inner in body.graph.nodes:
            if inner.op == "placeholder":
                values[inner] = next(given)
            elif inner.op == "output":
                results = torch.fx.map_arg(inner.args[0], values.__getitem__)
            elif inner.op == "get_attr":
                values[inner] = graph.get_attr(_adopt(module, body, str(inner.target)))
                values[inner].meta = dict(inner.meta)
            else:
                values[inner] = graph.node_copy(inner, values.__getitem__)
    results = results if isinstance(results, (tuple, list)) else (results,)
    for user in list(node.users):  # a context gives a tuple, and its elements are taken one by one
        value = results[user.args[1]]
        user.replace_all_uses_with(value)
        program.graph_signature.replace_all_uses(user.name, value.name)
        graph.erase_node(user)
    graph.erase_node(node)


def _adopt(module: torch.fx.GraphModule, body: torch.fx.GraphModule, target: str) -> str:
    """Give a graph inside of the body a name in the outer module."""
    value = getattr(body, target)
    known = next((name for name, each in vars(module)["_modules"].items() if each is value), None)
    if known is not None:
        return str(known)
    name = target
    while hasattr(module, name):
        name += "_"
    setattr(module, name, value)
    return name
