"""``--random-inputs``: what a model draws at random becomes an input of its graph.

The captured program has torch's random operators as the model called them. Each is written as a function of noise
(:mod:`ytk_client.frontend.draws`), and the noise is a buffer of the program until it is decomposed, an input after that:
so it keeps its place through torch's own passes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import onnx
import torch
from torch.export import graph_signature as kinds
from torch.fx.experimental.proxy_tensor import make_fx

from ytk_client.frontend import draws, torch_adapter
from ytk_client.frontend.draws import NoiseKind
from ytk_client.frontend.fx_nodes import source_line
from ytk_client.frontend.growth import is_random
from ytk_client.frontend.inlining import put_in_place
from ytk_client.frontend.load_model import LoadedModel
from ytk_core.errors import UserError

_BUFFER = "ytk_noise_{}"
_WAYS_OUT = (
    "Where it should not: prepare runs the model in eval mode, so a function has to be told (F.dropout(x, p, "
    "self.training)), and a module that is always in training mode needs .eval(). Where it should: --random-inputs makes "
    "the noise an input of the graph."
)
_SAME = 1e-4
"""Two runs of the same operators differ by less, relative to the largest value; other random numbers by much more."""


@dataclass(frozen=True)
class RandomInput:
    """One noise input of the graph. ``op``, ``module_path`` and ``source_line`` say which draw it is for."""

    name: str
    distribution: NoiseKind
    dtype: torch.dtype
    shape: tuple[int, ...]
    op: str
    module_path: str
    source_line: str

    def sample(self, generator: torch.Generator) -> torch.Tensor:
        """Give noise of this kind."""
        draw = torch.rand if self.distribution is NoiseKind.UNIFORM else torch.randn
        return draw(self.shape, generator=generator, dtype=self.dtype)

    def described(self) -> dict[str, Any]:
        """Give plain data for files."""
        return {
            "name": self.name,
            "distribution": str(self.distribution),
            "dtype": str(self.dtype).removeprefix("torch."),
            "shape": list(self.shape),
            "op": self.op,
            "module_path": self.module_path,
            "source_line": self.source_line,
        }


def random_nodes(program: torch.export.ExportedProgram) -> list[torch.fx.Node]:
    """List the nodes that draw random numbers, those in the branches of higher-order operators included."""
    inner = [node for graph in torch_adapter.subgraph_owners(program) for node in graph.nodes]
    return [node for node in [*program.graph_module.graph.nodes, *inner] if is_random(node)]


def refuse_random(program: torch.export.ExportedProgram, path: Path) -> None:
    """Refuse a program that draws random numbers, whether two runs of it agree or not.

    Raises:
        UserError: ``random_draw``: with operator, module and line of the first, and the ways out.
    """
    found = random_nodes(program)
    if found:
        raise _refused(
            found[0], path, "the model draws random numbers, so no two runs agree", _WAYS_OUT, len(found) - 1
        )


def _refused(node: torch.fx.Node, path: Path, problem: str, hint: str, more: int = 0) -> UserError:
    others = f" ({more} more after it)" if more else ""
    return UserError(f"{problem}: {_op_name(node)}{others} {_place(node, path)}", code="random_draw", hint=hint)


def _op_name(node: torch.fx.Node) -> str:
    return str(torch_adapter.original_operator(node)).removesuffix(".default")


def _place(node: torch.fx.Node, path: Path) -> str:
    scopes = torch_adapter.module_scopes(node)
    line = source_line(str(node.meta.get("stack_trace") or ""), path)
    return f"in module {(scopes[-1][0] if scopes else '') or '(top)'!r}" + (f" at {line}" if line else "")


def to_noise(program: torch.export.ExportedProgram, path: Path) -> list[RandomInput]:
    """Write every random operator of a captured program as a function of noise; the noise is a buffer so far.

    Args:
        program: As captured, changed in place.
        path: The user's file, to name its lines.

    Raises:
        UserError: ``random_draw``: an operator, or a form of one, that has no such function; a draw in a branch of
            torch.cond; a shape that ``--dynamic`` lets differ.
    """
    found: list[RandomInput] = []
    graph = program.graph_module.graph
    for node in random_nodes(program):
        if node.graph is not graph:
            raise _refused(node, path, "--random-inputs: a draw that may not happen, in a branch", "Draw before it.")
        if not node.users and not draws.works_in_place(node.target):
            graph.erase_node(node)
            continue
        found += _replace(program, node, len(found), path)
    graph.lint()
    program.graph_module.recompile()
    return found


def _replace(program: torch.export.ExportedProgram, node: torch.fx.Node, serial: int, path: Path) -> list[RandomInput]:
    rule = draws.rule_for(node.target)
    given = draws.bound_arguments(node.target, node.args, dict(node.kwargs))
    if rule is None:
        raise _refused(node, path, "--random-inputs: no known function of noise", "Write it with others that have one.")
    asked: list[RandomInput] = []
    noise: list[torch.Tensor] = []

    def ask(kind: NoiseKind, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        if not all(isinstance(extent, int) for extent in shape):
            raise _refused(
                node, path, "--random-inputs: the shape of a draw depends on --dynamic", "Leave its axes static."
            )
        scopes = torch_adapter.module_scopes(node)
        entry = RandomInput(
            name=f"noise_{serial + len(asked)}",
            distribution=kind,
            dtype=dtype,
            shape=tuple(shape),
            op=_op_name(node),
            module_path=scopes[-1][0] if scopes else "",
            source_line=source_line(str(node.meta.get("stack_trace") or ""), path) or "",
        )
        asked.append(entry)
        noise.append(torch.empty(entry.shape, dtype=dtype))
        return noise[-1]

    tensors = node.all_input_nodes
    value = node.meta["val"]
    out = value[0] if isinstance(value, (tuple, list)) else value

    def compute(*inputs: torch.Tensor) -> Any:
        known = dict(zip(tensors, inputs[len(noise) :], strict=True))
        left = iter(inputs)
        return rule(lambda *_: next(left), torch.fx.node.map_arg(given, known.__getitem__), out)

    values = [arg.meta["val"] for arg in tensors]
    try:
        with torch_adapter.fake_mode_of(program):
            known = dict(zip(tensors, values, strict=True))
            rule(ask, torch.fx.node.map_arg(given, known.__getitem__), out)  # once to learn which noise it takes
            body = make_fx(compute)(*noise, *values)
    except draws.NoRuleError as err:
        hint = "Give it explicit bounds."
        raise _refused(node, path, f"--random-inputs: no known function of noise for {err}", hint) from err
    pairs = zip(asked, noise, strict=True)
    holders = [_add_buffer(program, serial + index, *each) for index, each in enumerate(pairs)]
    put_in_place(node, body, [*holders, *tensors])
    return asked


def _add_buffer(
    program: torch.export.ExportedProgram, index: int, entry: RandomInput, fake: torch.Tensor
) -> torch.fx.Node:
    """Add a placeholder for noise, in front of the model's own inputs, where lifted tensors stand."""
    graph, signature = program.graph_module.graph, program.graph_signature
    name = _BUFFER.format(index)
    position = sum(spec.kind is not kinds.InputKind.USER_INPUT for spec in signature.input_specs)
    holders = [node for node in graph.nodes if node.op == "placeholder"]
    before = holders[position] if position < len(holders) else next(n for n in graph.nodes if n.op != "placeholder")
    with graph.inserting_before(before):
        node = graph.placeholder(f"b_{name}")
    node.meta["val"] = fake
    spec = kinds.InputSpec(kinds.InputKind.BUFFER, kinds.TensorArgument(node.name), name, persistent=True)
    signature.input_specs.insert(position, spec)
    program.state_dict[name] = torch.zeros(entry.shape, dtype=entry.dtype)
    return node


