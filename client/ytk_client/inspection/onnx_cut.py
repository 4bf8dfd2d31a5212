"""Cut nodes out of a graph: what they gave becomes an input, so that a parser goes on behind them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any


def key_of(node: Any) -> str:
    """Give what identifies a node (an ONNX NodeProto): the first value that it gives, which no other node gives."""
    return next((str(name) for name in node.output if name), str(node.name))


def name_by_key(graph: Any) -> dict[str, str]:
    """Name every node after its key, inner graphs included.

    Returns:
        By key, the key of the node of the outermost graph that holds it (itself, or an If or Loop around it).
    """
    owners: dict[str, str] = {}
    for node in graph.node:
        for each in _with_inner(node):
            each.name = key_of(each)
            owners[each.name] = node.name
    return owners


def _with_inner(node: Any) -> Iterator[Any]:
    yield node
    for attribute in node.attribute:
        for inner in (attribute.g, *attribute.graphs):
            for each in inner.node:
                yield from _with_inner(each)


def cut(graph: Any, keys: Collection[str]) -> list[str]:
    """Remove nodes; values that are needed after them become inputs, outputs of the graph that they gave are dropped.

    Args:
        graph: An ONNX GraphProto with types in ``value_info`` or ``output``; changed in place.
        keys: Of the nodes.

    Returns:
        The keys of further nodes that had to go: they need a value whose type is unknown.
    """
    types = {info.name: info for info in (*graph.value_info, *graph.output) if info.type.tensor_type.elem_type}
    gone, dropped = set(keys), list[str]()
    removed: set[str] = set()
    for node in graph.node:  # in topological order, so an unknown type is met before whoever needs it
        if key_of(node) not in gone and any(name in removed and name not in types for name in _taken(node)):
            gone.add(key_of(node))
            dropped.append(key_of(node))
        if key_of(node) in gone:
            removed.update(name for name in node.output if name)
    kept = [node for node in graph.node if key_of(node) not in gone]
    needed = {name for node in kept for name in _taken(node)}
    for name in sorted(removed & needed):
        graph.input.add().CopyFrom(types[name])
    # An input that is an output, too, and a graph without outputs are refused for reasons of their own.
    outputs = [info for info in graph.output if info.name not in removed]
    if not outputs:
        loose = [name for node in kept for name in node.output if name and name not in needed and name in types]
        outputs = [types[name] for name in loose]
    outputs = [type(info).FromString(info.SerializeToString()) for info in outputs]
    del graph.node[:], graph.output[:]
    graph.node.extend(kept)
    graph.output.extend(outputs)
    return dropped


def _taken(node: Any) -> Iterator[str]:
    """Give the names that a node needs, those that its inner graphs take from outside included."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for inner in (attribute.g, *attribute.graphs):
            own = {info.name for info in inner.input} | {each.name for each in inner.initializer}
            own |= {name for each in inner.node for name in each.output}
            yield from (name for each in inner.node for name in _taken(each) if name not in own)
            yield from (info.name for info in inner.output if info.name not in own)
