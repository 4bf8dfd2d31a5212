"""From an exported region to loop IR: decompositions, our own lowerings, and the run through Inductor's front half.

Inductor leaves matrix products and convolutions to libraries; a generated kernel may call none, so they are lowered here to
plain loops. What stays a library call after that raises :class:`CannotLowerError`: a result of the strategy, not a bug.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from ytk_gaia.generator import convolution, decompositions, orthogonal, real_pairs, scatter, small_linalg
from ytk_gaia.generator import inductor_adapter as inductor

aten = torch.ops.aten


class CannotLowerError(Exception):
    """A region holds operators that this strategy has no loop form for.

    Args:
        operators: Their names, as a user would look them up.
    """

    def __init__(self, operators: list[str]) -> None:
        super().__init__(", ".join(operators))
        self.operators = operators


@dataclass(frozen=True)
class LoweringPlan:
    """One way to lower a region.

    Attributes:
        name: Word that goes into candidate ids and reports.
        strategy: Which strategy offers it.
        keep: Operators that no decomposition may take apart, because ``lowerings`` has a form for them.
        lowerings: Operator overload to lowering, before Inductor's own.
        decompositions: Operator overload to decomposition, before Inductor's own.
        options: Inductor options.
    """

    name: str
    strategy: str
    keep: tuple[Any, ...] = ()
    lowerings: Mapping[Any, Callable[..., Any]] = field(default_factory=dict)
    decompositions: Mapping[Any, Callable[..., Any]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LoweredRegion:
    """A region as loop IR.

    Attributes:
        graph: Inductor's ``GraphLowering`` after its run.
        input_names: Graph input names in the order of the program's placeholders.
        program: The decomposed program, for its signature.
        guards: Conditions on dynamic extents that the loop IR relies on.
    """

    graph: Any
    input_names: list[str]
    program: torch.export.ExportedProgram
    guards: tuple[Any, ...] = ()


def _matmul(a: Any, b: Any) -> Any:
    a.realize()
    b.realize()
    load_a, load_b = a.make_loader(), b.make_loader()
    rows, inner = a.get_size()
    columns = b.get_size()[1]

    def body(index: Any, reduced: Any) -> Any:
        return inductor.ops.mul(load_a([index[0], reduced[0]]), load_b([reduced[0], index[1]]))

    return inductor.reduction(a.get_device(), a.get_dtype(), [rows, columns], [inner], body)


def _batched_matmul(a: Any, b: Any, *_args: Any, **_kwargs: Any) -> Any:
    a.realize()
    b.realize()
    load_a, load_b = a.make_loader(), b.make_loader()
    batch, rows, inner = a.get_size()
    columns = b.get_size()[2]

    def body(index: Any, reduced: Any) -> Any:
        n, i, j = index
        return inductor.ops.mul(load_a([n, i, reduced[0]]), load_b([n, reduced[0], j]))

    return inductor.reduction(a.get_device(), a.get_dtype(), [batch, rows, columns], [inner], body)


def _addmm(bias: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    product = _matmul(a, b)
    scale = inductor.lowerings[aten.mul.Tensor]
    if alpha != 1:
        product = scale(product, alpha)
    if beta == 0:
        return product
    return inductor.lowerings[aten.add.Tensor](product, bias if beta == 1 else scale(bias, beta))


LOOP_LOWERINGS: dict[Any, Callable[..., Any]] = {
    aten.mm.default: _matmul,
    aten.bmm.default: _batched_matmul,
    aten.addmm.default: _addmm,
    aten.convolution.default: convolution.lower_convolution,
    aten.scatter_reduce.two: scatter.lower_scatter_reduce,
}


def _or_general(ours: Callable[..., Any], general: Callable[..., Any] | None) -> Callable[..., Any]:
    """Try our form first; where it answers NotImplemented, take the one it stands in front of."""
    if general is None:
        return ours

    def either(*args: Any, **kwargs: Any) -> Any:
        found = ours(*args, **kwargs)
        return general(*args, **kwargs) if found is NotImplemented else found

    return either


def _put_before(table: Any, forms: Mapping[Any, Callable[..., Any]]) -> None:
    for op, form in forms.items():
        table[op] = _or_general(form, table.get(op))


def _decomposition_table(plan: LoweringPlan) -> dict[Any, Callable[..., Any]]:
    table = inductor.inductor_decompositions()
    _put_before(table, decompositions.TABLE)
    table.update(small_linalg.TABLE)
    table.update(orthogonal.TABLE)
    table.update(plan.decompositions)
    for op in plan.keep:
        table.pop(op, None)
    return table


def decompose(program: torch.export.ExportedProgram, plan: LoweringPlan) -> torch.export.ExportedProgram:
    """Take the program apart into operators that have a loop form.

    The default table goes first: Inductor's own table leaves composite operators alone when it is the only one.
    """
    first = torch.export.default_decompositions()
    first.update(small_linalg.COMPOSITES)
    _put_before(first, decompositions.BEFORE)
    for op in plan.keep:
        first.pop(op, None)
    return program.run_decompositions(first).run_decompositions(_decomposition_table(plan))


def _contiguous_placeholders(module: torch.fx.GraphModule) -> list[Any]:
    """Give the placeholders fake values in row-major layout: what an engine passes, whatever the example's strides were."""
    values = []
    for node in module.graph.nodes:
        if node.op != "placeholder":
            continue
        value = node.meta["val"]
        if isinstance(value, torch.Tensor) and not value.is_contiguous():
            with inductor.fake_mode_of([value]):
                value = torch.empty(value.shape, dtype=value.dtype, device=value.device)
            node.meta["val"] = value
        values.append(value)
    return values


