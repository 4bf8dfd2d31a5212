"""OpenVINO on CPUs: the embedded default engine.

The precision is forced at compilation *and* at import, since an engine file does not keep it and the device's own
default is bfloat16 where the CPU has it; both times it is read back. An engine file is in essence the model, which the
device compiles again at import: it holds for every CPU, and the arch spec's level is kept by bounding the instructions.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ytk_core.archspec import ArchSpec, host_device_levels
from ytk_core.dtypes import DType, storage_dtype
from ytk_core.errors import BoardError, CandidateError, FormatError, ToolkitError, UserError, YtkError
from ytk_core.formats.reference import TensorInfo
from ytk_kronos import hostlib
from ytk_kronos.engine_files import Layer
from ytk_kronos.engines.base import Arrays, EngineOptions, LayerClock, PluginFile, refuse_precision

_DEVICE = "CPU"
_HINT_OF = {"fp32": "f32", "bf16": "bf16"}
# What bounds the code that OpenVINO and oneDNN generate. The best level of a machine needs no bound.
_ISA_VARIABLE = "ONEDNN_MAX_CPU_ISA"
_ISA_OF_LEVEL = {"cpuv2": "SSE41", "cpuv3": "AVX2"}
_WIDER_THAN = {"cpuv2": ("avx",), "cpuv3": ("avx512", "amx")}
_DTYPES = {
    "f32": DType.FLOAT32,
    "f16": DType.FLOAT16,
    "bf16": DType.BFLOAT16,
    "f64": DType.FLOAT64,
    "i8": DType.INT8,
    "u8": DType.UINT8,
    "i32": DType.INT32,
    "i64": DType.INT64,
    "boolean": DType.BOOL,
}
_ALIGNMENT = 64
_NEVER_RUN = frozenset({"Parameter", "Result", "Constant"})
_EXTERNAL_LAYER = "Reference"  # what OpenVINO calls an operation that only has an evaluate(), as those of extensions
_HOST_LINE = re.compile(r"\[ytk-host:(library|contract|kernel)\] (.+)")
_UNSUPPORTED_OPSET = re.compile(r"Cannot create (\S+) layer (\S+) .*from unsupported opset: ytk\.(\S*)")
_UNCONVERTED = re.compile(r"No conversion rule found for operations?: ([^\n]+)|Conversion is failed for: ([^\n]+)")


def prepare_process(arch: ArchSpec) -> None:
    """Set what has to be set before OpenVINO is loaded: the instruction bound, and passive waiting of kernels' threads.

    Raises:
        UserError: ``arch_level``: this machine cannot keep to the level.
        ToolkitError: OpenVINO is loaded already, under another bound.
    """
    import sys

    best = host_device_levels()[0]
    bound = "" if arch.device == best else _ISA_OF_LEVEL.get(arch.device, "")
    if arch.device != best and not bound:
        raise UserError(
            f"OpenVINO cannot be kept to the level {arch.device} on this {best} machine",
            code="arch_level",
            hint=f"Use the arch spec with {best}.",
        )
    if "openvino" in sys.modules and os.environ.get(_ISA_VARIABLE, "") != bound:
        raise ToolkitError("the instruction bound was set after OpenVINO was loaded")
    if bound:
        os.environ[_ISA_VARIABLE] = bound
    # Spinning OpenMP threads of one kernel would starve the engine's threads (and each other) on few cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


class OpenVinoEngine:
    """Makes and loads OpenVINO engines.

    Args:
        host_library: From :func:`ytk_kronos.hostlib.ensure_host`; None if there are no plugins.
    """

    name = "openvino"

    def __init__(self, host_library: Path | None) -> None:
        self._host_library = host_library
        self._host: Any = None

    @property
    def version(self) -> str:
        """The installed version, e.g. ``2026.4.1``."""
        return hostlib.openvino_version()

    def precisions(self, arch: ArchSpec) -> tuple[str, ...]:
        """fp32, and bf16 where the CPU computes in it (elsewhere the hint would silently become f32)."""
        able = _core().get_property(_DEVICE, "OPTIMIZATION_CAPABILITIES")
        native = "BF16" in able and arch.device == host_device_levels()[0]
        return ("fp32", "bf16") if native else ("fp32",)

    def build(self, model: Path, plugins: Sequence[PluginFile], options: EngineOptions) -> OpenVinoLoaded:
        """Compile an ONNX model; see :class:`ytk_kronos.engines.base.Engine`."""
        hint = self._hint(options)
        core = self._core_with(plugins, options)
        try:
            compiled = core.compile_model(core.read_model(str(model)), _DEVICE, _properties(hint, options))
        except RuntimeError as err:
            raise _translate(err, "engine_refused", f"OpenVINO does not accept {model.name}") from err
        return _checked(compiled, hint, options, self._host if plugins else None)

    def load(self, engine_file: Path, plugins: Sequence[PluginFile], options: EngineOptions) -> OpenVinoLoaded:
        """Import an engine file; see :class:`ytk_kronos.engines.base.Engine`."""
        hint = self._hint(options)
        core = self._core_with(plugins, options)
        try:
            compiled = core.import_model(engine_file.read_bytes(), _DEVICE, _properties(hint, options))
        except RuntimeError as err:
            raise _translate(err, "bad_engine_file", f"OpenVINO cannot import {engine_file.name}") from err
        return _checked(compiled, hint, options, self._host if plugins else None)

    def _hint(self, options: EngineOptions) -> str:
        if options.precision not in self.precisions(options.arch):
            raise refuse_precision(options.precision, self, options.arch)
        return _HINT_OF[options.precision]

    def _core_with(self, plugins: Sequence[PluginFile], options: EngineOptions) -> Any:
        core = _core()
        if not plugins:
            return core
        if self._host_library is None:
            raise ToolkitError("plugins without a host library")
        library = ctypes.CDLL(str(self._host_library))
        library.ytk_host_load.restype = ctypes.c_char_p
        paths = (ctypes.c_char_p * len(plugins))(*(os.fsencode(plugin.path) for plugin in plugins))
        problem = library.ytk_host_load(paths, len(plugins), options.threads)
        if problem is not None:
            text = problem.decode(errors="replace")
            raise _host_error(text) or ToolkitError(f"the engine host library failed: {text}")
        library.ytk_host_registered.restype = ctypes.c_char_p
        library.ytk_host_calls.restype = ctypes.c_char_p
        self._host = library
        for index, plugin in enumerate(plugins):
            registered = library.ytk_host_registered(index).decode(errors="replace")
            if registered != f"{plugin.placeholder} {plugin.version}":
                raise UserError(
                    f"{plugin.path.name} registers {registered}, its manifest says {plugin.placeholder} {plugin.version}",
                    code="bad_plugin",
                    hint="Build it again with `ytk embedded build-plugin`.",
                )
        core.add_extension(str(self._host_library))
        return core


class OpenVinoLoaded:
    """A compiled model with one request. ``host``: the host library; None: there are no plugins."""

    def __init__(self, compiled: Any, host: Any = None) -> None:
        self._compiled = compiled
        self._host = host
        self._request = compiled.create_infer_request()
        self._runs = 0
        # The request reads the bound arrays' memory and does not keep them alive.
        self._bound: list[np.ndarray[Any, Any]] = []
        self.inputs = tuple(_tensor_info(port) for port in compiled.inputs)
        self.outputs = tuple(_tensor_info(port) for port in compiled.outputs)

    @property
    def runs(self) -> int:
        """How often the engine has run to its end."""
        return self._runs

    def plugin_calls(self) -> dict[str, int]:
        """Give the calls of each plugin layer's kernel so far, as the host library counted them."""
        calls: dict[str, int] = {}
        text = b"" if self._host is None else self._host.ytk_host_calls()
        for line in text.decode(errors="replace").split("\x1e")[:-1]:
            _plugin, node, count = line.split("\x1f")
            calls[node] = calls.get(node, 0) + int(count)
        return calls

    def layers(self) -> tuple[Layer, ...]:
        """Give the layers of the runtime model."""
        found: list[Layer] = []
        for node in self._compiled.get_runtime_model().get_ordered_ops():
            info = {key: _text(value) for key, value in node.get_rt_info().items()}
            sources = tuple(name for name in info.get("originalLayersNames", "").split(",") if name)
            found.append(
                Layer(
                    name=node.get_friendly_name(),
                    type=info.get("layerType", ""),
                    exec_type=info.get("primitiveType", ""),
                    precision=info.get("runtimePrecision", ""),
                    sources=sources,
                    inputs=tuple(value.get_source_output().get_node().get_friendly_name() for value in node.inputs()),
                    external=info.get("layerType") == _EXTERNAL_LAYER,
                )
            )
        return tuple(found)

    def run(self, inputs: Arrays) -> dict[str, np.ndarray[Any, Any]]:
        """Run once; see :class:`ytk_kronos.engines.base.LoadedEngine`."""
        self.bind(inputs)()
        results: dict[str, np.ndarray[Any, Any]] = {}
        for info, port in zip(self.outputs, self._compiled.outputs, strict=True):
            # numpy has no bfloat16: OpenVINO shows its bits as float16.
            results[info.name] = self._request.get_tensor(port).data.view(storage_dtype(info.dtype)).copy()
        return results

    def bind(self, inputs: Arrays) -> Callable[[], None]:
        """Give the function to time; see :class:`ytk_kronos.engines.base.LoadedEngine`."""
        import openvino as ov

        _check_inputs(inputs, self.inputs)
        bound: list[np.ndarray[Any, Any]] = []
        for info, port in zip(self.inputs, self._compiled.inputs, strict=True):
            array = _aligned_copy(inputs[info.name])
            if info.dtype is DType.BFLOAT16:
                tensor = ov.Tensor(array, array.shape, ov.Type.bf16)
            else:
                tensor = ov.Tensor(array, shared_memory=True)
            self._request.set_tensor(port, tensor)
            bound.append(array)
        self._bound = bound
        request = self._request

        def run_once() -> None:
            # Not infer(): with one thread, OpenVINO 2026.4 drops any exception in it and leaves the outputs as they were.
            try:
                request.start_async()
                request.wait()
            except RuntimeError as err:
                raise _translate(err, "engine_failed", "the engine failed at run time") from err
            self._runs += 1

        return run_once

    def layer_clocks(self) -> dict[str, LayerClock]:
        """Give the mean time of each layer over all runs; OpenVINO counts whole microseconds."""
        return {
            entry.node_name: LayerClock(ms=entry.real_time.total_seconds() * 1e3, runs=self._runs)
            for entry in self._request.get_profiling_info()
            if entry.node_type not in _NEVER_RUN
        }

    def save(self, path: Path) -> None:
        """Write the engine file."""
        path.write_bytes(self._compiled.export_model().getvalue())


