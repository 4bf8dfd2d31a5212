"""Small steps between capture and export: what the model returns, what it may not do, what its borders are called."""

from __future__ import annotations

import torch

from ytk_client.frontend import torch_adapter
from ytk_client.frontend.load_model import LoadedModel
from ytk_client.frontend.naming import BorderNames, output_names
from ytk_client.frontend.tensors import dtype_of
from ytk_core.errors import ToolkitError, UserError


def flat_outputs(model: LoadedModel, sample: tuple[torch.Tensor, ...]) -> list[torch.Tensor | None]:
    """Run the model; tensors in flattened order, complex ones as pairs of real numbers, None for what is no tensor.

    Raises:
        UserError: ``model_bad_output``: none of them is a tensor; ``bad_dtype``; ``model_forward_failed``.
    """
    leaves = torch_adapter.flatten_output(model.call(sample))
    if not any(isinstance(leaf, torch.Tensor) for leaf in leaves):
        kinds = ", ".join(sorted({type(leaf).__name__ for leaf in leaves})) or "nothing"
        msg = f"forward() in {model.path} returned no tensor but {kinds}"
        raise UserError(msg, code="model_bad_output", hint="Return a tensor, or a tuple or dict of tensors.")
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and leaf.layout is not torch.strided:
            msg = f"forward() in {model.path} returned a {leaf.layout} tensor"
            raise UserError(msg, code="model_bad_output", hint="Return dense tensors: x.to_dense().")
    flat = [_real(leaf.detach()) if isinstance(leaf, torch.Tensor) else None for leaf in leaves]
    for leaf in flat:
        if leaf is not None:
            dtype_of(leaf)
    return flat


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def refuse_mutation(program: torch.export.ExportedProgram) -> None:
    """Refuse a model that keeps state.

    Raises:
        UserError: ``model_mutates_state``.
    """
    mutated = torch_adapter.mutated_names(program)
    if mutated:
        msg = f"forward() writes to {', '.join(mutated)}: an engine keeps no state between calls"
        hint = "Pass the state in and return it as an output, or compute with a copy (x = x.clone())."
        raise UserError(msg, code="model_mutates_state", hint=hint)


def border_names(program: torch.export.ExportedProgram, model: LoadedModel) -> tuple[BorderNames, list[str]]:
    """Give the names of the graph's inputs and outputs, and the places of outputs that are no tensors.

    Complex outputs become real ones, which the program's signature then says.
    """
    torch_adapter.make_complex_outputs_real(program)
    values = torch_adapter.user_output_names(program)
    paths = torch_adapter.output_paths(program.call_spec.out_spec)
    kept = [index for index, value in enumerate(values) if value is not None]
    lost = ["/".join(map(str, paths[index])) for index in range(len(values)) if index not in kept]
    inputs = torch_adapter.user_input_names(program)
    if len(inputs) != len(model.flat_args):
        msg = f"the program has inputs {inputs}, the model was given {len(model.flat_args)} tensors"
        raise ToolkitError(msg, code="input_mismatch")
    outputs = output_names([paths[index] for index in kept], inputs)
    return BorderNames(inputs, outputs, kept), lost
