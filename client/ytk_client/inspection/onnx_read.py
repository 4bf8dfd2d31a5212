"""Read an ONNX model as the target's parser would see it: functions inlined, constants folded, ranks and element types inferred."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ytk_client.inspection import onnx_external
from ytk_client.inspection.onnx_constants import Constants
from ytk_core.dtypes import FROM_ONNX_NUMBER
from ytk_core.errors import FormatError
from ytk_core.targets import NodeFacts

_MAX_BYTES = 2**31 - 1
_MAX_INLINE_BYTES = 8192
_MAX_NODES = 2_000_000
_HINT = "Export the model again; weights belong into external data beside it."
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tensor:
    """What the graph says about a value; None where it does not. A string in ``dims`` names a dynamic extent."""

    dtype: str | None = None
    dims: tuple[int | str | None, ...] | None = None

    @property
    def rank(self) -> int | None:
        """The number of dims, where known."""
        return None if self.dims is None else len(self.dims)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Node:
    """One node, with its origin. ``name`` is never empty: a node without one is named after its output."""

    name: str
    facts: NodeFacts
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    module_path: str
    source_line: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """A model.

    ``consumers``: by tensor, the (node, input index) that take it; ``initializers``: their protos by name; ``external``: those
    whose data the file itself keeps elsewhere.
    """

    path: Path
    proto: Any
    opsets: Mapping[str, int]
    nodes: tuple[Node, ...]
    tensors: Mapping[str, Tensor]
    initializers: Mapping[str, Any]
    constants: Constants
    consumers: Mapping[str, list[tuple[Node, int]]]
    external: Mapping[str, Any]
    inference_error: str = ""


def load(path: Path) -> Model:
    """Read a model; weights stay where they are.

    Raises:
        FormatError: It is no ONNX model, or a damaged or hostile one.
    """
    import onnx

    if (size := path.stat().st_size) > _MAX_BYTES:
        raise _bad(path, f"{size} bytes; a protobuf holds at most {_MAX_BYTES}")
    try:
        proto = onnx.load(str(path), load_external_data=False, format="protobuf")
    except Exception as err:  # protobuf's DecodeError has no public common base with onnx's own
        raise _bad(path, f"no ONNX model, or truncated ({err})") from err
    if not proto.graph.node and not proto.graph.output:
        raise _bad(path, "no ONNX model (it has no graph)")
    if proto.functions:
        _refuse_explosion(path, proto)
        from onnx import inliner

        try:
            proto = inliner.inline_local_functions(proto)
        except Exception as err:  # the C++ inliner raises whatever it trips over
            raise _bad(path, f"its functions cannot be inlined ({_first_line(err)})") from err
    if any(isinstance(text, bytes) for text in (proto.producer_name, *(entry.domain for entry in proto.opset_import))):
        raise _bad(path, "damaged: its producer or a domain is not UTF-8")
    for graph in _graphs(proto.graph):
        _refuse_broken_text(path, graph)
    external = {tensor.name: tensor for tensor in _external_tensors(proto.graph)}
    _inline_small_tensors(path, proto)
    # Inference only adds knowledge; what it cannot say stays unknown.
    error = ""
    with contextlib.suppress(OSError):
        try:
            proto = onnx.shape_inference.infer_shapes(proto, data_prop=True)
        except Exception as err:  # noqa: BLE001 - InferenceError, or whatever a broken graph makes it raise
            error = _first_line(err)
    return _Reader(path, proto, external, error).read()


def _bad(path: Path, why: str) -> FormatError:
    return FormatError(f"{path}: {why}", code="bad_onnx", hint=_HINT)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _refuse_explosion(path: Path, proto: Any) -> None:
    """Refuse functions that call one another so often that inlining would not end."""
    bodies = {(function.domain, function.name): function.node for function in proto.functions}

    @functools.cache
    def size(domain: str, name: str) -> int:
        if (domain, name) not in bodies:
            return 1
        return 1 + sum(size(node.domain, node.op_type) for node in bodies[domain, name])

    try:
        total = sum(size(node.domain, node.op_type) for node in proto.graph.node)
    except RecursionError as err:
        raise _bad(path, "its functions call themselves, or one another too deeply") from err
    if total > _MAX_NODES:
        raise _bad(path, f"its functions stand for {total} nodes, more than {_MAX_NODES}")


def _graphs(graph: Any) -> Iterator[Any]:
    yield graph
    for inner in subgraphs(graph):
        yield from _graphs(inner)


def _refuse_broken_text(path: Path, graph: Any) -> None:
    """Refuse names that are no UTF-8: protobuf gives them as bytes, and no parser takes them."""
    for info in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        if isinstance(info.name, bytes):
            raise _bad(path, f"damaged: the tensor name {info.name!r} is not UTF-8")
    for tensor in graph.initializer:
        if any(isinstance(text, bytes) for entry in tensor.external_data for text in (entry.key, entry.value)):
            raise _bad(path, f"damaged: the external data of {tensor.name!r} is not UTF-8")
    for node in graph.node:
        texts = [node.name, node.op_type, node.domain, *node.input, *node.output]
        texts += [text for entry in node.metadata_props for text in (entry.key, entry.value)]
        texts += [attribute.name for attribute in node.attribute]
        if broken := next((text for text in texts if isinstance(text, bytes)), None):
            raise _bad(path, f"damaged: the text {broken[:60]!r} of node {node.name!r} is not UTF-8")


def _external_tensors(graph: Any) -> Iterator[Any]:
    """Give copies of the tensors whose data lies elsewhere, subgraphs included; they hold no data, so they are small."""
    for tensor in graph.initializer:
        if onnx_external.is_external(tensor):
            copy = type(tensor)()
            copy.CopyFrom(tensor)
            yield copy
    for inner in subgraphs(graph):
        yield from _external_tensors(inner)


def subgraphs(graph: Any) -> Iterator[Any]:
    """Give the graphs that are attributes of a graph's nodes, one level down."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield attribute.g
            yield from attribute.graphs


