"""The JSON members of an engine bundle: ``layers.json``, ``profile.json``, ``benchmark.json``."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ytk_core.conditions import Conditions
from ytk_core.formats import codec
from ytk_core.formats.benchmark import BenchmarkRow, LayerTime
from ytk_core.formats.reference import TensorInfo
from ytk_core.formats.verify_report import PluginUse
from ytk_core.input_ranges import InputRange

SCHEMA_VERSION = 1

ENGINE_MEMBER = "engine/model.blob"
LAYERS_MEMBER = "layers.json"
PROFILE_MEMBER = "profile.json"
BENCHMARK_MEMBER = "benchmark.json"
LOG_MEMBER = "build.log"


class _Struct(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class Layer(_Struct, frozen=True, kw_only=True):
    """One layer as the engine reports it.

    ``sources``: names of what the engine merged into it. ``inputs``: names of the layers that feed it. ``external``: whether
    the engine ran it through an extension. ``onnx_nodes``: the ONNX nodes it stands for, where known (a reorder: those on
    both sides). ``plugin``: ``<namespace>::<Name>`` if the layer is a plugin.
    """

    name: str
    type: str
    exec_type: str
    precision: str
    sources: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    external: bool = False
    onnx_nodes: tuple[str, ...] = ()
    plugin: str = ""


class PluginNode(_Struct, frozen=True, kw_only=True):
    """A custom node of the ONNX graph. ``nested``: inside the body of a loop or branch, whose layers engines do not list."""

    name: str
    namespace: str
    op: str
    version: str
    nested: bool = False

    @property
    def placeholder(self) -> str:
        """``<namespace>::<Name>``."""
        return f"{self.namespace}::{self.op}"


class LayersFile(_Struct, frozen=True, kw_only=True):
    """``layers.json``: what the engine consists of.

    ``onnx_names``: every name that an engine may use for something of the ONNX graph (node or tensor) to the node's name. ``ranges``: of
    open input axes, where they were given.
    """

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    layers: tuple[Layer, ...]
    plugin_nodes: tuple[PluginNode, ...] = ()
    onnx_names: dict[str, str] = {}
    ranges: tuple[InputRange, ...] = ()
    schema_version: int = SCHEMA_VERSION


class ProfileFile(_Struct, frozen=True, kw_only=True):
    """``profile.json``: mean time per layer, in ms, in execution order.

    ``end_to_end_ms`` is the mean time of the same runs; ``gap_ms = end_to_end_ms - layer_sum_ms`` is what no layer accounts
    for. Nothing is ever scaled to make them agree. ``plugins``: whether each plugin's kernel was called in the benchmark's runs.
    """

    layers: tuple[LayerTime, ...]
    end_to_end_ms: float
    layer_sum_ms: float
    gap_ms: float
    conditions: Conditions
    plugins: tuple[PluginUse, ...] = ()
    schema_version: int = SCHEMA_VERSION


class BenchmarkFile(_Struct, frozen=True, kw_only=True):
    """``benchmark.json``: times of whole runs, without per-layer timing."""

    row: BenchmarkRow
    conditions: Conditions
    schema_version: int = SCHEMA_VERSION


def read_layers(path: Path) -> LayersFile:
    """Read ``layers.json``.

    Raises:
        FormatError: It is not one.
    """
    text = codec.read_bytes(path, "layers file")
    return codec.decode(text, LayersFile, str(path), schema_version=SCHEMA_VERSION, what="layers file")


def read_profile(path: Path) -> ProfileFile:
    """Read ``profile.json``.

    Raises:
        FormatError: It is not one.
    """
    text = codec.read_bytes(path, "profile")
    return codec.decode(text, ProfileFile, str(path), schema_version=SCHEMA_VERSION, what="profile")


def read_benchmark(path: Path) -> BenchmarkFile:
    """Read ``benchmark.json``.

    Raises:
        FormatError: It is not one.
    """
    text = codec.read_bytes(path, "benchmark")
    return codec.decode(text, BenchmarkFile, str(path), schema_version=SCHEMA_VERSION, what="benchmark")
