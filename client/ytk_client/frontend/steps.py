"""Small steps between capture and export: what the model returns, what it may not do, what its borders are called."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ytk_client.frontend import borders, torch_adapter
from ytk_client.frontend.load_model import LoadedModel
from ytk_client.frontend.naming import BorderNames, output_names
from ytk_client.frontend.tensors import dtype_of
from ytk_core.errors import ToolkitError, UserError


def flat_outputs(
    model: LoadedModel, sample: tuple[torch.Tensor, ...], updated: Sequence[int] = ()
) -> list[torch.Tensor | None]:
    """Run the model; tensors in flattened order and in the form of the graph's border, None for what is no tensor.

    Args:
        model: What to run.
        sample: Its inputs, as the model takes them.
        updated: Positions of inputs whose value after the run is wanted too, behind the outputs.

    Raises:
        UserError: ``model_bad_output``: none of them is a tensor; ``bad_dtype``; ``model_forward_failed``.
    """
    result, after = model.call_keeping(sample)
    leaves = torch_adapter.flatten_output(result)
    if not any(isinstance(leaf, torch.Tensor) for leaf in leaves):
        kinds = ", ".join(sorted({type(leaf).__name__ for leaf in leaves})) or "nothing"
        msg = f"forward() in {model.path} returned no tensor but {kinds}"
        raise UserError(msg, code="model_bad_output", hint="Return a tensor, or a tuple or dict of tensors.")
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and leaf.layout is not torch.strided:
            msg = f"forward() in {model.path} returned a {leaf.layout} tensor"
            raise UserError(msg, code="model_bad_output", hint="Return dense tensors: x.to_dense().")
    leaves += [after[position] for position in updated]
    flat = [borders.plain(leaf.detach()) if isinstance(leaf, torch.Tensor) else None for leaf in leaves]
    for leaf in flat:
        if leaf is not None:
            dtype_of(leaf)
    return flat


def refuse_mutation(program: torch.export.ExportedProgram) -> None:
    """Refuse a model that keeps state in itself; what it writes to its inputs becomes outputs.

    Raises:
        UserError: ``model_mutates_state``.
    """
    mutated = torch_adapter.mutated_buffers(program)
    if mutated:
        msg = f"forward() writes to {', '.join(mutated)}: an engine keeps no state between calls"
        hint = "Pass the state in and return it as an output, or compute with a copy (x = x.clone())."
        raise UserError(msg, code="model_mutates_state", hint=hint)


def border_names(
    program: torch.export.ExportedProgram, inputs_given: int, forms: borders.Forms | None = None
) -> tuple[BorderNames, list[str], dict[int, torch.dtype]]:
    """Give the names of the graph's inputs and outputs, the places of outputs that are no tensors, and widened outputs.

    Inputs and outputs get the form of the border, and inputs that are written to an output, which the program's
    signature then says.

    Args:
        program: Decomposed.
        inputs_given: How many tensors the samples have.
        forms: Types that the target lacks, with what they go out as (:func:`borders.output_forms`); the widened outputs
            are those with such a type, by position among what the model returns.
    """
    updates = borders.give_updates_out(program)
    borders.make_inputs_plain(program)
    widened = borders.make_outputs_plain(program, forms)
    values = torch_adapter.user_output_names(program)
    paths = borders.with_updates(torch_adapter.output_paths(program.call_spec.out_spec), updates)
    kept = [index for index, value in enumerate(values) if value is not None]
    lost = ["/".join(map(str, paths[index])) for index in range(len(values)) if index not in kept]
    inputs = torch_adapter.user_input_names(program)
    if len(inputs) != inputs_given:
        msg = f"the program has inputs {inputs}, the model was given {inputs_given} tensors"
        raise ToolkitError(msg, code="input_mismatch")
    outputs = output_names([paths[index] for index in kept], inputs)
    return BorderNames(inputs, outputs, kept), lost, widened
