"""From a captured program to the final ONNX graph: carve, translate, optimise, lower, name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from ytk_client.frontend import forms, legality, prescan, quantized, torch_adapter
from ytk_client.frontend.carve import Carver, Site
from ytk_client.frontend.lower_opset import LOWEST_OPSET, expand_cast_like, lower_to_opset_17
from ytk_client.frontend.refusals import Refusal
from ytk_client.frontend.user_code import chain, first_line
from ytk_core.errors import ToolkitError, UserError
from ytk_core.formats.prepare_outputs import CandidateReason
from ytk_core.node_contracts import UNNAMED_DOMAIN

if TYPE_CHECKING:
    from ytk_core.targets import TargetProfile


def export(program: torch.export.ExportedProgram, carver: Carver, profile: TargetProfile) -> ir.Model:
    """Translate a decomposed program, carving whatever the exporter or the target refuses until nothing is refused.

    Args:
        program: From :func:`torch_adapter.decompose`; carved in place.
        carver: Of this program.
        profile: The target; its opset is the opset of the result.

    Returns:
        The graph with placeholder nodes; weights are still the program's tensors.

    Raises:
        UserError: ``not_carvable`` or ``export_failed``.
    """
    carver.carve(prescan.exporter_refusals(program))
    while True:
        quantized.store_loose_weights(program, profile)
        model, failed = _translate(program, carver)
        if model is None:
            carver.carve(failed)
            continue
        early = prescan.early_target_refusals(model, profile, program)
        if early:
            carver.carve(early)
            continue
        model = torch_adapter.optimize(model)
        restore_weight_types(model)
        # A graph of nothing but placeholders loses the import of the standard operators, which its readers expect.
        model.opset_imports.setdefault("", torch_adapter.EXPORTER_OPSET)
        forms.remember(model)
        expand_cast_like(model)
        not_lowered = lower_to_opset_17(model) if profile.opset <= LOWEST_OPSET else []
        late = prescan.target_refusals(model, profile, program, not_lowered)
        if not late:
            return model
        carver.carve(late)


def restore_weight_types(model: ir.Model) -> None:
    """Give the weights of convolutions the element type of their input again.

    The optimiser folds batch norms into convolutions with numpy, which computes bfloat16 in float32 and leaves it so: a graph that
    runtimes with a lenient reader take and a target's parser refuses.
    """
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.op_type not in {"Conv", "ConvTranspose"} or node.domain or node.inputs[0] is None:
            continue
        wanted = node.inputs[0].dtype
        for value in node.inputs[1:]:
            tensor = None if value is None else value.const_value
            if value is None or tensor is None or wanted is None or tensor.dtype == wanted:
                continue
            if value.is_initializer() and tensor.dtype.is_floating_point() and wanted.is_floating_point():
                value.const_value = ir.tensor(tensor.numpy().astype(wanted.numpy()), name=value.name)
                value.dtype = wanted


def _translate(program: torch.export.ExportedProgram, carver: Carver) -> tuple[ir.Model | None, list[Refusal]]:
    """Translate; where a translation function raises, give the node it was for as a refusal instead of a model."""
    placeholders = {
        region.op: torch_adapter.Placeholder(
            domain=region.namespace or UNNAMED_DOMAIN,
            op_type=region.name,
            attributes={
                "plugin_namespace": region.namespace,
                "plugin_version": region.version,
                **(region.shipped.attributes if region.shipped else {}),
            },
            output_count=len(region.sites[0].outputs),
        )
        for region in carver.regions
    }
    try:
        return torch_adapter.translate(program, placeholders), []
    except Exception as err:  # translation functions of several hundred operators raise anything
        root = list(chain(err))[-1]
        text = f"{type(root).__name__}: {first_line(str(root))}"
        failing = torch_adapter.failing_fx_node(err)
        if failing is None:
            msg = f"the exporter failed: {text}"
            raise UserError(
                msg, code="export_failed", hint="Run with --debug for the traceback of torch's exporter."
            ) from err
        name = torch_adapter.subgraph_owners(program).get(failing.graph, failing).name
        if any(site.node == name for region in carver.regions for site in region.sites):
            msg = f"the placeholder {name} could not be emitted: {text}"
            raise ToolkitError(msg, code="placeholder_failed") from err
        return None, [Refusal(name, CandidateReason.EXPORT_UNSUPPORTED, text)]


def name_borders(model: ir.Model, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Give the graph its input and output names; an output that is an input, a constant or another output gets a node.

    Names of inner values that collide are changed.
    """
    graph = model.graph
    seen: set[int] = set()
    for index, value in enumerate(graph.outputs):
        if value.is_graph_input() or value.is_initializer() or id(value) in seen:
            node = ir.Node("", "Identity", [value])
            node.outputs[0].shape, node.outputs[0].dtype = value.shape, value.dtype
            graph.append(node)
            graph.outputs[index] = node.outputs[0]
        seen.add(id(graph.outputs[index]))
    wanted = {id(value): name for value, name in zip((*graph.inputs, *graph.outputs), (*inputs, *outputs), strict=True)}
    reserved = set(wanted.values())
    for value in _values(graph):
        if id(value) not in wanted and value.name in reserved:
            value.name = _free(value.name, reserved, graph)
    for value in (*graph.inputs, *graph.outputs):
        value.name = f"ytk_renaming_{wanted[id(value)]}"  # in two steps: the names may be permuted
    for value in (*graph.inputs, *graph.outputs):
        value.name = wanted[id(value)]
    for index, node in enumerate(graph):
        node.name = node.name or f"node_{node.op_type}_{index}"


def _values(graph: ir.Graph) -> list[ir.Value]:
    produced = [value for node in ir.traversal.RecursiveGraphIterator(graph) for value in node.outputs]
    return [*graph.initializers.values(), *produced]


def _free(name: str, reserved: set[str], graph: ir.Graph) -> str:
    taken = reserved | {value.name for value in _values(graph) if value.name}
    serial = 1
    while f"{name}_{serial}" in taken:
        serial += 1
    return f"{name}_{serial}"


def annotate(model: ir.Model, carver: Carver) -> dict[str, str]:
    """Write the owning module of each site onto its placeholder node; give the ONNX node names by FX node name."""
    sites: dict[str, Site] = {site.node: site for region in carver.regions for site in region.sites}
    names: dict[str, str] = {}
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.domain in legality.STANDARD_DOMAINS:
            continue
        site = sites.get(torch_adapter.fx_node_name(node) or "")
        if site is None:
            msg = f"the graph holds {node.domain}::{node.op_type}, which nothing was carved into"
            raise ToolkitError(msg, code="stray_placeholder")
        node.metadata_props["ytk.module_path"] = site.module_path
        node.metadata_props["ytk.module_class"] = site.module_class
        names[site.node] = str(node.name)
    return names


def strip_graph_metadata(model: ir.Model, keep: Callable[[str], bool] = lambda key: key.startswith("ytk.")) -> None:
    """Remove the exporter's dump of the whole signature from the graph: it is long and names nothing of use."""
    for key in list(model.graph.metadata_props):
        if not keep(key):
            del model.graph.metadata_props[key]
