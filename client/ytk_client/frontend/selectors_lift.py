"""``@lift``: how the weights of a selected region reach its plugin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ytk_client.frontend import torch_adapter
from ytk_client.frontend.selectors import Kind, Lift
from ytk_client.frontend.selectors_match import Match, operator_path
from ytk_client.frontend.stored_tensors import add_parameter
from ytk_core.errors import UserError

_CONVOLUTIONS = frozenset(
    ["conv1d", "conv2d", "conv3d", "convolution", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"]
)
_NORM = torch.ops.aten._native_batch_norm_legit_no_training.default  # noqa: SLF001 - an operator name
_REST = 3
"""Arguments of every convolution before this one: input, weight, bias."""


def is_conv(node: torch.fx.Node) -> bool:
    """Tell whether a node is a convolution, transposed ones included."""
    words = operator_path(node)
    return words[0] == "aten" and words[1] in _CONVOLUTIONS


def lift_weights(program: torch.export.ExportedProgram, matches: Sequence[Match]) -> list[str]:
    """Fold batch norms into the convolutions of the regions that ask for it; changes program and matches.

    Returns:
        Notes: what was asked for silently and not done.

    Raises:
        UserError: ``lift_refused``: a region does not have the convolutions that its ``@lift`` speaks of.
    """
    folder = _Folder(program)
    notes = []
    for match in matches:
        convs = [node for node in program.graph_module.graph.nodes if node in match.nodes and is_conv(node)]
        how = _resolved(match, len(convs))
        if how not in {Lift.FOLD, Lift.FOLD_SEQ}:
            continue
        foreign = next((conv for conv in convs if not folder.has_stored_weights(conv)), None)
        if foreign is not None:
            problem = f"the weight of {foreign.name} is computed, not stored"
            if match.selector.lift is not Lift.AUTO:
                raise _refused(match, problem, "Leave out @lift.")
            notes.append(f"{match.selector.placeholder} at {match.place}: weights stay as they are: {problem}")
            continue
        for conv in convs:
            folder.fold(conv, match)
    if matches:
        program.graph_module.recompile()
    return notes


def _resolved(match: Match, convs: int) -> Lift:
    selector = match.selector
    how = selector.lift
    if how is Lift.AUTO:
        swapped = selector.kind in {Kind.CLASS, Kind.MODULE} and not selector.around
        how = Lift.FOLD if swapped and convs else Lift.AUTO
    if how in {Lift.FOLD, Lift.FOLD_SEQ} and convs == 0:
        raise _refused(match, "it holds no convolution", "Leave out @lift.")
    if how is Lift.FOLD and convs > 1:
        problem = f"it holds {convs} convolutions, and one folded (weight, bias) pair cannot describe them"
        hint = "@lift=fold_conv_bn_seq gives one pair per convolution, @lift=none keeps the weights as constants."
        raise _refused(match, problem, hint)
    return how


def _refused(match: Match, problem: str, hint: str) -> UserError:
    how = match.selector.lift if match.selector.lift is not Lift.AUTO else Lift.FOLD
    msg = f"{match.selector.placeholder} at {match.place}: {how.value} refuses the region: {problem}"
    return UserError(msg, code="lift_refused", hint=hint)


class _Folder:
    def __init__(self, program: torch.export.ExportedProgram) -> None:
        self._program = program
        self._graph = program.graph_module.graph
        self._lifted = torch_adapter.lifted_tensors(program)
        self._made: dict[tuple[Any, ...], tuple[torch.fx.Node, torch.fx.Node]] = {}
        """A module that is called twice keeps one pair."""

    def has_stored_weights(self, conv: torch.fx.Node) -> bool:
        return all(arg is None or arg.name in self._lifted for arg in _weights(conv))

    def fold(self, conv: torch.fx.Node, match: Match) -> None:
        """Replace a convolution and the batch norm after it by one convolution with a (weight, bias) pair of its own."""
        norm = self._norm_of(conv, match)
        weight, bias = _weights(conv)
        if norm is None and bias is not None:
            return
        key = (weight, bias, *(norm.args[1:] if norm is not None else ()))
        if key not in self._made:
            self._made[key] = self._pair(conv, norm)
        last = conv if norm is None else next(iter(norm.users))
        with self._graph.inserting_before(conv):
            kwargs = {name: value for name, value in conv.kwargs.items() if name not in {"weight", "bias"}}
            new = self._graph.create_node(
                "call_function", conv.target, (conv.args[0], *self._made[key], *conv.args[_REST:]), kwargs
            )
        new.meta = {**conv.meta, "val": last.meta["val"]}
        last.replace_all_uses_with(new)
        torch_adapter.replace_in_signature(self._program, last.name, new.name)
        for node in (last, norm, conv):
            if node is not None and node in match.nodes:
                match.nodes.discard(node)
                self._graph.erase_node(node)
        match.nodes.add(new)

    def _norm_of(self, conv: torch.fx.Node, match: Match) -> torch.fx.Node | None:
        """Give the batch norm that is the only reader of a convolution and gives nothing but its result."""
        users = list(conv.users)
        if len(users) != 1 or users[0].target is not _NORM or users[0] not in match.nodes:
            return None
        norm = users[0]
        results = list(norm.users)
        plain = len(results) == 1 and results[0].args[1] == 0 and results[0] in match.nodes
        stored = all(arg is None or arg.name in self._lifted for arg in norm.args[1:5])
        return norm if plain and stored else None

    def _tensor(self, node: Any) -> torch.Tensor | None:
        return None if node is None else self._lifted[node.name][1].detach().to(torch.float64)

    def _pair(self, conv: torch.fx.Node, norm: torch.fx.Node | None) -> tuple[torch.fx.Node, torch.fx.Node]:
        weight_node, bias_node = _weights(conv)
        weight, bias = self._tensor(weight_node), self._tensor(bias_node)
        assert weight is not None
        transposed, groups = _transposed(conv)
        channels = weight.shape[1] * groups if transposed else weight.shape[0]
        bias = weight.new_zeros(channels) if bias is None else bias
        if norm is not None:
            gamma, beta, mean, variance = (self._tensor(arg) for arg in norm.args[1:5])
            assert mean is not None
            assert variance is not None
            scale = (variance + norm.args[6]).rsqrt() * (1.0 if gamma is None else gamma)
            bias = (bias - mean) * scale + (0.0 if beta is None else beta)
            weight = _scaled(weight, scale, groups, transposed=transposed)
        base = self._lifted[weight_node.name][2].removesuffix(".weight")
        dtype = self._lifted[weight_node.name][1].dtype
        made = [
            add_parameter(self._program, f"{base}.folded_{kind}", tensor.to(dtype).contiguous())
            for kind, tensor in (("weight", weight), ("bias", bias))
        ]
        return made[0], made[1]


def _weights(conv: torch.fx.Node) -> tuple[Any, Any]:
    found = [conv.args[index] if len(conv.args) > index else None for index in (1, 2)]
    return conv.kwargs.get("weight", found[0]), conv.kwargs.get("bias", found[1])


def _transposed(conv: torch.fx.Node) -> tuple[bool, int]:
    schema = conv.target._schema  # noqa: SLF001 - a schema has no public name
    values = {argument.name: argument.default_value for argument in schema.arguments}
    values |= {argument.name: value for argument, value in zip(schema.arguments, conv.args, strict=False)}
    values |= conv.kwargs
    return bool(values.get("transposed", "conv_transpose" in str(schema.name))), int(values["groups"])


def _scaled(weight: torch.Tensor, scale: torch.Tensor, groups: int, *, transposed: bool) -> torch.Tensor:
    rest = [1] * (weight.dim() - 2)
    if not transposed:
        return weight * scale.view(-1, 1, *rest)
    # [in, out / groups, ...]: the output channels of a group belong to its input channels.
    split = weight.view(groups, weight.shape[0] // groups, *weight.shape[1:])
    return (split * scale.view(groups, 1, -1, *rest)).view(weight.shape)
