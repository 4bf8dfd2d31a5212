"""Drive the comparison of one export: what torch computes on every sample, and where the two part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from ytk_core.formats.verify_report import OutputAccuracy

from ytk_client.frontend import compare, torch_adapter
from ytk_client.frontend.carve import Carver
from ytk_client.frontend.fx_nodes import source_line
from ytk_client.frontend.naming import BorderNames
from ytk_client.frontend.recording import Recording, record
from ytk_client.frontend.tensors import dtype_of, from_onnx, to_onnx, to_storage

Inputs = tuple[torch.Tensor, ...]
Outputs = Sequence["torch.Tensor | None"]


class Comparison:
    """Holds torch and the exported graph against each other.

    Args:
        program: The carved program.
        carver: Of this program.
        onnx_path: The exported model, its weights beside it.
        names: Of the graph's inputs and outputs.
        onnx_names: ONNX node name of each site, by its FX node.
    """

    def __init__(
        self,
        program: torch.export.ExportedProgram,
        carver: Carver,
        onnx_path: Path,
        names: BorderNames,
        onnx_names: Mapping[str, str],
    ) -> None:
        self._program = program
        self._names = names
        self._onnx_path = onnx_path
        self._bodies = [region.body for region in carver.regions]
        self._site_names = {site.node: onnx_names[site.node] for region in carver.regions for site in region.sites}
        self.first: Recording | None = None
        """What torch computed in the regions on the first sample; None without regions."""
        self.evaluator = ""

    def run(self, inputs: Sequence[Inputs], truth: Sequence[Outputs], model_path: Path) -> list[OutputAccuracy]:
        """Compare all samples.

        Args:
            inputs: Of each sample, in the order of the graph's inputs.
            truth: Everything forward returned for it, flattened.
            model_path: The user's file, to name lines in it.

        Raises:
            UserError: ``export_differs``, at the first difference.
        """
        graph = compare.cut(self._onnx_path, self._onnx_path.with_name(".ytk-cut.onnx"))
        evaluator = compare.make_evaluator(graph)
        verdicts: list[OutputAccuracy] = []
        for index, (given, outputs) in enumerate(zip(inputs, truth, strict=True)):
            recording = record(self._program, given, list(self._site_names)) if self._site_names else None
            self.first = self.first or recording
            feeds, want = self._known(graph, given, outputs, recording)
            found = self._carved_program(graph, recording, outputs, index)
            found += compare.compare_sample(evaluator, graph, feeds, want, index)
            bad = next((verdict for verdict in found if not verdict.ok), None)
            if bad is not None:
                where = self._first_divergence(given, feeds, model_path)
                raise compare.differs(bad, where=where, evaluator=evaluator.name, random=self._random_operators())
            verdicts += found
            self.evaluator = evaluator.name
        return verdicts

    def _known(
        self, graph: compare.CutGraph, given: Inputs, outputs: Outputs, recording: Recording | None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Give what to feed (graph inputs, region outputs) and what to expect (region inputs, graph outputs)."""
        feeds = {name: to_onnx(tensor) for name, tensor in zip(self._names.inputs, given, strict=True)}
        want: dict[str, Any] = {}
        for node, found in (recording.sites if recording else {}).items():
            entering, leaving = graph.borders[self._site_names[node]]
            want |= {name: to_storage(tensor) for name, tensor in zip(entering, found.inputs, strict=True)}
            feeds |= {name: to_onnx(tensor) for name, tensor in zip(leaving, found.outputs, strict=True) if name}
        wanted = zip(self._names.outputs, self._names.pick(outputs), strict=True)
        return feeds, want | {name: to_storage(tensor) for name, tensor in wanted}

    def _carved_program(
        self, graph: compare.CutGraph, recording: Recording | None, outputs: Outputs, sample: int
    ) -> list[OutputAccuracy]:
        """Compare the carved program itself with the model: an output that a region gives is not in the cut graph."""
        if recording is None:
            return []
        pairs = zip(self._names.outputs, recording.outputs, self._names.pick(outputs), strict=True)
        return [
            compare.judge(
                name, to_storage(got), to_storage(want), dtype=dtype_of(want), finest=graph.precision, sample=sample
            )
            for name, got, want in pairs
        ]

    def _first_divergence(self, given: Inputs, feeds: Mapping[str, Any], model_path: Path) -> str:
        """Name the first node of the program whose value the graph gets wrong, "" if no inner value is comparable."""
        nodes = {node.name: node for node in self._program.graph_module.graph.nodes if node.op == "call_function"}
        probe = compare.cut(self._onnx_path, self._onnx_path.with_name(".ytk-probe.onnx"), extra_outputs=list(nodes))
        evaluator = compare.make_evaluator(probe)
        got = evaluator.run(feeds)
        finest = compare.rougher(probe.precision, evaluator.precision)
        culprits: list[str] = []
        # An inner value keeps the name of its FX node, a graph output has the name that the user knows.
        renamed = dict(zip(torch_adapter.user_output_names(self._program), self._names.outputs, strict=True))

        def watch(name: str, value: Any) -> None:
            known = renamed.get(name, name)
            if culprits or known not in got or name not in nodes or not isinstance(value, torch.Tensor):
                return
            array, dtype = from_onnx(got[known]), probe.dtypes[known]
            verdict = compare.judge(known, array, to_storage(value), dtype=dtype, finest=finest)
            if not verdict.ok:
                culprits.append(name)

        record(self._program, given, [], watch)
        if not culprits:
            return ""
        node = nodes[culprits[0]]
        scopes = torch_adapter.module_scopes(node)
        module = f" in module {scopes[-1][0] or '(top)'!r}" if scopes else ""
        line = source_line(str(node.meta.get("stack_trace") or ""), model_path)
        return f"{node.target}{module}" + (f" at {line}" if line else "")

    def _random_operators(self) -> list[str]:
        nodes = [*self._program.graph_module.graph.nodes, *(node for body in self._bodies for node in body.graph.nodes)]
        tag = torch.Tag.nondeterministic_seeded
        return sorted({str(node.target) for node in nodes if tag in getattr(node.target, "tags", ())})
