"""Compare the exported graph with torch on the reference inputs.

Some exports succeed, pass every checker and compute something else; only numbers show it. Placeholder nodes have no
implementation yet, so the graph is cut there: what torch computed inside a region is fed in, and what the graph gives
into a region is compared like an output.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import onnx

from ytk_client.frontend.bfloat16_border import as_bfloat16, with_float32_border
from ytk_client.frontend.tensors import from_onnx
from ytk_client.frontend.user_code import first_line
from ytk_core.accuracy import AccuracyLimit, compare, default_limit
from ytk_core.dtypes import FROM_ONNX_NUMBER, DType, bfloat16_to_float32, storage_dtype
from ytk_core.errors import NotAvailableError, ToolkitError
from ytk_core.formats.verify_report import OutputAccuracy

Arrays = Mapping[str, "np.ndarray[Any, Any]"]

_PRECISION = {DType.FLOAT64: "fp64", DType.FLOAT16: "fp16", DType.BFLOAT16: "bf16"}
FLOATS = frozenset({*_PRECISION, DType.FLOAT32})


def judge(
    name: str,
    got: np.ndarray[Any, Any],
    want: np.ndarray[Any, Any],
    *,
    dtype: DType,
    finest: str = "fp64",
    sample: int = 0,
) -> OutputAccuracy:
    """Compare two arrays in storage form with the tolerance of their dtype, but none finer than ``finest`` arithmetic.

    ``dtype`` is that of the graph; another one in torch is a difference, however close the values are.
    """
    precision = rougher(_PRECISION.get(dtype, "fp32"), finest)
    verdict = compare(name, got, want, dtype=dtype, precision=precision, sample=sample)
    if want.dtype != storage_dtype(dtype):
        note = f"the graph has {dtype}, torch {want.dtype}"
        return msgspec.structs.replace(verdict, ok=False, max_abs=None, note=note)
    return verdict


def rougher(*precisions: str) -> str:
    """Give the one with the fewest digits."""
    return max(precisions, key=("fp64", "fp32", "fp16", "bf16").index)


class Evaluator(Protocol):
    """Runs an ONNX graph; arrays by value name, bfloat16 as ml_dtypes' type."""

    @property
    def name(self) -> str:
        """The package that computes."""
        ...

    @property
    def precision(self) -> str:
        """Its finest arithmetic."""
        ...

    def run(self, feeds: Arrays) -> dict[str, np.ndarray[Any, Any]]:
        """Give every graph output."""
        ...


@dataclass(frozen=True)
class CutGraph:
    """A model file without placeholder nodes: their outputs are inputs, their computed inputs are outputs.

    ``precision`` is the roughest float type in it: what passed through fp16 has fp16's tolerance wherever it ends.
    ``has_empty``: some tensor has no elements. ``borders`` has the input and output value names of each placeholder by its node name, ``initializers`` the constant
    ones among those inputs.
    """

    path: Path
    outputs: tuple[str, ...]
    dtypes: Mapping[str, DType]
    precision: str
    has_empty: bool
    borders: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]
    initializers: Arrays