def _inline_small_tensors(path: Path, proto: Any) -> None:
    """Put small external integers into the graph of this process: shape inference needs their values."""
    for tensor in proto.graph.initializer:
        if (
            onnx_external.is_external(tensor)
            and (onnx_external.needed_bytes(tensor) or _MAX_BYTES) <= _MAX_INLINE_BYTES
        ):
            place = onnx_external.external_place(path, tensor)
            if not isinstance(place, str):
                tensor.raw_data = onnx_external.read_external(place)
                tensor.ClearField("data_location")


class _Reader:
    """Walks the graph and its subgraphs; names are looked up in the outer graphs too."""

    def __init__(self, path: Path, proto: Any, external: Mapping[str, Any], error: str) -> None:
        self._path = path
        self._proto = proto
        self._external = external
        self._error = error
        self._opsets = {entry.domain: int(entry.version) for entry in proto.opset_import}
        self._opsets.setdefault("", self._opsets.get("ai.onnx", 1))
        self._nodes: list[Node] = []
        self._tensors: dict[str, Tensor] = {}
        self._initializers: dict[str, Any] = {}
        self._constants = Constants(self._opsets[""])
        self._used: set[str] = set()

    def read(self) -> Model:
        self._used = set(_used_names(self._proto.graph))
        self._graph(self._proto.graph)
        consumers: dict[str, list[tuple[Node, int]]] = defaultdict(list)
        for node in self._nodes:
            for index, name in enumerate(node.inputs):
                if name:
                    consumers[name].append((node, index))
        return Model(
            path=self._path,
            proto=self._proto,
            opsets=self._opsets,
            nodes=tuple(self._nodes),
            tensors=self._tensors,
            initializers=self._initializers,
            constants=self._constants,
            consumers=dict(consumers),
            external=self._external,
            inference_error=self._error,
        )

    def _graph(self, graph: Any) -> None:
        for info in (*graph.input, *graph.value_info, *graph.output):
            self._tensors[info.name] = _from_type(info.type)
        for weight in graph.initializer:
            self._tensors[weight.name] = Tensor(dtype=dtype_name(weight.data_type), dims=tuple(weight.dims))
            self._initializers[weight.name] = weight
            if not onnx_external.is_external(weight):
                self._constants.add_initializer(weight)
            else:
                self._constants.add_unread(weight.name)
        for node in graph.node:
            for attribute in node.attribute:
                for inner in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
                    self._graph(inner)
            self._constants.add_node(node, {name: self._tensors.get(name, Tensor()).dims for name in node.input})
            for name in node.output:
                if name not in self._tensors and (value := self._constants.array(name)) is not None:
                    self._tensors[name] = Tensor(dtype=str(value.dtype), dims=value.shape)
            self._nodes.append(self._node(node))

    def _node(self, node: Any) -> Node:
        unknown = Tensor()
        inputs = [self._tensors.get(name, unknown) for name in node.input]
        outputs = [self._tensors.get(name, unknown) for name in node.output]
        facts = NodeFacts(
            op_type=node.op_type,
            domain="" if node.domain == "ai.onnx" else node.domain,
            opset=self._opsets.get(node.domain, self._opsets[""]),
            input_ranks=tuple(tensor.rank for tensor in inputs),
            input_dtypes=tuple(tensor.dtype for tensor in inputs),
            output_dtypes=tuple(tensor.dtype for tensor in outputs),
            attributes={attribute.name: attribute_value(attribute) for attribute in node.attribute},
            constant_inputs={
                index: self._constants.values(name) for index, name in enumerate(node.input) if name in self._constants
            },
            absent_inputs=frozenset(index for index, name in enumerate(node.input) if not name),
            absent_outputs=frozenset(index for index, name in enumerate(node.output) if name not in self._used),
        )
        props = {entry.key: entry.value for entry in node.metadata_props}
        return Node(
            name=node.name or f"(output {next((name for name in node.output if name), '?')})",
            facts=facts,
            inputs=tuple(node.input),
            outputs=tuple(node.output),
            module_path=module_path(props, node.name),
            source_line=source_line(props),
        )


