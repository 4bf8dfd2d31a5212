"""From the user's file to a captured program whose selected regions are carved: what a real and a dry run share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ytk_client.frontend import fx_nodes, regions, steps, torch_adapter
from ytk_client.frontend.capture import DYNAMIC_HINT, capture
from ytk_client.frontend.captured import Lowered, lower
from ytk_client.frontend.carve import Carver
from ytk_client.frontend.dynamic import (
    DynamicAxis,
    at_extents,
    export_shapes,
    parse_dynamic,
    references_within,
    resolve,
)
from ytk_client.frontend.forms import RewrittenOp
from ytk_client.frontend.growth import border_of
from ytk_client.frontend.load_model import LoadedModel, load_model
from ytk_client.frontend.naming import BorderNames
from ytk_client.frontend.random_inputs import RandomInput
from ytk_client.frontend.rewrites import rewrite
from ytk_client.frontend.samples import reference_inputs
from ytk_client.frontend.selectors import Selector
from ytk_core.errors import UserError
from ytk_core.formats.prepare_outputs import FxNode

if TYPE_CHECKING:
    from ytk_client.frontend.prepare import PrepareRequest
    from ytk_core.targets import TargetProfile

Inputs = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class OpenedModel:
    """A model that was run and captured, and what is to be carved of it so far."""

    model: LoadedModel
    program: torch.export.ExportedProgram
    carver: Carver
    names: BorderNames
    nodes: list[FxNode]
    inputs: list[Inputs]
    truth: list[list[torch.Tensor | None]]
    noise: list[RandomInput]
    notes: list[str]
    rewritten: tuple[RewrittenOp, ...] = ()


def open_model(
    request: PrepareRequest, profile: TargetProfile, selectors: list[Selector], on_phase: Callable[[str, str], None]
) -> OpenedModel:
    """Load, run and capture a model, then carve what the selectors name.

    Args:
        request: What the user asked for.
        profile: The target.
        selectors: The parsed ``--plugin``.
        on_phase: Told the name and the text of what happens next.

    Raises:
        UserError: The model is wrong, cannot be captured, or a selector does not fit it.
    """
    on_phase("load", f"loading {request.model}")
    model = load_model(request.model)
    axes = resolve(parse_dynamic(request.dynamic), model)
    # A model is captured at its usual extents; of the samples, the second and third have the smallest and the largest.
    model = model.with_inputs(at_extents(model.flat_args, axes, "traced"))
    border = border_of(profile)
    samples = reference_inputs(model.flat_args, count=request.samples, seed=request.seed)
    samples[1:3] = [at_extents(each, axes, which) for each, which in zip(samples[1:3], ("min", "max"), strict=False)]
    samples += references_within(model, axes)
    steps.flat_outputs(model, samples[0])  # a model that does not run is told so before it is captured
    on_phase("capture", "capturing the model")

    def truth(reference: LoadedModel, sample: Inputs, updated: Sequence[int]) -> list[torch.Tensor | None]:
        return _truth(reference, sample, updated, dynamic=bool(axes))

    def bring_down(captured: torch.export.ExportedProgram) -> Lowered:
        return lower(
            captured, model, samples, truth=truth, noisy=request.random_inputs, seed=request.seed, border=border
        )

    lowered, calls = _capture(model, selectors, export_shapes(model, axes), bring_down)
    program, names, notes = lowered.program, lowered.names, lowered.notes
    marked = {node for sites in calls.values() for site in sites for node in site}
    rewritten = rewrite(program, profile, keep=marked)
    nodes = fx_nodes.snapshot(program, model.path)
    selection = None
    if selectors:
        from ytk_client.frontend.selectors_carve import carve_selected, find_and_lift

        _refuse_empty_namespace(selectors, profile)
        on_phase("select", "finding the selected regions")
        selection = find_and_lift(program, selectors, border, calls, is_builtin=profile.is_builtin)
    carver = Carver(
        program,
        namespace=request.namespace,
        is_builtin=profile.is_builtin,
        border=border,
        can_vary=regions.can_vary,
        extents=_symbols(program, axes),
    )
    if selection is not None:
        notes += carve_selected(program, carver, selection, border, regions.can_vary)
    return OpenedModel(
        model, program, carver, names, nodes, lowered.inputs, lowered.truth, lowered.noise, lowered.notes, rewritten
    )


def _truth(model: LoadedModel, sample: Inputs, updated: Sequence[int], *, dynamic: bool) -> list[torch.Tensor | None]:
    try:
        return steps.flat_outputs(model, sample, updated)
    except UserError as err:
        as_given = [tensor.shape for tensor in sample] == [tensor.shape for tensor in model.flat_args]
        if not dynamic or as_given or err.code != "model_forward_failed":
            raise
        shapes = ", ".join("x".join(map(str, tensor.shape)) for tensor in sample)
        msg = f"the model does not take every extent that --dynamic allows: with inputs of {shapes}, {err.message}"
        raise UserError(msg, code="dynamic_refused", hint=DYNAMIC_HINT) from err


def _capture(
    model: LoadedModel,
    selectors: list[Selector],
    shapes: Any,
    bring_down: Callable[[torch.export.ExportedProgram], Lowered],
) -> tuple[Lowered, dict[str, list[set[torch.fx.Node]]]]:
    if not selectors:
        return bring_down(capture(model, shapes)), {}
    from ytk_client.frontend.selectors_call import intercepted, python_paths, take_marks

    paths = python_paths(selectors)
    with intercepted(paths):
        lowered = bring_down(capture(model, shapes))
    return lowered, {**{key: [] for key in paths}, **take_marks(lowered.program)}


def _symbols(
    program: torch.export.ExportedProgram, axes: dict[int, list[DynamicAxis]]
) -> dict[Any, tuple[int, int, int]]:
    """Give the range of each symbol that stands for an axis of an input."""
    values = {node.name: node.meta["val"] for node in program.graph_module.graph.nodes if node.op == "placeholder"}
    inputs = torch_adapter.user_input_names(program)
    found = {}
    for position, each in axes.items():
        for axis in each:
            dim = values[inputs[position]].shape[axis.axis]
            if isinstance(dim, torch.SymInt):
                found[dim.node.expr] = (axis.min, axis.opt, axis.max)
    return found


def _refuse_empty_namespace(selectors: list[Selector], profile: TargetProfile) -> None:
    for selector in selectors:
        if not selector.namespace and not profile.name.startswith("trt"):
            msg = f"{selector.placeholder}: the target {profile.name} finds plugins by the domain of their node, which cannot be empty"
            raise UserError(msg, code="empty_namespace", hint=f"Name one: yasp::{selector.name}.")
        if selector.namespace in profile.domains - {""}:
            msg = f"{selector.placeholder}: the namespace {selector.namespace!r} is one of the target's own domains"
            raise UserError(msg, code="bad_selector", hint=f"Name another: yasp::{selector.name}.")
