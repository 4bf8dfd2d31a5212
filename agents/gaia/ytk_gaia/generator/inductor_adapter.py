"""Every private torch symbol that the generator uses, in one place.

Nothing else in Gaia imports a name below ``torch._``. A torch upgrade is done when :func:`check_symbols` is empty and the
region tests pass. Importing this module costs about five seconds: only the generator task does it.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from unittest import mock

import sympy
import torch

from ytk_core.errors import ToolkitError


@dataclass(frozen=True)
class PrivateSymbol:
    """A private name and what we need it for."""

    module: str
    attribute: str
    purpose: str


SYMBOLS: list[PrivateSymbol] = []


def _resolve(symbol: PrivateSymbol) -> Any:
    found: Any = importlib.import_module(symbol.module)
    for part in symbol.attribute.split("."):
        found = getattr(found, part)
    return found


def _symbol(module: str, attribute: str, purpose: str) -> Any:
    symbol = PrivateSymbol(module, attribute, purpose)
    SYMBOLS.append(symbol)
    try:
        return _resolve(symbol)
    except (ImportError, AttributeError) as err:
        msg = f"torch {torch.__version__} has no {module}.{attribute} (needed: {purpose})"
        raise ToolkitError(
            msg, code="torch_private_api", hint="Use the torch version pinned by the gaia-generator extra."
        ) from err


_symbol("torch._inductor.compile_fx", "compile_fx", "importing it registers every lowering")
GraphLowering = _symbol("torch._inductor.graph", "GraphLowering", "FX graph to loop IR")
lowerings = _symbol("torch._inductor.lowering", "lowerings", "table: operator to loop lowering")
_lowering_module = importlib.import_module("torch._inductor.lowering")
_symbol("torch._inductor.lowering", "use_scatter_fallback", "patched: summing scatters become loops, not library calls")
FloorDiv = _symbol("torch.utils._sympy.functions", "FloorDiv", "integer division in index expressions")
CleanDiv = _symbol("torch.utils._sympy.functions", "CleanDiv", "division known to have no remainder, in output shapes")
ModularIndexing = _symbol("torch.utils._sympy.functions", "ModularIndexing", "(x // d) % m in index expressions")
ir = _symbol("torch._inductor", "ir", "loop IR nodes")
for _name in (
    "ComputedBuffer",
    "ConstantBuffer",
    "ExternKernel",
    "MutationLayoutSHOULDREMOVE",
    "NonOwningLayout",
    "NopKernel",
    "Pointwise",
    "Reduction",
    "ReinterpretView",
    "Scatter",
    "ShapeAsConstantBuffer",
    "NoneAsConstantBuffer",
    "TemplateBuffer",
    "BaseView",
    "StorageBox",
    "TensorBox",
):
    _symbol("torch._inductor.ir", _name, "loop IR node")
V = _symbol("torch._inductor.virtualized", "V", "current graph, fake mode and ops handler")
ops = _symbol("torch._inductor.virtualized", "ops", "scalar operations inside a loop body")
DefaultHandler = _symbol("torch._inductor.ops_handler", "DefaultHandler", "base of the printer of loop bodies")
inductor_config = _symbol("torch._inductor", "config", "lowering options")
_decompositions = _symbol("torch._inductor.decomposition", "select_decomp_table", "Inductor's decompositions")
_core_decompositions = _symbol("torch._decomp", "decomposition_table", "decompositions Inductor leaves out (upsample)")
OrderedSet = _symbol("torch.utils._ordered_set", "OrderedSet", "the type get_backend_features returns")
_BackendFeature = _symbol("torch._inductor.codegen.common", "BackendFeature", "what our printer can print")
_CppScheduling = _symbol("torch._inductor.codegen.cpp", "CppScheduling", "asked for backend features on a CPU")
_symbol("torch._inductor.codegen.cpp", "CppScheduling.get_backend_features", "patched: scan and sort are printable")
CppPrinter = _symbol("torch.utils._sympy.printers", "CppPrinter", "sympy to C++")
_FakeTensor = _symbol("torch._subclasses.fake_tensor", "FakeTensor", "shapes without storage")
_FakeTensorMode = _symbol("torch._subclasses.fake_tensor", "FakeTensorMode", "shapes without storage")
tree_leaves = _symbol("torch.utils._pytree", "tree_leaves", "example inputs of an exported program, flat")
tree_map = _symbol("torch.utils._pytree", "tree_map", "results of an operator that gives several tensors")
tree_flatten = _symbol("torch.utils._pytree", "tree_flatten", "tensors among the arguments of a database entry")
tree_unflatten = _symbol("torch.utils._pytree", "tree_unflatten", "the same, back")

PRINTABLE_FEATURES = ("SCAN", "SORT", "TUPLE_REDUCTION", "BUCKETIZE", "MASKED_SCATTER_WITH_INDEX")


def check_symbols() -> list[str]:
    """List the private symbols that this torch lacks, as ``module.attribute``; empty when all are there."""
    missing = []
    for symbol in SYMBOLS:
        try:
            _resolve(symbol)
        except (ImportError, AttributeError):
            missing.append(f"{symbol.module}.{symbol.attribute}")
    missing += [f"BackendFeature.{name}" for name in PRINTABLE_FEATURES if not hasattr(_BackendFeature, name)]
    return missing


def operator_database() -> list[Any]:
    """Give torch's own table of operators with samples (two seconds to import, so not at the top)."""
    found: list[Any] = importlib.import_module("torch.testing._internal.common_methods_invocations").op_db
    return found


