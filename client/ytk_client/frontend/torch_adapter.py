"""The only module that touches private API of torch and onnxscript.

Written against torch 2.13.0 and onnxscript 0.7.2, which the ``torch`` extra pins. The conformance test
(``tests/unit/frontend/test_torch_adapter.py``) states what is relied on, so a bump shows here first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import logging
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from unittest import mock

import onnx_ir as ir
import torch
from torch._export import utils
from torch.export import decomp_utils, exported_program
from torch.onnx._internal._lazy_import import onnxscript_apis
from torch.onnx._internal.exporter import _core, _dispatching, _registration

from ytk_client.frontend import translations
from ytk_core.errors import UserError

EXPORTER_OPSET = 18
"""What torchlib writes, whatever opset is asked for."""

REGION_NAMESPACE = "ytk_region"
"""torch namespace of the operators that carved regions become."""

_ERROR_CHECKS = frozenset({torch.ops.aten._linalg_check_errors.default})  # noqa: SLF001 - an operator name
_NOISY_LOGGERS = (
    "torch.onnx",
    "torch.export",
    "torch.fx",
    "torch.fx.experimental.symbolic_shapes",
    "onnxscript",
    "onnx_ir",
)


@dataclass(frozen=True)
class Placeholder:
    """What a carved op becomes in ONNX: a node of ``domain`` with these attributes (a list is of one type)."""

    domain: str
    op_type: str
    attributes: Mapping[str, str | list[int] | list[float]]
    output_count: int


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the exporter's own log lines and warnings: what matters reaches the user as our errors."""
    loggers = [logging.getLogger(name) for name in _NOISY_LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def torchlib_registry() -> Any:
    """Give the exporter's registry of aten translations, built once per process (0.5 CPU s each time otherwise).

    Once more where a model has brought torch's quantized operators meanwhile: the registry has the operators that torch
    knows when it is built.
    """
    return _registry(hasattr(torch.ops.quantized_decomposed, "quantize_per_tensor"))


@functools.cache
def _registry(_has_quantized: bool) -> Any:
    with quiet():
        registry = _registration.ONNXRegistry.from_torchlib()
    for target in translations.DISTRUSTED:
        del registry.functions[target.name()]
    for target, function in translations.TRANSLATIONS.items():
        _register(registry, target, function)
    for target, function in translations.COMPLEX_TRANSLATIONS.items():
        _register(registry, target, function, for_complex=True)
    return registry


def _register(registry: Any, target: Any, function: Callable[..., Any], *, for_complex: bool = False) -> None:
    # register_op() would try to infer an ONNX signature from the annotations, and log that it cannot.
    meta = _registration.OnnxDecompMeta(
        function, target, None, is_custom=True, is_complex=for_complex, skip_signature_inference=True
    )
    registry._register(target, meta)  # noqa: SLF001 - no public form


def decompose(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Bring a captured program into the form that the exporter translates: its decompositions and type promotions.

    What is left is exactly what will be dispatched; ops without a translation and without a decomposition stay.

    Raises:
        UserError: ``decomposition_failed``: torch itself cannot.
    """
    try:
        with quiet(), _scanned_once(), _autocast_by_node():
            program = _core._prepare_exported_program_for_export(program, registry=torchlib_registry())  # noqa: SLF001 - no public form
    except Exception as err:  # decompositions of several hundred operators raise anything
        first = str(err).strip().partition("\n")[0]
        msg = f"torch could not decompose the captured program: {type(err).__name__}: {first}"
        hint = (
            "Write the operator that it names with others; a step that changes a tensor in place is the usual reason."
        )
        raise UserError(msg, code="decomposition_failed", hint=hint) from err
    name_outputs_anew(program)
    _drop_error_checks(program)
    program.graph_module.graph.eliminate_dead_code()
    program.graph_module.recompile()
    return program


def name_outputs_anew(program: torch.export.ExportedProgram) -> None:
    """Let the signature name what the graph returns, after nodes were replaced.

    Also after torch's own passes: type promotion puts a conversion behind an operator without telling the signature, and
    the exporter goes by that: a float16 output would be float32.
    """
    signature = program.graph_signature
    for index, value in enumerate(program.graph_module.graph.output_node().args[0]):
        spec = signature.output_specs[index]
        if isinstance(value, torch.fx.Node) and getattr(spec.arg, "name", value.name) != value.name:
            signature.output_specs[index] = dataclasses.replace(
                spec, arg=dataclasses.replace(spec.arg, name=value.name)
            )


@contextlib.contextmanager
def _scanned_once() -> Iterator[None]:
    """Let torch collect its composite operators once: it asks the dispatcher again for each namespace, several times over.

    Nothing registers an operator meanwhile. It also overrides ten thousand kernels for each decomposition, one by one.
    Together that is half of the time that a small model takes.
    """
    utils._materialize_cpp_cia_ops()  # noqa: SLF001 - no public form
    with mock.patch.object(utils, "_materialize_cpp_cia_ops", return_value=None):
        found = frozenset(utils._collect_all_valid_cia_ops())  # noqa: SLF001 - as above
        with (
            mock.patch.object(exported_program, "_collect_all_valid_cia_ops", return_value=found),
            mock.patch.object(decomp_utils, "_collect_all_valid_cia_ops", return_value=found),
            mock.patch.object(torch._ops.OperatorBase, "py_impl", _register_kernel),  # noqa: SLF001 - no public form
        ):
            yield


@contextlib.contextmanager
def _autocast_by_node() -> Iterator[None]:
    """Let torch run what stands in an enabled autocast node by node.

    It calls the graph of the context as one function, and every operator that comes out has the module and line of the
    context. An interpreter says whose turn it is, and its operators' own place is taken over.
    """
    kind = type(torch.ops.higher_order.wrap_with_autocast)
    whole = kind.__call__

    def call(op: Any, device: str, dtype: Any, enabled: bool, cached: bool | None, body: Any, *args: Any) -> Any:
        if isinstance(body, torch.fx.GraphModule):
            return whole(op, device, dtype, enabled, cached, torch.fx.Interpreter(body).run, *args)
        return whole(op, device, dtype, enabled, cached, body, *args)

    with mock.patch.object(kind, "__call__", call):
        yield


_py_impl = torch._ops.OperatorBase.py_impl  # noqa: SLF001 - as above


def _register_kernel(target: Any, key: Any) -> Callable[[Any], Any]:
    """Do what ``OperatorBase.py_impl`` does for a dispatch key, without building its type annotations each time."""
    if not isinstance(key, torch._C.DispatchKey) or key == torch._C.DispatchKey.Python or key in target.py_kernels:  # noqa: SLF001 - as above
        registrar: Callable[[Any], Any] = _py_impl(target, key)
        return registrar

    def register(function: Any) -> Any:
        target.py_kernels[key] = function
        target._dispatch_cache.clear()  # noqa: SLF001 - as above
        return function

    return register


def _drop_error_checks(program: torch.export.ExportedProgram) -> None:
    """Remove the checks that linalg functions leave behind: effects with tokens, which ONNX has no word for.

    A model that would fail such a check at run time gives NaN or infinity in an engine instead of an exception.
    """
    graph, signature = program.graph_module.graph, program.graph_signature
    for node in list(graph.nodes):
        if node.target is torch.ops.higher_order.with_effects and node.args[1] in _ERROR_CHECKS:
            token = node.args[0]
            for result in list(node.users):
                result.replace_all_uses_with(token)
                signature.replace_all_uses(result.name, token.name)
                graph.erase_node(result)
            graph.erase_node(node)
    kinds = torch.export.graph_signature
    output = graph.output_node()
    kept = [
        (value, spec)
        for value, spec in zip(output.args[0], signature.output_specs, strict=True)
        if spec.kind is not kinds.OutputKind.TOKEN or value.op != "placeholder"
    ]
    if len(kept) == len(signature.output_specs):
        return
    output.args = (tuple(value for value, _ in kept),)
    signature.output_specs[:] = [spec for _, spec in kept]
    tokens = {spec.arg.name for spec in signature.input_specs if spec.kind is kinds.InputKind.TOKEN}
    unused = {node.name: node for node in graph.nodes if node.name in tokens and not node.users}
    signature.input_specs[:] = [spec for spec in signature.input_specs if spec.arg.name not in unused]
    for node in unused.values():
        graph.erase_node(node)


def refusal_text(node: torch.fx.Node) -> str | None:
    """Give the exporter's reason for refusing a call_function node, or None where it has a translation."""
    if isinstance(node.target, torch._ops.OpOverload) and node.target.namespace in {"onnx", REGION_NAMESPACE}:  # noqa: SLF001 - the class has no public name
        return None  # torch.onnx.ops.* are ONNX nodes already, and a region becomes its placeholder
    function, reason = _dispatching.dispatch(node, torchlib_registry())
    if function is not None or is_getitem(node):
        return None
    return f"DispatchError: no ONNX function for {node.target}: {reason}"


def is_getitem(node: torch.fx.Node) -> bool:
    """Tell whether a node takes one element of a tuple; the translator handles these itself, before any dispatch."""
    return node.target is operator.getitem


def translate(program: torch.export.ExportedProgram, placeholders: Mapping[Any, Placeholder]) -> ir.Model:
    """Translate a decomposed program to an ONNX graph (opset 18), not optimised yet.

    Args:
        program: From :func:`decompose`, possibly with carved ops in it.
        placeholders: By op overload of each carved op.

    Raises:
        torch.onnx.OnnxExporterError: or any other exception of a translation function.
    """
    registry = torchlib_registry()
    if placeholders:
        ours = _registration.ONNXRegistry()
        ours._opset_version = registry.opset_version  # noqa: SLF001 - the copy must target the same opset
        ours.functions = dict(registry.functions)
        for target, placeholder in placeholders.items():
            _register(ours, target, _emitter(placeholder))
        registry = ours
    with quiet():
        return _core._exported_program_to_onnx_program(program, registry=registry).model  # noqa: SLF001 - no public form


def _emitter(placeholder: Placeholder) -> Callable[..., Any]:
    def emit(*inputs: ir.Value) -> Any:
        tracer = _core.current_tracer
        if tracer is None:
            msg = "emitted outside of a translation"
            raise RuntimeError(msg)
        node = ir.Node(
            placeholder.domain,
            placeholder.op_type,
            list(inputs),
            [_attribute(name, value) for name, value in placeholder.attributes.items()],
            num_outputs=placeholder.output_count,
            version=1,
        )
        tracer.nodes.append(node)
        return node.outputs[0] if placeholder.output_count == 1 else list(node.outputs)

    return emit


def _attribute(name: str, value: str | list[int] | list[float]) -> ir.Attr:
    if isinstance(value, str):
        return ir.AttrString(name, value)
    if all(isinstance(each, int) for each in value):
        return ir.AttrInt64s(name, [int(each) for each in value])
    return ir.AttrFloat32s(name, value)


def failing_fx_node(error: BaseException) -> torch.fx.Node | None:
    """Give the FX node that a translation failed at, or None where the failure is not about one node.

    The exceptions carry no node, so it is read from the translator's frame.
    """
    link: BaseException | None = error
    while link is not None:
        traceback = link.__traceback__
        while traceback is not None:
            frame = traceback.tb_frame
            if frame.f_code.co_name == "_handle_call_function_node_with_lowering":
                return frame.f_locals["node"]
            traceback = traceback.tb_next
        link = link.__cause__ or link.__context__
    return None


def optimize(model: ir.Model) -> ir.Model:
    """Fold constants, inline functions and infer shapes, as torch.onnx.export does."""
    with quiet():
        optimised: ir.Model = onnxscript_apis.optimize(model)
    return optimised


def fx_node(node: ir.Node) -> torch.fx.Node | None:
    """Give the FX node that an ONNX node was translated from, or None where a rewrite lost it."""
    return node.meta.get("node")


def fx_node_name(node: ir.Node) -> str | None:
    """Give the name of the FX node that an ONNX node was translated from; it survives in the file."""
    origin = fx_node(node)
    if origin is not None:
        return str(origin.name)
    text = node.metadata_props.get("pkg.torch.onnx.fx_node", "")
    return text[1:].split(" ", 1)[0] if text.startswith("%") else None


def value_name(node: torch.fx.Node) -> str:
    """Give the name that the exporter gives to a node's value; an element of a tuple is named after the tuple."""
    return f"{node.all_input_nodes[0].name}__{node.args[1]}" if is_getitem(node) else str(node.name)


def subgraph_owners(program: torch.export.ExportedProgram) -> dict[torch.fx.Graph, torch.fx.Node]:
    """Give, for each graph inside a higher-order operator (the branches of torch.cond), that operator's top-level node."""
    owners: dict[torch.fx.Graph, torch.fx.Node] = {}
    for node in program.graph_module.graph.nodes:
        for arg in node.all_input_nodes:
            inner = getattr(program.graph_module, arg.target, None) if arg.op == "get_attr" else None
            if isinstance(inner, torch.fx.GraphModule):
                owners |= {each.graph: node for each in inner.modules() if isinstance(each, torch.fx.GraphModule)}
    return owners


def fake_mode_of(program: torch.export.ExportedProgram) -> Any:
    """Give the mode under which operators on the program's values give values like them, without data."""
    for node in program.graph_module.graph.nodes:
        mode = getattr(node.meta.get("val"), "fake_mode", None)
        if mode is not None:
            return mode
    return torch._subclasses.FakeTensorMode()  # noqa: SLF001 - public in docs, private by path


def module_scopes(node: torch.fx.Node) -> list[tuple[str, str]]:
    """Give (module path, class) of every module around a node, outermost first; the top module's path is ""."""
    stack = node.meta.get("nn_module_stack") or {}
    return [
        (str(path), kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}")
        for path, kind in stack.values()
    ]


def original_operator(node: torch.fx.Node) -> Any:
    """Give the operator that a decomposition was for: ``aten.i0`` of a ``prims.bessel_i0`` node; else the node's own."""
    target = node.target
    original = node.meta.get("original_aten")
    is_primitive = isinstance(target, torch._ops.OpOverload) and target.namespace == "prims"  # noqa: SLF001 - the class has no public name
    return original if is_primitive and isinstance(original, torch._ops.OpOverload) else target  # noqa: SLF001 - as above


def lifted_tensors(program: torch.export.ExportedProgram) -> dict[str, tuple[str, torch.Tensor, str]]:
    """Give, by placeholder node name, (role, tensor, qualified name) of every lifted parameter, buffer and constant."""
    lifted: dict[str, tuple[str, torch.Tensor, str]] = {}
    signature = program.graph_signature
    for role, names in (
        ("parameter", signature.inputs_to_parameters),
        ("buffer", signature.inputs_to_buffers),
        ("constant", signature.inputs_to_lifted_tensor_constants),
    ):
        for node_name, qualified in names.items():
            tensor = program.state_dict.get(qualified)
            lifted[node_name] = (role, program.constants[qualified] if tensor is None else tensor, qualified)
    return lifted


def make_lifted_tensors_real(program: torch.export.ExportedProgram) -> None:
    """Let complex parameters and constants enter the graph as pairs of real numbers.

    The exporter stores them that way anyway; with the conversion in the graph, a region can take them as inputs.
    """
    graph = program.graph_module.graph
    lifted = lifted_tensors(program)
    for node in list(graph.nodes):
        if node.name in lifted and node.meta["val"].is_complex():
            users = list(node.users)
            with graph.inserting_before(next(each for each in graph.nodes if each.op != "placeholder")):
                real = graph.call_function(torch.ops.aten.view_as_real.default, (node,))
                back = graph.call_function(torch.ops.aten.view_as_complex.default, (real,))
            real.meta["val"] = torch.ops.aten.view_as_real.default(node.meta["val"])
            back.meta["val"] = torch.ops.aten.view_as_complex.default(real.meta["val"])
            for user in users:
                user.replace_input_with(node, back)
    program.graph_module.recompile()


def real_form_of(node: torch.fx.Node) -> torch.fx.Node | None:
    """Give the placeholder whose value a node has as real pairs, None if the node is no such conversion."""
    if node.target is torch.ops.aten.view_as_real.default and node.all_input_nodes[0].op == "placeholder":
        return node.all_input_nodes[0]
    return None


def user_input_names(program: torch.export.ExportedProgram) -> list[str]:
    """Give the placeholder names of the model's own inputs, in call order."""
    return [name for name in program.graph_signature.user_inputs if isinstance(name, str)]


def user_output_names(program: torch.export.ExportedProgram) -> list[str | None]:
    """Give the node name of each flattened output; None for an output that is no tensor."""
    names: list[str | None] = []
    for spec in program.graph_signature.output_specs:
        if spec.kind is torch.export.graph_signature.OutputKind.USER_OUTPUT:
            tensor = isinstance(spec.arg, torch.export.graph_signature.TensorArgument)
            names.append(spec.arg.name if tensor else None)
    return names


def drop_constant_outputs(program: torch.export.ExportedProgram) -> None:
    """Take outputs that are no tensors (None, numbers) out of the graph: the exporter cannot name them."""
    kinds = torch.export.graph_signature
    output = program.graph_module.graph.output_node()
    pairs = zip(output.args[0], program.graph_signature.output_specs, strict=True)
    kept = [(value, spec) for value, spec in pairs if isinstance(spec.arg, kinds.TensorArgument)]
    output.args = (tuple(value for value, _ in kept),)
    program.graph_signature.output_specs[:] = [spec for _, spec in kept]
    program.graph_module.recompile()


def mutated_buffers(program: torch.export.ExportedProgram) -> list[str]:
    """Name the buffers that forward writes to: ONNX graphs have no such thing."""
    return list(program.graph_signature.buffers_to_mutate.values())


def replace_in_signature(program: torch.export.ExportedProgram, old: str, new: str) -> None:
    """Tell the signature that a node that is a graph output has a new name."""
    program.graph_signature.replace_all_uses(old, new)


def is_data_dependent(error: BaseException) -> bool:
    """Tell whether a capture failed since control flow or a shape depends on values."""
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    if isinstance(error, (GuardOnDataDependentSymNode, torch._subclasses.fake_tensor.DataDependentOutputException)):  # noqa: SLF001 - public in docs, private by path
        return True
    return isinstance(error, torch._subclasses.fake_tensor.DynamicOutputShapeException)  # noqa: SLF001 - as above


def is_unbacked(dim: Any) -> bool:
    """Tell whether an extent is known only when the data is (it came from nonzero, unique, item(), ...)."""
    if not isinstance(dim, torch.SymInt):
        return False
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    return bool(free_unbacked_symbols(dim))


def extent_range(dim: Any, known: Mapping[Any, tuple[int, int, int]]) -> tuple[int, int, int]:
    """Give the smallest, the usual and the largest extent of a dynamic dimension.

    Args:
        dim: A SymInt.
        known: The same of each symbol that the user gave a range for: torch itself takes no extent below 2 for dynamic.
    """
    expression = dim.node.expr
    symbols = {symbol: known[symbol] for symbol in expression.free_symbols if symbol in known}
    bounds = dim.node.shape_env.bound_sympy(expression)
    ends, usual = [int(bounds.lower), int(bounds.upper)], int(dim.node.hint)
    if len(symbols) == len(expression.free_symbols):
        # Extents grow or shrink with each symbol, so the ends of the ranges give the ends of the result.
        corners = itertools.product(*((low, high) for low, _, high in symbols.values()))
        ends = [int(expression.subs(dict(zip(symbols, corner, strict=True)))) for corner in corners]
        usual = int(expression.subs({symbol: each[1] for symbol, each in symbols.items()}))
    return min(ends), usual, max(ends)


def output_paths(spec: Any) -> list[tuple[Any, ...]]:
    """Give, for each leaf of an output tree, its keys and indices from the root, in flattening order.

    Args:
        spec: ``program.call_spec.out_spec``.
    """
    tree = torch.utils._pytree.tree_unflatten(list(range(spec.num_leaves)), spec)  # noqa: SLF001 - torch's pytree has no public name
    paths: list[tuple[Any, ...]] = [()] * spec.num_leaves
    for path, leaf in leaf_paths(tree):
        paths[leaf] = path
    return paths


def leaf_paths(tree: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """Give, for each leaf of a tree in flattening order, its keys and indices from the root, and the leaf."""
    found = torch.utils._pytree.tree_flatten_with_path(tree)[0]  # noqa: SLF001 - torch's pytree has no public name
    return [(tuple(_key(entry) for entry in path), leaf) for path, leaf in found]


def _key(entry: Any) -> Any:
    for attribute in ("key", "idx", "name"):
        if hasattr(entry, attribute):
            return getattr(entry, attribute)
    return str(entry)


def flatten_output(value: Any) -> list[Any]:
    """Flatten what forward returned, in the order of :func:`output_paths`."""
    leaves: list[Any] = torch.utils._pytree.tree_leaves(value)  # noqa: SLF001 - torch's pytree has no public name
    return leaves


def flatten_signature(program: torch.export.ExportedProgram) -> None:
    """Make a program one of flat tuples in and out, in place.

    A kernel knows tensors by their position only, and a tree may hold classes that torch cannot write down
    (``torch.return_types``) or that exist nowhere but in the user's file (dataclasses).
    """
    structure = torch.utils._pytree.tree_structure  # noqa: SLF001 - torch's pytree has no public name
    for entry in program.module_call_graph:
        if entry.signature is not None:
            entry.signature.in_spec = structure(((0,) * entry.signature.in_spec.num_leaves, {}))
            entry.signature.out_spec = structure((0,) * entry.signature.out_spec.num_leaves)
            entry.signature.forward_arg_names = None
    if program.example_inputs is not None:
        leaves = torch.utils._pytree.tree_leaves(program.example_inputs)  # noqa: SLF001 - torch's pytree has no public name
        program._example_inputs = (tuple(leaves), {})  # noqa: SLF001 - the public property cannot be set to another form