def _side_effects(program: torch.export.ExportedProgram) -> list[str]:
    """Name what a program does besides giving its outputs: tensors it writes to, operators it calls for their effect."""
    found = {
        f"a write to {spec.target!r}"
        for spec in program.graph_signature.output_specs
        if spec.kind.name not in {"USER_OUTPUT", "TOKEN"}
    }
    for node in program.graph.nodes:
        if node.op == "call_function" and "with_effects" in str(node.target):
            found.add(str(node.args[1]))
    return sorted(found)


def _library_calls(graph: Any) -> list[str]:
    found = set()
    for op in graph.operations:
        if isinstance(op, inductor.ir.ComputedBuffer | inductor.ir.NopKernel):
            continue
        name = getattr(op, "op_overload", None) or getattr(op, "python_kernel_name", None) or type(op).__name__
        found.add(str(name))
    return sorted(found)


def lower(program: torch.export.ExportedProgram, plan: LoweringPlan) -> LoweredRegion:
    """Lower a region to loop IR.

    Args:
        program: The exported region; every tensor on the CPU.
        plan: Which decompositions and lowerings to use.

    Returns:
        The loop IR with nothing left to a library.

    Raises:
        CannotLowerError: An operator has no loop form, or the region writes to one of its inputs.
    """
    decomposed = decompose(program, plan)
    effects = _side_effects(decomposed)
    if effects:
        raise CannotLowerError(effects)
    module = decomposed.graph_module
    if real_pairs.has_complex(module):
        try:
            real_pairs.rewrite(module)
        except real_pairs.NoRealFormError as err:
            raise CannotLowerError([str(err)]) from err
    values = _contiguous_placeholders(module)
    table = {**LOOP_LOWERINGS, **plan.lowerings}
    before = inductor.guard_count(values)
    try:
        graph = inductor.run_graph(module, values, table, plan.options)
    except (NotImplementedError, AssertionError, AttributeError, TypeError) as err:
        # Inductor refuses what it cannot lower with any of these; the operator it was at is the useful part.
        raise CannotLowerError([f"{type(err).__name__}: {err}"[:300]]) from err
    except Exception as err:
        if not inductor.is_lowering_error(err):
            raise
        raise CannotLowerError([str(err).splitlines()[0][:300]]) from err
    left = _library_calls(graph)
    if left:
        raise CannotLowerError(left)
    return LoweredRegion(graph, list(graph.graph_input_names), decomposed, inductor.guards_after(values, before))


def static_int(value: Any) -> int:
    """Give a size as a plain integer.

    Raises:
        CannotLowerError: It is symbolic.
    """
    expression = sympy.sympify(value)
    if not expression.is_Integer:
        raise CannotLowerError([f"dynamic size {expression}"])
    return int(expression)
