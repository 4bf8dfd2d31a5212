"""Memory that a model allocates and does not set: zeros in the graph, and zeros in torch while it is compared.

Such a value usually never reaches an output, for all of it is overwritten; where it does, the model itself is not
defined, and prepare says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten
_LIKE = frozenset({_aten.empty_like.default})
_SIZED: dict[Any, int] = {
    _aten.empty.memory_format: 0,
    _aten.empty_strided.default: 0,
    _aten.empty_permuted.default: 0,
    _aten.new_empty.default: 1,
    _aten.new_empty_strided.default: 1,
}
"""By operator: the place of the size among its arguments."""


def zero_undefined(program: torch.export.ExportedProgram) -> int:
    """Let a captured program have zeros where it leaves memory unset; give the number of places."""
    graph = program.graph_module.graph
    found = [node for node in graph.nodes if node.target in _LIKE or node.target in _SIZED]
    for node in found:
        dtype = node.meta["val"].dtype
        with graph.inserting_before(node):
            if node.target in _LIKE:
                new = graph.call_function(_aten.full_like.default, (node.args[0], 0), {"dtype": dtype})
            else:
                size = node.args[_SIZED[node.target]]
                new = graph.call_function(
                    _aten.full.default, (size, 0), {"dtype": dtype, "device": torch.device("cpu")}
                )
        new.meta = dict(node.meta)
        node.replace_all_uses_with(new)
        graph.erase_node(node)
    program.graph_module.recompile()
    return len(found)


class Filled(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped here
    """While active, memory that torch allocates without setting it holds ``value``."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self._value = value

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator."""
        result = func(*args, **(kwargs or {}))
        if (func in _LIKE or func in _SIZED) and result.numel():
            result.fill_(self._value)
        return result


def decides(run: Callable[[], list[torch.Tensor | None]]) -> bool:
    """Tell whether what a model gives depends on memory that it does not set; ``run`` gives its outputs."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        with Filled(0):
            zeros = run()
        torch.manual_seed(0)
        with Filled(1):
            ones = run()
    pairs = zip(zeros, ones, strict=True)
    return any(a is not None and b is not None and not torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs)
