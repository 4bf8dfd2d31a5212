"""The types and the values that cross a graph's border: what engines have no word for is brought into a form they have.

Complex numbers become pairs of real ones (one more axis of extent 2 at the end), integers and floats of rare widths the
next common type that holds all their values. The conversion is part of the graph, so the model computes in its own types.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch.export import graph_signature as kinds

from ytk_client.frontend import torch_adapter
from ytk_client.frontend.growth import DTYPES
from ytk_client.frontend.quantized_float import half_of
from ytk_core.dtypes import DType

UPDATED = "{}_updated"
"""Name of the output that gives the new value of an input that forward writes to."""

COMMON_FORM: dict[torch.dtype, torch.dtype] = {
    torch.int16: torch.int32,
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
    torch.uint64: torch.int64,
    torch.float8_e4m3fn: torch.float32,
    torch.float8_e5m2: torch.float32,
    torch.float8_e4m3fnuz: torch.float32,
    torch.float8_e5m2fnuz: torch.float32,
}
"""By dtype: the one in which it crosses the border. uint64 keeps its bits: what is above 2^63 - 1 is negative there."""

_WIDER_OUTPUT = {torch.bfloat16: torch.float32, torch.int8: torch.int32}
"""By dtype that some targets lack: the one in which a result goes out there. What makes it is carved with the conversion.

Not uint8: TensorRT gives that out, though it computes nothing with it.
"""

_aten = torch.ops.aten
Forms = Mapping[torch.dtype, torch.dtype]


def output_forms(dtypes: Collection[DType]) -> Forms:
    """Give the forms of outputs for a target whose plugins take and give the named types."""
    return {dtype: wider for dtype, wider in _WIDER_OUTPUT.items() if DTYPES[dtype] not in dtypes}


def plain(tensor: torch.Tensor, forms: Forms = COMMON_FORM) -> torch.Tensor:
    """Give a tensor in the form in which it crosses the border."""
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj())
    common = forms.get(tensor.dtype)
    return tensor if common is None else tensor.to(common)


def make_inputs_plain(program: torch.export.ExportedProgram) -> None:
    """Let inputs of a decomposed program enter in their :func:`plain` form."""
    graph = program.graph_module.graph
    names = set(torch_adapter.user_input_names(program))
    for node in [each for each in graph.nodes if each.op == "placeholder" and each.name in names]:
        value = node.meta["val"]
        is_complex = isinstance(value, torch.Tensor) and value.is_complex()
        if not isinstance(value, torch.Tensor) or not (is_complex or value.dtype in COMMON_FORM):
            continue
        users = list(node.users)
        first = next(each for each in graph.nodes if each.op != "placeholder")
        with graph.inserting_before(first), torch_adapter.fake_mode_of(program):
            node.meta["val"] = plain(value)
            back = (
                graph.call_function(_aten.view_as_complex.default, (node,))
                if is_complex
                else graph.call_function(_aten._to_copy.default, (node,), {"dtype": value.dtype})  # noqa: SLF001 - an operator name
            )
            back.meta["val"] = value
        for user in users:
            user.replace_input_with(node, back)
    torch_adapter.name_outputs_anew(program)
    program.graph_module.recompile()


def make_outputs_plain(program: torch.export.ExportedProgram, forms: Forms | None = None) -> dict[int, torch.dtype]:
    """Give outputs of a decomposed program out in their :func:`plain` form, or in one of ``forms``.

    Results of quantize nodes stay what they are: a target that lacks int8 otherwise takes it from those.

    Returns:
        By position among what the model returns: the type of an output that has one of ``forms``.
    """
    wider = forms or {}
    forms = {**COMMON_FORM, **wider}
    widened: dict[int, torch.dtype] = {}
    graph = program.graph_module.graph
    output = graph.output_node()
    specs = program.graph_signature.output_specs
    results = list(output.args[0])
    position = -1
    for index, spec in enumerate(specs):
        node = results[index]
        value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
        position += spec.kind is kinds.OutputKind.USER_OUTPUT
        if spec.kind is not kinds.OutputKind.USER_OUTPUT or not isinstance(value, torch.Tensor):
            continue
        with graph.inserting_before(output):
            if value.is_complex():
                results[index] = _real(graph, node, value)
            elif value.dtype in forms and half_of(node) != "quantize":
                common = {"dtype": forms[value.dtype]}
                results[index] = graph.call_function(_aten._to_copy.default, (node,), common)  # noqa: SLF001 - an operator name
                results[index].meta = {**node.meta, "val": value.to(forms[value.dtype])}
                if value.dtype in wider:
                    widened[position] = forms[value.dtype]
        if results[index] is not node:
            specs[index] = dataclasses.replace(spec, arg=kinds.TensorArgument(results[index].name))
    output.args = (tuple(results),)
    program.graph_module.recompile()
    return widened


def _real(graph: torch.fx.Graph, node: torch.fx.Node, value: torch.Tensor) -> torch.fx.Node:
    # A conjugate is a flag on the tensor, and pairs of numbers have none.
    whole = graph.call_function(_aten.resolve_conj.default, (node,)) if value.is_conj() else node
    real = graph.call_function(_aten.view_as_real.default, (whole,))
    for new, known in ((whole, value.resolve_conj()), (real, torch.view_as_real(value.resolve_conj()))):
        new.meta = {**node.meta, "val": known}
    return real


def updated_inputs(program: torch.export.ExportedProgram) -> list[int]:
    """Give the positions of the inputs that forward writes to, in the order of the program's outputs."""
    names = torch_adapter.user_input_names(program)
    return [names.index(name) for name in program.graph_signature.user_inputs_to_mutate.values()]


def give_updates_out(program: torch.export.ExportedProgram) -> list[str]:
    """Make what forward leaves in its inputs outputs of the program, the last ones: a graph cannot write to an input.

    Returns:
        Their names.
    """
    output = program.graph_module.graph.output_node()
    specs = program.graph_signature.output_specs
    pairs = list(zip(output.args[0], specs, strict=True))
    moved = [pair for pair in pairs if pair[1].kind is kinds.OutputKind.USER_INPUT_MUTATION]
    if not moved:
        return []
    kept: list[tuple[Any, Any]] = [pair for pair in pairs if pair not in moved]
    new = [(value, kinds.OutputSpec(kinds.OutputKind.USER_OUTPUT, spec.arg, None)) for value, spec in moved]
    output.args = (tuple(value for value, _ in [*kept, *new]),)
    specs[:] = [spec for _, spec in [*kept, *new]]
    program.graph_module.recompile()
    return [UPDATED.format(spec.target) for _, spec in moved]


def with_updates(paths: Sequence[tuple[Any, ...]], updates: Sequence[str]) -> list[tuple[Any, ...]]:
    """Give the places of all outputs: of what forward returns, then of what it writes to inputs."""
    return [*paths, *((name,) for name in updates)]
