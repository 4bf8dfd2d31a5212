"""Which ONNX nodes were brought into another form for the target: noted before, compared after."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ytk_client.frontend import torch_adapter

_META_KEY = "ytk.forms"
_Form = tuple[str, int, frozenset[str], str]


@dataclass(frozen=True)
class RewrittenOp:
    """An ONNX operator that was brought into another form. ``becomes``: what it is now; ``first_node``: an FX node it came from."""

    op: str
    becomes: tuple[str, ...]
    count: int
    first_node: str


def remember(model: ir.Model) -> None:
    """Note the form of every node in the model's own notes, which are not written to a file."""
    model.meta[_META_KEY] = {node: _form(node) for node in ir.traversal.RecursiveGraphIterator(model.graph)}


def _form(node: ir.Node) -> _Form:
    return node.op_type, len(node.inputs), frozenset(node.attributes), torch_adapter.fx_node_name(node) or ""


def rewritten(model: ir.Model) -> tuple[RewrittenOp, ...]:
    """Give what has changed since :func:`remember`, by operator."""
    before: dict[ir.Node, _Form] = model.meta.get(_META_KEY, {})
    now = {node: _form(node) for node in ir.traversal.RecursiveGraphIterator(model.graph)}
    fresh: dict[str, list[str]] = {}
    for node, form in now.items():
        if node not in before:
            fresh.setdefault(form[3], []).append(form[0])
    found: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for node, form in before.items():
        if node not in now:
            found.setdefault((form[0], tuple(sorted(fresh.get(form[3], ())))), []).append(form[3])
        elif now[node][:3] != form[:3]:
            found.setdefault((form[0], (now[node][0],)), []).append(form[3])
    return tuple(RewrittenOp(op, becomes, len(names), names[0]) for (op, becomes), names in sorted(found.items()))