def inductor_decompositions() -> dict[Any, Callable[..., Any]]:
    """Give Inductor's decomposition table, plus the core table's upsampling entries that it leaves to libraries."""
    table = dict(_decompositions())
    for op, function in _core_decompositions.items():
        if "upsample" in str(op) and "backward" not in str(op) and op not in table:
            table[op] = function
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default  # noqa: SLF001 -- its only name
    if flash in _core_decompositions:
        table[flash] = _core_decompositions[flash]
    return table


RECOMPUTE_OPTIONS: dict[str, Any] = {
    "realize_reads_threshold": 1000,
    "realize_opcount_threshold": 10000,
    "realize_acc_reads_threshold": None,
    "realize_acc_reads_size_threshold": None,
}
"""Keep pointwise chains in one loop: values are recomputed where they are used, not stored in between."""


@contextlib.contextmanager
def printable_backend(
    extra_lowerings: Mapping[Any, Callable[..., Any]], extra_options: Mapping[str, Any]
) -> Iterator[None]:
    """Make Inductor lower for our printer: everything as loops, nothing left to a library.

    Args:
        extra_lowerings: Operator overload to lowering; replaces Inductor's own for the duration.
        extra_options: Inductor options on top of ours.
    """
    features = OrderedSet([getattr(_BackendFeature, name) for name in PRINTABLE_FEATURES])

    def backend_features(_cls: Any, _device: Any) -> Any:
        return features

    def scatter_needs_library(_op: Any, reduction: str | None, *_args: Any, **_kwargs: Any) -> bool:
        return reduction not in {None, "sum", "add"}

    options = {
        "online_softmax": False,
        # Splits make a two-stage reduction for GPUs' sake and add a buffer that a CPU loop does not need.
        "split_reductions": False,
        # Rows that are longer than they need to be would make a result another buffer, copied at the end.
        "comprehensive_padding": False,
        "fallback_random": True,
        # Without it a sort of more than 512 elements is left to a library.
        "triton.decompose_sort_ops": True,
        "triton.persistent_reductions": True,
        # Two plain sums vectorise; Welford's recurrence does not.
        "cpp.use_two_step_variance_threshold": 1 << 40,
        **extra_options,
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(_CppScheduling, "get_backend_features", classmethod(backend_features)))
        stack.enter_context(inductor_config.patch(options))
        stack.enter_context(mock.patch.object(_lowering_module, "use_scatter_fallback", scatter_needs_library))
        stack.enter_context(mock.patch.dict(lowerings, dict(extra_lowerings)))
        yield


def is_lowering_error(err: Exception) -> bool:
    """Whether Inductor raised this to say that it cannot lower something."""
    return type(err).__module__.startswith("torch._inductor")


def fake_mode_of(values: list[Any]) -> Any:
    """Give the fake mode of the first fake tensor among the values, or a new one."""
    for value in values:
        if isinstance(value, _FakeTensor):
            return value.fake_mode
    return _FakeTensorMode()


def _shape_env(values: list[Any]) -> Any:
    return next((v.fake_mode.shape_env for v in values if isinstance(v, _FakeTensor)), None)


