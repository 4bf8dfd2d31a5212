"""Run a program in torch node by node and keep what enters and leaves its regions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ytk_client.frontend import torch_adapter


@dataclass(frozen=True)
class SiteRecord:
    """The tensors at one site in one run, in the order of the placeholder node's inputs and outputs."""

    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Recording:
    """One run: the program's outputs in flattened order, and the record of each site by its FX node name."""

    outputs: tuple[Any, ...]
    sites: dict[str, SiteRecord]


class _Recorder(torch.fx.Interpreter):  # type: ignore[misc]  # torch is untyped here
    def __init__(
        self,
        module: torch.fx.GraphModule,
        sites: frozenset[str],
        watch: Callable[[str, Any], None] | None,
        change: Callable[[Any], Any] | None,
    ) -> None:
        super().__init__(module)
        self._change = change
        self._sites = sites
        self._watch = watch
        self.found: dict[str, SiteRecord] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        result = super().run_node(n)
        if self._change is not None and n.op != "output":
            result = self._change(result)
        if n.name in self._sites:
            inputs = tuple(self.env[arg] for arg in n.args)
            outputs = result if isinstance(result, tuple) else (result,)
            self.found[n.name] = SiteRecord(inputs, outputs)
        if self._watch is not None:
            self._watch(n.name, result)
        return result


def record(
    program: torch.export.ExportedProgram,
    inputs: Sequence[torch.Tensor],
    sites: Sequence[str],
    watch: Callable[[str, Any], None] | None = None,
    change: Callable[[Any], Any] | None = None,
) -> Recording:
    """Run a decomposed or carved program.

    Args:
        program: The program.
        inputs: Its user inputs, in order.
        sites: Names of the FX nodes whose tensors to keep.
        watch: Called with the name and result of every node.
        change: Gives what goes on in the place of each result.
    """
    lifted = torch_adapter.lifted_tensors(program)
    given = iter(inputs)
    placeholders = [node.name for node in program.graph_module.graph.nodes if node.op == "placeholder"]
    feeds = [lifted[name][1] if name in lifted else next(given) for name in placeholders]
    recorder = _Recorder(program.graph_module, frozenset(sites), watch, change)
    with torch.no_grad():
        results = recorder.run(*feeds)
    skipped = len(program.graph_signature.output_specs) - len(torch_adapter.user_output_names(program))
    return Recording(tuple(results)[skipped:], recorder.found)