def cut(model_path: Path, cut_path: Path, *, extra_outputs: Sequence[str] = ()) -> CutGraph:
    """Write the cut form of a model beside it (external data stays where it is).

    Args:
        model_path: The exported model.
        cut_path: In the same directory.
        extra_outputs: Inner values to give out as well.

    Raises:
        ToolkitError: A placeholder's output has no type: nothing could be fed in.
    """
    model = onnx.load(str(model_path), load_external_data=False)
    graph = model.graph
    types = {info.name: info.type for info in (*graph.value_info, *graph.input, *graph.output)}
    initializers = {tensor.name: tensor for tensor in graph.initializer}
    placeholders = [node for node in graph.node if node.domain not in {"", "ai.onnx"}]
    fed = [name for node in placeholders for name in node.output if name]
    taken = [name for node in placeholders for name in node.input if name and name not in initializers]
    kept = [node for node in graph.node if node.domain in {"", "ai.onnx"}]
    untyped = [name for name in (*fed, *taken) if name not in types]
    if untyped:
        msg = f"the exported graph has no type for {untyped[0]!r} at a placeholder"
        raise ToolkitError(msg, code="untyped_placeholder")
    del graph.node[:]
    graph.node.extend(kept)
    graph.input.extend(onnx.helper.make_value_info(name, types[name]) for name in fed)
    known = {info.name for info in graph.output}
    # What was fed in cannot be asked for: the same name would be input and output of the graph.
    known -= set(fed)
    wanted = [*known, *taken, *(name for name in extra_outputs if name in types)]
    given = {info.name for info in graph.input}
    outputs = [name for name in dict.fromkeys(wanted) if name not in given]
    del graph.output[:]
    graph.output.extend(onnx.helper.make_value_info(name, types[name]) for name in outputs)
    dtypes = {
        name: FROM_ONNX_NUMBER[kind.tensor_type.elem_type]
        for name, kind in types.items()
        if kind.tensor_type.elem_type in FROM_ONNX_NUMBER
    }
    cut_path.write_bytes(model.SerializeToString())
    baked = {name: initializers[name] for node in placeholders for name in node.input if name in initializers}
    return CutGraph(
        path=cut_path,
        outputs=tuple(outputs),
        dtypes=dtypes | {name: FROM_ONNX_NUMBER[tensor.data_type] for name, tensor in baked.items()},
        precision=rougher("fp64", *(_PRECISION[dtype] for dtype in dtypes.values() if dtype in _PRECISION)),
        has_empty=any(
            dim.HasField("dim_value") and dim.dim_value == 0
            for kind in types.values()
            for dim in kind.tensor_type.shape.dim
        ),
        borders={node.name: (tuple(node.input), tuple(node.output)) for node in placeholders},
        initializers={name: onnx.numpy_helper.to_array(tensor, str(cut_path.parent)) for name, tensor in baked.items()},
    )


class CannotRunError(NotAvailableError):
    """An evaluator cannot run the graph. ``node`` is the ONNX node that it names, None if it names none."""

    default_code = "no_evaluator"

    def __init__(self, message: str, *, hint: str, node: str | None) -> None:
        super().__init__(message, hint=hint)
        self.node = node
        self.finding = message


_NAMED_NODE = re.compile(r"(?:[Nn]ode \(|with name '|[Nn]ame: ?')(?P<name>[^')]+)[')]")
"""How ONNX Runtime names the node that it does not load or run."""
_FUNCTION = re.compile(r"_inlfunc_(?P<op>[A-Z][A-Za-z0-9]*)_")
"""How it names what it made of an operator that is a function of others, whose nodes have no names."""


def _blamed_node(message: str, path: Path) -> str | None:
    """Give the name of the node that an error of ONNX Runtime is about, None if it says none."""
    named = _NAMED_NODE.search(message)
    if named is not None:
        return named["name"]
    function = _FUNCTION.search(message)
    if function is None:
        return None
    nodes = onnx.load(str(path), load_external_data=False).graph.node
    return next((node.name for node in nodes if node.op_type == function["op"]), None)


def make_evaluator(graph: CutGraph, engine: str = "") -> Evaluator:
    """Give an evaluator for a graph: ONNX Runtime, else OpenVINO, else onnx's own reference, whichever loads and runs it.

    If ``engine`` is one of these and it names a node that it cannot run, that is the answer: the target is this engine.
    """
    return _FirstThatWorks(graph, engine) if graph.outputs else _NothingToRun()