def guard_count(values: list[Any]) -> int:
    """Give the number of conditions on dynamic extents so far."""
    shape_env = _shape_env(values)
    return len(shape_env.guards) if shape_env is not None else 0


def guards_after(values: list[Any], count: int) -> tuple[Any, ...]:
    """Give the conditions on dynamic extents that came after the first ``count``."""
    shape_env = _shape_env(values)
    return tuple(guard.expr for guard in shape_env.guards[count:]) if shape_env is not None else ()


def fixed_extent(graph: Any, expression: Any) -> Any:
    """Give an extent as the lowering knows it by now: an operator may have fixed a symbol to a number."""
    return graph.sizevars.simplify(sympy.sympify(expression))


def simplify_index(expression: Any, ranges: Mapping[Any, Any]) -> Any:
    """Simplify divisions and remainders by the extents of loop variables; needs a current graph (``V``)."""
    if not expression.has(FloorDiv, ModularIndexing):
        return expression
    return V.graph.sizevars.simplify_with_ranges(sympy.expand(expression), dict(ranges))


def run_graph(
    module: torch.fx.GraphModule,
    example_inputs: list[Any],
    extra_lowerings: Mapping[Any, Callable[..., Any]],
    extra_options: Mapping[str, Any],
) -> Any:
    """Lower an FX graph of core operators to loop IR.

    Args:
        module: The graph; its placeholders correspond to ``example_inputs``.
        example_inputs: Fake tensors, contiguous: what an engine hands to a kernel.
        extra_lowerings: See :func:`printable_backend`.
        extra_options: See :func:`printable_backend`.

    Returns:
        The finished ``GraphLowering``.
    """
    fake_mode = fake_mode_of(example_inputs)
    graph = GraphLowering(
        module, example_inputs=example_inputs, shape_env=fake_mode.shape_env, is_inference=True, layout_opt=False
    )
    with V.set_graph_handler(graph), V.set_fake_mode(fake_mode), printable_backend(extra_lowerings, extra_options):
        graph.run(*example_inputs)
    return graph


def index_symbol(name: str) -> Any:
    """Give an integer symbol for a value computed inside a loop body."""
    return sympy.Symbol(name, integer=True)


def loop_symbol(name: str) -> Any:
    """Give the symbol of a loop variable: an integer that is never negative, so that expressions simplify."""
    return sympy.Symbol(name, integer=True, nonnegative=True)


def reduction(
    device: Any,
    dtype: torch.dtype,
    ranges: list[Any],
    reduction_ranges: list[Any],
    body: Callable[[Any, Any], Any],
    kind: str = "sum",
) -> Any:
    """Make a reduction (``sum`` or ``max``) over ``reduction_ranges`` for every point of ``ranges``, as a buffer of its own."""
    box = ir.Reduction.create(
        device=device,
        dst_dtype=dtype,
        src_dtype=dtype,
        inner_fn=body,
        ranges=ranges,
        reduction_ranges=reduction_ranges,
        reduction_type=kind,
    )
    box.realize()
    return box


def scatter(
    target: Any, ranges: list[Any], value: Callable[[Any], Any], place: Callable[[Any], list[Any]], mode: str | None
) -> None:
    """Write ``value`` at ``place`` into a realised buffer for every point of ``ranges``, as an operation of its own.

    ``mode`` reaches the printer's ``store`` as it is; None: plain writes.
    """
    data = ir.Scatter(
        device=target.get_device(),
        dtype=target.get_dtype(),
        inner_fn=value,
        ranges=ranges,
        output_indexer=place,
        scatter_mode=mode,
    )
    buffer = ir.ComputedBuffer(name=None, layout=ir.MutationLayoutSHOULDREMOVE(target), data=data)
    buffer.name = V.graph.register_buffer(buffer)
    V.graph.register_operation(buffer)


def pointwise(
    device: Any, dtype: torch.dtype, ranges: list[Any], body: Callable[[Any], Any], *, realize: bool = True
) -> Any:
    """Make a pointwise loop over ``ranges``: a buffer of its own, or (``realize`` False) part of whoever reads it."""
    box = ir.Pointwise.create(device=device, dtype=dtype, inner_fn=body, ranges=ranges)
    if realize:
        box.realize()
    return box