def _core() -> Any:
    import openvino as ov

    return ov.Core()


def _properties(hint: str, options: EngineOptions) -> dict[str, Any]:
    return {
        "INFERENCE_PRECISION_HINT": hint,
        "INFERENCE_NUM_THREADS": options.threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "PERF_COUNT": options.layer_times,
    }


def _checked(compiled: Any, hint: str, options: EngineOptions, host: Any) -> OpenVinoLoaded:
    """Read back what the device really does: a hint is a hint."""
    effective = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    if effective != hint:
        raise BoardError(
            f"OpenVINO was asked for {hint} and runs in {effective}",
            code="precision_changed",
            hint="Report this worker.",
        )
    loaded = OpenVinoLoaded(compiled, host)
    wider = _WIDER_THAN.get(options.arch.device, ()) if options.arch.device != host_device_levels()[0] else ()
    for layer in loaded.layers():
        if any(word in layer.exec_type for word in wider):
            raise BoardError(
                f"layer {layer.name} runs as {layer.exec_type}, which is beyond the level of {options.arch}",
                code="arch_level",
                hint=f"Use the arch spec with {host_device_levels()[0]}.",
            )
    return loaded


def _tensor_info(port: Any) -> TensorInfo:
    kind = port.get_element_type().get_type_name()
    names = sorted(port.get_names())
    if kind not in _DTYPES:
        raise UserError(
            f"graph tensor {names} has the element type {kind}, which is not supported",
            code="dtype",
            hint=f"Supported: {', '.join(_DTYPES.values())}.",
        )
    shape = tuple(int(dim.get_length()) if dim.is_static else None for dim in port.get_partial_shape())
    return TensorInfo(name=names[0], dtype=_DTYPES[kind], shape=shape)