def to_inputs(program: torch.export.ExportedProgram, found: Sequence[RandomInput]) -> None:
    """Make the noise of a decomposed program its last inputs, in order."""
    graph, signature = program.graph_module.graph, program.graph_signature
    nodes = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    specs = {spec.target: spec for spec in signature.input_specs if spec.target}
    for index, entry in enumerate(found):
        spec = specs[_BUFFER.format(index)]
        node = nodes[spec.arg.name]
        last = [each for each in graph.nodes if each.op == "placeholder"][-1]
        if node is not last:
            last.append(node)
        node.name = node.target = entry.name
        signature.input_specs.remove(spec)
        argument = kinds.TensorArgument(node.name)
        signature.input_specs.append(kinds.InputSpec(kinds.InputKind.USER_INPUT, argument, None))
        program.state_dict.pop(spec.target)
    torch_adapter.name_outputs_anew(program)
    graph.lint()
    program.graph_module.recompile()


METADATA_KEY = "ytk.random_inputs"


def write_description(onnx_path: Path, described: Sequence[dict[str, Any]]) -> None:
    """Note in a graph's metadata which inputs are noise, and of which distribution: a graph itself has no word for it."""
    model = onnx.load(str(onnx_path), load_external_data=False)
    model.metadata_props.add(key=METADATA_KEY, value=msgspec.json.encode(list(described)).decode())
    onnx_path.write_bytes(model.SerializeToString())


