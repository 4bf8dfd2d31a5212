"""Operators of a captured program that torch's decompositions or exporter do not manage, written with others.

Each is an ordinary function of the operator's arguments, by the names of its schema.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from ytk_client.frontend.inlining import replace_by, used_elements

Arguments = dict[str, Any]


def _diagonal_scatter(given: Arguments) -> torch.Tensor:
    """Torch's own decomposition writes into a view, which its functionalisation does not take."""
    x, source = given["self"], given["src"]
    places = torch.arange(math.prod(x.shape)).reshape(x.shape)
    diagonal = places.diagonal(given["offset"], given["dim1"], given["dim2"]).reshape(-1)
    return x.reshape(-1).scatter(0, diagonal, source.reshape(-1)).reshape(x.shape)


def _chunked_cross_entropy(given: Arguments) -> tuple[torch.Tensor]:
    """In chunks it saves memory for gradients; without these it is the plain form."""
    return (_cross_entropy(given, given["reduction"], given["label_smoothing"]),)


def _chunked_cross_entropy_of_each(given: Arguments) -> torch.Tensor:
    return _cross_entropy(given, "none", 0.0)


def _cross_entropy(given: Arguments, reduction: str, label_smoothing: float) -> torch.Tensor:
    logits = functional.linear(given["input"], given["linear_weight"], given["linear_bias"])
    return functional.cross_entropy(
        logits,
        given["target"],
        weight=given["weight"],
        ignore_index=given["ignore_index"],
        reduction=reduction,
        label_smoothing=label_smoothing,
    )


def _cross_entropy_of_one(given: Arguments) -> torch.Tensor:
    """ONNX's loss has a batch axis, always."""
    rows = {name: given[name].unsqueeze(0) for name in ("self", "target")}
    loss = torch.ops.aten.cross_entropy_loss(**{**given, **rows})
    return loss if given["reduction"] else loss.squeeze(0)


REWRITES: dict[str, Callable[[Arguments], Any]] = {
    "aten.diagonal_scatter.default": _diagonal_scatter,
    "aten.cross_entropy_loss.default": _cross_entropy_of_one,
    "torch_nn._linear_cross_entropy_batch_chunked.default": _chunked_cross_entropy,
    "torch_nn._linear_cross_entropy_batch_chunked_no_reduction.default": _chunked_cross_entropy_of_each,
}
"""By name, since torch registers some of them when they are first used."""


def rewrite(program: torch.export.ExportedProgram) -> None:
    """Bring the operators of :data:`REWRITES` into the form that is written here; those used in other ways stay."""
    for node in list(program.graph_module.graph.nodes):
        function = REWRITES.get(str(node.target)) if node.op == "call_function" else None
        if function is _cross_entropy_of_one and node.args[0].meta["val"].dim() != 1:
            continue
        if function is not None and used_elements(node) <= {0}:
            replace_by(program, node, function)
    program.graph_module.recompile()