def _check_inputs(inputs: Arrays, wanted: Sequence[TensorInfo]) -> None:
    expected = {info.name for info in wanted}
    if set(inputs) != expected:
        raise UserError(
            f"the engine's inputs are {sorted(expected)}, given are {sorted(inputs)}",
            code="bad_inputs",
            hint="Use a reference of the same model: prepare writes both in one run.",
        )
    for info in wanted:
        array = inputs[info.name]
        dtype = storage_dtype(info.dtype)
        fits = len(info.shape) == array.ndim and all(
            want in {None, got} for want, got in zip(info.shape, array.shape, strict=True)
        )
        if array.dtype != dtype or not fits:
            raise UserError(
                f"input {info.name!r} is {array.dtype}{list(array.shape)}, the engine takes {dtype}{list(info.shape)}",
                code="bad_inputs",
                hint="Use a reference of the same model: prepare writes both in one run.",
            )


def _aligned_copy(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Copy to 64-byte aligned memory, as the engine's own is: a kernel fed by a graph input then needs no copy."""
    buffer = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % _ALIGNMENT
    aligned: np.ndarray[Any, Any] = buffer[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    aligned[...] = array
    return aligned


def _text(value: Any) -> str:
    return str(value.astype(str) if hasattr(value, "astype") else value)


def _host_error(text: str) -> YtkError | None:
    """Give the error that the host library raised, if the text holds one."""
    found = _HOST_LINE.search(text)
    if found is None:
        return None
    blame, message = found[1], found[2].strip()
    if blame == "kernel":
        return CandidateError(
            message, code="plugin_failed", hint="The kernel is wrong: generate or mend it, then rebuild."
        )
    if blame == "contract":
        return UserError(
            message,
            code="plugin_mismatch",
            hint="Build the plugin for this very node (see candidates.json: node_inputs).",
        )
    return UserError(message, code="bad_plugin", hint="Build it again with `ytk embedded build-plugin`.")


def _translate(err: RuntimeError, code: str, what: str) -> YtkError:
    """Give the error of ours for an exception of OpenVINO's, whose texts are long and name source lines."""
    text = str(err)
    host = _host_error(text)
    if host is not None:
        return host
    if (missing := _UNSUPPORTED_OPSET.search(text)) is not None:
        name = f"{missing[3]}::{missing[1]}"
        return UserError(f"the engine needs the plugin {name}, which is not there", code="missing_plugin")
    if unconverted := sorted({(a or b).strip() for a, b in _UNCONVERTED.findall(text)}):
        return UserError(
            f"{what}: no implementation of {', '.join(unconverted)}",
            code="unsupported_op",
            hint="Run `ytk embedded prepare -a` with this target's arch spec: it carves what the engine lacks.",
        )
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("Exception from ")]
    summary = f"{what}: {' '.join(lines[:4])[:800]}"
    kind = FormatError if code == "bad_engine_file" else UserError
    return kind(summary, code=code, hint="The engine's full text is in the job's log.")