class _FirstThatWorks:
    """Tries the evaluators in order and stays with the first that gives a result."""

    def __init__(self, graph: CutGraph, engine: str) -> None:
        self._path = graph.path
        self._engine = engine
        self._named: str | None = None
        has_bfloat16 = DType.BFLOAT16 in graph.dtypes.values()
        self._left = [
            (name, factory)
            for name, factory in _EVALUATORS
            if importlib.util.find_spec(name.partition(".")[0]) is not None
            # It does not compute in bfloat16 on every host. It divides by extents while it compiles, and the signal would
            # end this process.
            and not (name == "openvino" and (has_bfloat16 or graph.has_empty))
        ]
        self._reasons: list[str] = []
        self._current: Evaluator | None = None

    @property
    def name(self) -> str:
        return "" if self._current is None else self._current.name

    @property
    def precision(self) -> str:
        return "fp64" if self._current is None else self._current.precision

    def run(self, feeds: Arrays) -> dict[str, np.ndarray[Any, Any]]:
        """Run with the current evaluator, with the next one where that fails.

        Raises:
            CannotRunError: ``no_evaluator``: none loads and runs the graph, or the target itself does not.
        """
        while True:
            if self._current is None:
                if not self._left:
                    tried = "; ".join(self._reasons) or "none is installed"
                    msg = f"the exported graph could not be run for the comparison with torch: {tried}"
                    raise CannotRunError(msg, hint="pip install onnxruntime", node=self._named)
                self._name, factory = self._left.pop(0)
            try:
                self._current = self._current or factory(self._path)
                return self._current.run(feeds)
            except Exception as err:
                reason = f"{self._name}: {first_line(str(err)) or type(err).__name__}"
                found = _blamed_node(str(err), self._path)
                if found is not None and self._name == self._engine:
                    raise CannotRunError(reason, hint="Choose another target.", node=found) from err
                self._named = self._named or found
                self._reasons.append(reason)
                self._current = None


class _NothingToRun:
    """For a model that consists of placeholders: the engines load no graph without nodes."""

    name = "torch alone"
    precision = "fp64"

    def run(self, feeds: Arrays) -> dict[str, np.ndarray[Any, Any]]:  # noqa: ARG002 - the protocol's signature
        return {}


