"""Tensors that a program stores: add one, and tell which nodes stand for one."""

from __future__ import annotations

import torch

from ytk_client.frontend import torch_adapter


def add_parameter(program: torch.export.ExportedProgram, target: str, tensor: torch.Tensor) -> torch.fx.Node:
    """Add a parameter to a program and give the placeholder that stands for it.

    Args:
        program: Changed in place.
        target: Its qualified name; made free by ``_`` at its end.
        tensor: Its value.
    """
    kinds = torch.export.graph_signature
    graph = program.graph_module.graph
    while target in program.state_dict:
        target += "_"
    with graph.inserting_before(next(iter(graph.nodes))):
        node = graph.placeholder("p_" + target.replace(".", "_"))
    fake = next(each.meta["val"] for each in graph.nodes if isinstance(each.meta.get("val"), torch.Tensor))
    node.meta["val"] = fake.fake_mode.from_tensor(tensor, static_shapes=True)
    program.state_dict[target] = torch.nn.Parameter(tensor, requires_grad=False)
    spec = kinds.InputSpec(kinds.InputKind.PARAMETER, kinds.TensorArgument(node.name), target)
    program.graph_signature.input_specs.insert(0, spec)
    return node


def stored(program: torch.export.ExportedProgram) -> dict[str, torch.Tensor]:
    """Give, by placeholder name, the value of every parameter, buffer and constant."""
    return {name: tensor.detach() for name, (_, tensor, _) in torch_adapter.lifted_tensors(program).items()}
