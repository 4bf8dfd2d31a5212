"""Export until the graph computes what torch computes.

Some translations succeed and compute something else. The comparison with torch finds the operator, which is then carved
like one that the exporter refuses, and everything is tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from ytk_client.frontend import export as exporting
from ytk_client.frontend import prescan
from ytk_client.frontend.carve import Carver
from ytk_client.frontend.compare import CannotRunError
from ytk_client.frontend.comparison import Comparison, ExportDiffersError
from ytk_client.frontend.naming import BorderNames
from ytk_client.frontend.refusals import Refusal
from ytk_client.frontend.weights import write_model
from ytk_core.formats.prepare_outputs import CandidateReason
from ytk_core.formats.verify_report import OutputAccuracy

if TYPE_CHECKING:
    from ytk_core.targets import TargetProfile

MAX_ROUNDS = 8
"""How many operators of one model may turn out wrong, one after the other; each costs an export and a comparison."""


@dataclass(frozen=True)
class FaithfulExport:
    """A graph that was written and agrees with torch on every sample.

    ``onnx_names`` are the placeholder nodes' names by FX node, ``accuracy`` has a verdict per sample and value.
    """

    graph: ir.Model
    onnx_names: dict[str, str]
    comparison: Comparison
    accuracy: list[OutputAccuracy]


@dataclass(frozen=True)
class Samples:
    """Reference inputs in the order of the graph's inputs, and everything that forward returned for each, flattened."""

    inputs: Sequence[tuple[torch.Tensor, ...]]
    outputs: Sequence[Sequence[torch.Tensor | None]]


def export_faithfully(
    program: torch.export.ExportedProgram,
    carver: Carver,
    profile: TargetProfile,
    names: BorderNames,
    samples: Samples,
    *,
    onnx_path: Path,
    npz_path: Path,
    model_path: Path,
    on_phase: Callable[[str, str], None] = lambda _name, _text: None,
) -> FaithfulExport:
    """Export a decomposed program, write it, compare it with torch; carve what differs and start over.

    Args:
        program: From :func:`torch_adapter.decompose`; carved in place.
        carver: Of this program.
        profile: The target.
        names: Of the graph's inputs and outputs.
        samples: To compare on.
        onnx_path: Where the graph goes.
        npz_path: Where its weights go, in the same directory.
        model_path: The user's file, to name lines in it.
        on_phase: Told the name and the text of what happens next.

    Raises:
        UserError: ``export_differs``: the graph differs where no operator can be named, or still after the operator was
            carved (the weights themselves differ, for example);
            ``not_carvable`` or ``export_failed``.
        NotAvailableError: ``no_evaluator``: nothing that is installed runs the graph.
    """
    first: ExportDiffersError | CannotRunError | None = None
    for attempt in range(MAX_ROUNDS + 1):
        on_phase("export", f"exporting for {profile.name}")
        graph = exporting.export(program, carver, profile)
        exporting.name_borders(graph, names.inputs, names.outputs)
        onnx_names = exporting.annotate(graph, carver)
        exporting.strip_graph_metadata(graph)
        # The npz goes first, so that at no moment an ONNX refers to data that is not there yet.
        write_model(graph, onnx_path, npz_path)
        on_phase("compare", "comparing the exported graph with torch")
        comparison = Comparison(program, carver, onnx_path, names, onnx_names, profile.engine)
        try:
            accuracy = comparison.run(samples.inputs, samples.outputs, model_path)
        except (ExportDiffersError, CannotRunError) as err:
            # An operator that is wrong again beside its carved neighbour, or nowhere, is not what is at fault.
            first = first or err
            refusal = _refusal(err, graph, program)
            if refusal is None or attempt == MAX_ROUNDS:
                raise first from err
            carver.carve([refusal])
            continue
        for region in carver.regions:  # two sites that compute the same are one node by now
            region.sites = [site for site in region.sites if site.node in onnx_names]
        return FaithfulExport(graph, onnx_names, comparison, accuracy)
    raise AssertionError  # the last attempt returns or raises


def _refusal(
    error: ExportDiffersError | CannotRunError, graph: ir.Model, program: torch.export.ExportedProgram
) -> Refusal | None:
    """Give what to carve because of an error, None where no operator is to blame."""
    if isinstance(error, ExportDiffersError):
        return None if error.node is None else Refusal(error.node, CandidateReason.NUMERICS, error.finding)
    node = next((each for each in ir.traversal.RecursiveGraphIterator(graph.graph) if each.name == error.node), None)
    if node is None:
        return None
    return Refusal(prescan.origin(node, program), CandidateReason.TARGET_ILLEGAL, error.finding)