class _OnnxRuntime:
    name = "onnxruntime"
    precision = "fp64"

    def __init__(self, path: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        # The graph as it is: what an optimiser makes of it is not what is judged here.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        onnxruntime.set_default_logger_severity(4)  # it prints what it cannot load; the next evaluator may
        # Spinning threads would slow torch, which runs in this process, a hundredfold.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # Its Python takes and gives no bfloat16 arrays, while some of its operators do.
        plain, self._narrow = with_float32_border(path)
        self._session = onnxruntime.InferenceSession(str(plain), options, providers=["CPUExecutionProvider"])
        self._inputs = {node.name for node in self._session.get_inputs()}
        self._outputs = [node.name for node in self._session.get_outputs()]

    def run(self, feeds: Arrays) -> dict[str, np.ndarray[Any, Any]]:
        given = {name: feeds[name] for name in self._inputs}
        wide = {name: array.astype(np.float32) if name in self._narrow else array for name, array in given.items()}
        results = dict(zip(self._outputs, self._session.run(None, wide), strict=True))
        return {name: as_bfloat16(array) if name in self._narrow else array for name, array in results.items()}


class _OpenVino:
    name = "openvino"
    precision = "fp32"

    def __init__(self, path: Path) -> None:
        import openvino

        core = openvino.Core()
        # Its default precision is bf16 on many CPUs.
        self._model = core.compile_model(core.read_model(str(path)), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def run(self, feeds: Arrays) -> dict[str, np.ndarray[Any, Any]]:
        # Unused inputs disappear, and a value can have several names.
        names = [port.get_names() for port in self._model.inputs]
        results = self._model([next(feeds[name] for name in port if name in feeds) for port in names])
        return {name: results[port] for port in self._model.outputs for name in port.get_names()}


class _OnnxReference:
    name = "onnx.reference"
    precision = "fp64"

    def __init__(self, path: Path) -> None:
        from onnx.reference import ReferenceEvaluator

        self._evaluator = ReferenceEvaluator(onnx.load(str(path)))

    def run(self, feeds: Arrays) -> dict[str, np.ndarray[Any, Any]]:
        results = self._evaluator.run(None, {name: feeds[name] for name in self._evaluator.input_names})
        return dict(zip(self._evaluator.output_names, results, strict=True))


_EVALUATORS: tuple[tuple[str, Callable[[Path], Evaluator]], ...] = (
    ("onnxruntime", _OnnxRuntime),
    ("openvino", _OpenVino),
    ("onnx.reference", _OnnxReference),
)


@dataclass(frozen=True)
class Compared:
    """One value of the graph beside torch's, both in storage form; ``precision`` of the tolerance it was judged with."""

    verdict: OutputAccuracy
    got: np.ndarray[Any, Any]
    want: np.ndarray[Any, Any]
    dtype: DType
    precision: str

    @property
    def elements(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], AccuracyLimit] | None:
        """The elements of both as float64, and the limit; None where there is no float, or the verdict says it all."""
        if not self.verdict.ok or self.dtype not in FLOATS or not self.want.size:
            return None
        wide = [
            np.asarray(bfloat16_to_float32(array) if self.dtype is DType.BFLOAT16 else array, dtype=np.float64)
            for array in (self.got, self.want)
        ]
        return wide[0], wide[1], default_limit(self.dtype, self.precision)

    def refused(self, outside: np.ndarray[Any, Any]) -> OutputAccuracy:
        """Give a verdict against the value because of the marked elements, which are small beside others."""
        assert self.elements is not None
        got, want, _ = self.elements
        place = np.unravel_index(int(np.argmax(outside)), outside.shape)
        note = (
            f"{int(outside.sum())} of {outside.size} elements are further off than rounding explains, "
            f"first at {[int(index) for index in place]}: {got[place]:.6g} instead of {want[place]:.6g}"
        )
        return msgspec.structs.replace(self.verdict, ok=False, note=note)


def compared(
    name: str,
    got: np.ndarray[Any, Any],
    want: np.ndarray[Any, Any],
    *,
    dtype: DType,
    finest: str = "fp64",
    sample: int = 0,
) -> Compared:
    """Compare two arrays as :func:`judge` does, and keep them."""
    verdict = judge(name, got, want, dtype=dtype, finest=finest, sample=sample)
    return Compared(verdict, got, want, dtype, rougher(_PRECISION.get(dtype, "fp32"), finest))


def compare_sample(evaluator: Evaluator, graph: CutGraph, feeds: Arrays, want: Arrays, sample: int) -> list[Compared]:
    """Run one sample through the cut graph and compare every output and every value that enters a region.

    Weights that enter a region are compared too: no evaluator runs what they are for.

    Args:
        evaluator: Of ``graph``.
        graph: The cut graph.
        feeds: Graph inputs and what torch computed inside the regions.
        want: What torch gives, by value name, in storage form.
        sample: Its index, for the report.
    """
    results = {**graph.initializers, **evaluator.run(feeds)}
    # After the run: the evaluator may have changed to one that works.
    finest = rougher(graph.precision, evaluator.precision)
    return [
        compared(name, from_onnx(results[name]), want[name], dtype=graph.dtypes[name], finest=finest, sample=sample)
        for name in (*graph.initializers, *graph.outputs)
    ]


def difference(verdict: OutputAccuracy, evaluator: str) -> str:
    """Say in one sentence what a failed comparison showed; ``evaluator`` ran the graph."""
    if verdict.max_abs is None:
        amount = verdict.note
    else:
        amount = (
            f"max difference {verdict.max_abs:.3g} ({verdict.note or verdict.tolerance}; tolerance {verdict.tolerance})"
        )
    return f"the exported graph differs from torch at {verdict.name!r}, sample {verdict.sample}: {amount} (run by {evaluator})"
