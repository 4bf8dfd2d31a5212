"""From a captured program to the decomposed one that is exported, and to what torch gives for it on every sample.

Between capture and decomposition stand the rewrites that need torch's operators as the model called them: undefined
memory, random draws, and operators that torch's own decompositions do not manage.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ytk_client.frontend import borders, early_rewrites, random_inputs, steps, torch_adapter, undefined
from ytk_client.frontend.growth import ANY_BORDER, Border
from ytk_client.frontend.load_model import LoadedModel
from ytk_client.frontend.naming import BorderNames
from ytk_client.frontend.random_inputs import RandomInput

Inputs = tuple[torch.Tensor, ...]
Truth = Callable[[LoadedModel, Inputs, Sequence[int]], list["torch.Tensor | None"]]
"""Gives what a model gives for a sample (:func:`steps.flat_outputs`)."""


@dataclass(frozen=True)
class Lowered:
    """A decomposed program whose inputs and outputs an engine can have.

    ``inputs`` of each sample are in the form and order of the graph's inputs, the noise last; ``truth`` has everything
    that forward returned for them, flattened.
    """

    program: torch.export.ExportedProgram
    names: BorderNames
    inputs: list[Inputs]
    truth: list[list[torch.Tensor | None]]
    noise: list[RandomInput]
    notes: list[str]


def lower(
    captured: torch.export.ExportedProgram,
    model: LoadedModel,
    samples: Sequence[Inputs],
    *,
    truth: Truth = steps.flat_outputs,
    noisy: bool = False,
    seed: int = 0,
    border: Border = ANY_BORDER,
) -> Lowered:
    """Bring a captured program into the form that is exported, and run torch on every sample.

    Args:
        captured: Changed in place.
        model: What it was captured from.
        samples: Inputs as the model takes them.
        truth: Runs the model; it words its errors.
        noisy: Whether random draws become inputs of the graph; else they are refused.
        seed: Of the noise.
        border: What the target takes of plugins: an output of a type that it lacks goes out in a wider one.

    Raises:
        UserError: ``random_draw``, ``model_mutates_state``, ``decomposition_failed``; or the model fails on a sample.
    """
    notes: list[str] = []
    early_rewrites.rewrite(captured)
    unset = undefined.zero_undefined(captured)
    noise: list[RandomInput] = []
    if noisy and random_inputs.random_nodes(captured):
        random_inputs.check_capture(captured, model, samples[0])
        noise = random_inputs.to_noise(captured, model.path)
    torch_adapter.name_outputs_anew(captured)
    program = torch_adapter.decompose(captured)
    undefined.zero_undefined(program)  # Decompositions allocate too: the unused noise of rrelu.
    random_inputs.refuse_random(program, model.path)
    random_inputs.to_inputs(program, noise)
    steps.refuse_mutation(program)

    updated = borders.updated_inputs(program)
    filled = bool(unset) and undefined.decides(lambda: truth(model, samples[0], updated))
    if filled:
        notes.append("an output depends on memory that the model allocates and does not set; the graph has zeros there")
    generator = torch.Generator().manual_seed(seed)
    drawn = [tuple(entry.sample(generator) for entry in noise) for _ in samples]
    reference = random_inputs.with_noise(captured, model, len(noise)) if noise else model
    results = []
    for sample, own in zip(samples, drawn, strict=True):
        with undefined.Filled(0) if filled else contextlib.nullcontext():
            results.append(truth(reference, (*sample, *own), updated))
    given = [(*map(borders.plain, sample), *own) for sample, own in zip(samples, drawn, strict=True)]
    names, lost, widened = steps.border_names(program, len(given[0]), borders.output_forms(border.dtypes))
    if lost:
        notes.append(f"outputs that are no tensors are left out: {', '.join(lost)}")
    for position, dtype in widened.items():
        given_as = str(dtype).removeprefix("torch.")
        results = [_with_dtype(each, position, dtype) for each in results]
        notes.append(
            f"the target has no type for output {names.outputs[names.kept.index(position)]!r}: it is {given_as}"
        )
    torch_adapter.drop_constant_outputs(program)
    return Lowered(program, names, given, results, noise, notes)


def _with_dtype(values: list[torch.Tensor | None], position: int, dtype: torch.dtype) -> list[torch.Tensor | None]:
    return [each.to(dtype) if index == position and each is not None else each for index, each in enumerate(values)]