def _used_names(graph: Any) -> Iterator[str]:
    yield from (info.name for info in graph.output)
    for node in graph.node:
        yield from (name for name in node.input if name)
    for inner in subgraphs(graph):
        yield from _used_names(inner)


def dtype_name(number: int) -> str | None:
    """Give our name of an ONNX element type, ONNX's in lower case for one that we have no word for."""
    import onnx

    if (ours := FROM_ONNX_NUMBER.get(number)) is not None:
        return str(ours)
    return (
        onnx.TensorProto.DataType.Name(number).lower()
        if number in onnx.TensorProto.DataType.values() and number
        else None
    )


def _from_type(kind: Any) -> Tensor:
    if not kind.HasField("tensor_type"):
        return Tensor()
    tensor = kind.tensor_type
    if not tensor.HasField("shape"):
        return Tensor(dtype=dtype_name(tensor.elem_type))
    dims = tuple(
        int(dim.dim_value) if dim.HasField("dim_value") else (dim.dim_param or None) for dim in tensor.shape.dim
    )
    return Tensor(dtype=dtype_name(tensor.elem_type), dims=dims)


def attribute_value(attribute: Any) -> Any:
    """Give an attribute as a plain value; graphs and tensors as None, which no rule asks about."""
    import onnx

    kinds = onnx.AttributeProto
    match attribute.type:
        case kinds.INT:
            return int(attribute.i)
        case kinds.FLOAT:
            return float(attribute.f)
        case kinds.STRING:
            return attribute.s.decode("utf-8", "replace")
        case kinds.INTS:
            return list(attribute.ints)
        case kinds.FLOATS:
            return list(attribute.floats)
        case kinds.STRINGS:
            return [text.decode("utf-8", "replace") for text in attribute.strings]
    return None


def module_path(props: Mapping[str, str], node_name: str) -> str:
    """Give the module that a node came from: what prepare or torch's exporter recorded, else the scope in its name."""
    if "ytk.module_path" in props:
        return props["ytk.module_path"]
    with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
        scopes = ast.literal_eval(props.get("pkg.torch.onnx.name_scopes", ""))
        if isinstance(scopes, list) and len(scopes) >= 2:
            return str(scopes[-2])  # the last one is the operator itself
    # torch.jit-based exporters name nodes after the module: /backbone/block.0/Conv
    return ".".join(node_name.strip("/").split("/")[:-1]) if node_name.startswith("/") else ""


def source_line(props: Mapping[str, str]) -> str:
    """Give ``file:line`` of the innermost frame outside of installed packages, "" where nothing was recorded."""
    frames = [(match["file"], match["line"]) for match in _FRAME.finditer(props.get("pkg.torch.onnx.stack_trace", ""))]
    own = [frame for frame in frames if "site-packages" not in frame[0]] or frames
    return ":".join(own[-1]) if own else ""