class _Noisy(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A captured program with its noise as keyword arguments."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        super().__init__()
        self._program = program.module()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        own = {name: kwargs.pop(name) for name in list(kwargs) if name.startswith(_BUFFER.format(""))}
        for name, tensor in own.items():
            self._program.get_buffer(name).copy_(tensor)
        return self._program(*args, **kwargs)


def with_noise(program: torch.export.ExportedProgram, model: LoadedModel, count: int) -> LoadedModel:
    """Give torch's own answer for given noise: a model that takes the noise behind its inputs.

    Args:
        program: As captured, from :func:`to_noise`.
        model: What it was captured from.
        count: Of noise inputs.
    """
    own = {_BUFFER.format(index): torch.zeros(()) for index in range(count)}
    return LoadedModel(model.path, _Noisy(program), model.args, {**model.kwargs, **own})


def check_capture(program: torch.export.ExportedProgram, model: LoadedModel, sample: Sequence[torch.Tensor]) -> None:
    """Compare the captured program, still with torch's own draws, with the model under the same seed.

    Raises:
        UserError: ``random_draw``: they differ: something is random that torch's generator does not know of.
    """
    from ytk_client.frontend.steps import flat_outputs

    captured = LoadedModel(model.path, program.module(), model.args, model.kwargs)
    results = []
    for each in (model, captured):
        with torch.random.fork_rng(devices=[]), _no_seeding(each is model):
            results.append(flat_outputs(each, tuple(sample)))
    for got, want in zip(*results, strict=True):
        if got is not None and want is not None and not _agree(got, want):
            msg = "--random-inputs: with torch's generator seeded alike, the captured program computes something else than the model"
            hint = "Draw with torch's operators only: numbers of random, numpy or a torch.Generator are constants in a graph."
            raise UserError(msg, code="random_draw", hint=hint)


def _agree(got: torch.Tensor, want: torch.Tensor) -> bool:
    if got.shape != want.shape or got.dtype != want.dtype:
        return False
    if not got.is_floating_point():
        return bool(torch.equal(got, want))
    scale = float(want[want.isfinite()].abs().max()) if want.isfinite().any() else 1.0
    return bool(torch.allclose(got, want, rtol=_SAME, atol=_SAME * scale, equal_nan=True))


@contextlib.contextmanager
def _no_seeding(active: bool) -> Iterator[None]:
    """Seed torch's generator, and leave what the model itself seeds without effect: a graph has no seed."""
    torch.manual_seed(0)
    if not active:
        yield
        return
    with contextlib.ExitStack() as stack:
        for owner in (torch, torch.random):
            for name, result in (("manual_seed", torch.default_generator), ("set_rng_state", None)):
                stack.enter_context(mock.patch.object(owner, name, return_value=result))
        yield
