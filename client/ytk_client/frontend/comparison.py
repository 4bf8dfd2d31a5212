"""Drive the comparison of one export: what torch computes on every sample, and where the two part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ytk_client.frontend import compare, noise_floor, torch_adapter
from ytk_client.frontend.carve import Carver
from ytk_client.frontend.fx_nodes import source_line
from ytk_client.frontend.growth import seed_of
from ytk_client.frontend.naming import BorderNames
from ytk_client.frontend.recording import Recording, record
from ytk_client.frontend.tensors import dtype_of, from_onnx, to_onnx, to_storage
from ytk_core.errors import UserError
from ytk_core.formats.verify_report import OutputAccuracy

Inputs = tuple[torch.Tensor, ...]
Outputs = Sequence["torch.Tensor | None"]


class ExportDiffersError(UserError):
    """The graph computes something else than torch.

    ``node`` is the FX node to carve for it, None where none can be named or carving it would not help; ``finding`` says
    in one sentence what was seen.
    """

    default_code = "export_differs"

    def __init__(self, message: str, *, hint: str, node: str | None, finding: str) -> None:
        super().__init__(message, hint=hint)
        self.node = node
        self.finding = finding


class Comparison:
    """Holds torch and the exported graph against each other.

    Args:
        program: The carved program.
        carver: Of this program.
        onnx_path: The exported model, its weights beside it.
        names: Of the graph's inputs and outputs.
        onnx_names: ONNX node name of each site, by its FX node.
        engine: Of the target: if it is installed, it must take the graph.
    """

    def __init__(
        self,
        program: torch.export.ExportedProgram,
        carver: Carver,
        onnx_path: Path,
        names: BorderNames,
        onnx_names: Mapping[str, str],
        engine: str = "",
    ) -> None:
        self._engine = engine
        self._program = program
        self._names = names
        self._onnx_path = onnx_path
        # The optimiser may have merged two sites that compute the same.
        sites = [site.node for region in carver.regions for site in region.sites if site.node in onnx_names]
        self._site_names = {node: onnx_names[node] for node in sites}
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
            ExportDiffersError: At the first difference.
        """
        graph = compare.cut(self._onnx_path, self._onnx_path.with_name(".ytk-cut.onnx"))
        evaluator = compare.make_evaluator(graph, self._engine)
        verdicts: list[OutputAccuracy] = []
        for index, (given, outputs) in enumerate(zip(inputs, truth, strict=True)):
            recording = record(self._program, given, list(self._site_names)) if self._site_names else None
            self.first = self.first or recording
            feeds, want = self._known(graph, given, outputs, recording)
            found = self._carved_program(graph, recording, outputs, index)
            compared = compare.compare_sample(evaluator, graph, feeds, want, index)
            found += [each.verdict for each in compared]
            bad = next((verdict for verdict in found if not verdict.ok), None)
            if bad is not None:
                raise self._error(bad, self._first_divergence(given, feeds), evaluator.name, model_path)
            bad = self._hidden(graph, compared, given)
            if bad is not None:
                culprit = self._first_divergence(given, feeds, by_element=True)
                raise self._error(bad, culprit, evaluator.name, model_path)
            verdicts += found
            self.evaluator = evaluator.name
        return verdicts

    def _hidden(
        self, graph: compare.CutGraph, compared: Sequence[compare.Compared], given: Inputs
    ) -> OutputAccuracy | None:
        """Give the verdict about a value of which some elements are wrong but small beside others, None if there is none."""
        doubts = [each for each in compared if each.elements is not None and noise_floor.doubtful(*each.elements).any()]
        if not doubts:
            return None
        nodes = {node.name: node for node in self._program.graph_module.graph.nodes}
        sources = dict(zip(self._names.outputs, torch_adapter.user_output_names(self._program), strict=True))
        for name, onnx_name in self._site_names.items():
            entering = [arg.name for arg in nodes[name].args]
            sources |= dict(zip(graph.borders[onnx_name][0], entering, strict=True))
        wanted = {str(sources[each.verdict.name]) for each in doubts}
        precision = compare.rougher(*(each.precision for each in doubts))
        noise = noise_floor.measured(self._program, given, wanted, precision)
        for each in doubts:
            assert each.elements is not None
            outside = noise_floor.unexplained(*each.elements, noise[str(sources[each.verdict.name])])
            if outside.any():
                return each.refused(outside)
        return None

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

    def _error(
        self, bad: OutputAccuracy, node: torch.fx.Node | None, evaluator: str, model_path: Path
    ) -> ExportDiffersError:
        culprit = None if node is None else seed_of(node)
        where = "" if culprit is None else self._place(culprit, model_path)
        finding = compare.difference(bad, evaluator)
        if culprit is not None and culprit.name in self._site_names:
            culprit = None
        message = f"{finding}; it begins at {where}" if where else finding
        hint = "Nothing was written. Rewrite that operator in the model with others that export faithfully."
        return ExportDiffersError(message, hint=hint, node=None if culprit is None else culprit.name, finding=finding)

    def _first_divergence(
        self, given: Inputs, feeds: Mapping[str, Any], *, by_element: bool = False
    ) -> torch.fx.Node | None:
        """Give the first node of the program whose value the graph gets wrong, None if no inner value is comparable.

        ``by_element``: also where the wrong elements are small beside others.
        """
        nodes = {node.name: node for node in self._program.graph_module.graph.nodes if node.op == "call_function"}
        names = {name: torch_adapter.value_name(node) for name, node in nodes.items()}
        probe = compare.cut(
            self._onnx_path, self._onnx_path.with_name(".ytk-probe.onnx"), extra_outputs=list(names.values())
        )
        evaluator = compare.make_evaluator(probe)
        got = evaluator.run(feeds)
        finest = compare.rougher(probe.precision, evaluator.precision)
        culprits: list[torch.fx.Node] = []
        # A graph output has the name that the user knows.
        names |= dict(zip(torch_adapter.user_output_names(self._program), self._names.outputs, strict=True))

        def watch(name: str, value: Any) -> None:
            known = names.get(name, "")
            if culprits or known not in got or name not in nodes or not isinstance(value, torch.Tensor):
                return
            array, dtype = from_onnx(got[known]), probe.dtypes[known]
            value = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
            each = compare.compared(known, array, to_storage(value), dtype=dtype, finest=finest)
            elements = each.elements if name in noise else None
            if not each.verdict.ok or (elements is not None and noise_floor.unexplained(*elements, noise[name]).any()):
                culprits.append(nodes[name])

        noise = {}
        if by_element:
            noise = noise_floor.measured(self._program, given, {n for n in nodes if names[n] in got}, finest)
        record(self._program, given, [], watch)
        return culprits[0] if culprits else None

    @staticmethod
    def _place(node: torch.fx.Node, model_path: Path) -> str:
        scopes = torch_adapter.module_scopes(node)
        module = f" in module {scopes[-1][0] or '(top)'!r}" if scopes else ""
        line = source_line(str(node.meta.get("stack_trace") or ""), model_path)
        return f"{node.target}{module}" + (f" at {line}" if line else "")
