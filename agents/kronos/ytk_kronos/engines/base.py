"""What every engine can do, and the words for it.

An :class:`Engine` makes or loads a :class:`LoadedEngine`; both live in a child process of their own, since they run native
code of others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ytk_core.archspec import ArchSpec
from ytk_core.errors import UserError
from ytk_core.formats.reference import TensorInfo
from ytk_core.input_ranges import InputRange
from ytk_kronos.engine_files import Layer

Arrays = Mapping[str, np.ndarray[Any, Any]]
"""Tensors by name, in storage dtypes (bfloat16 as uint16)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PluginFile:
    """A kernel library and the identity it registers."""

    path: Path
    namespace: str
    name: str
    version: str

    @property
    def placeholder(self) -> str:
        """``<namespace>::<Name>``."""
        return f"{self.namespace}::{self.name}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """How to build or load.

    Attributes:
        arch: What the engine is for; its CPU level bounds the instructions that the engine may use.
        precision: Arithmetic of the engine: honoured, or refused by name.
        threads: CPU threads, 1 or more.
        layer_times: Take times per layer, which costs a little in each run.
        ranges: Of open input axes, where they are known; an engine that is tuned for extents is tuned for these.
    """

    arch: ArchSpec
    precision: str = "fp32"
    threads: int = 1
    layer_times: bool = False
    ranges: tuple[InputRange, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerClock:
    """Mean time of a layer over all runs so far, in ms; ``runs`` tells how many those were."""

    ms: float
    runs: int


class LoadedEngine(Protocol):
    """An engine that is ready to run."""

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """Graph inputs in the model's order."""

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """Graph outputs in the model's order."""

    @property
    def runs(self) -> int:
        """How often the engine has run to its end."""

    def plugin_calls(self) -> dict[str, int] | None:
        """Give how often the kernel behind each plugin layer was called so far in this process, by the layer's name.

        A layer whose kernel was never called is not in it. None: the engine does not count.
        """

    def layers(self) -> tuple[Layer, ...]:
        """Give the engine's layers in execution order, as the engine itself reports them."""

    def run(self, inputs: Arrays) -> dict[str, np.ndarray[Any, Any]]:
        """Run once.

        Args:
            inputs: Every graph input by name, in its storage dtype.

        Returns:
            Every graph output by name; arrays of their own.

        Raises:
            UserError: A missing input, or one of a wrong dtype or shape.
            CandidateError: ``plugin_failed``: a plugin's kernel returned an error.
        """

    def bind(self, inputs: Arrays) -> Callable[[], None]:
        """Give a function that runs the engine once with these inputs already in place: what a benchmark times.

        Raises:
            UserError: As :meth:`run`.
        """

    def layer_clocks(self) -> dict[str, LayerClock]:
        """Give the layers' mean times over all runs of the bound function so far; needs ``layer_times``."""

    def save(self, path: Path) -> None:
        """Write the engine file."""


class Engine(Protocol):
    """A tool that turns a model into an engine."""

    @property
    def name(self) -> str:
        """The name in arch specs: ``openvino``, ``onnxruntime``, ``tensorrt``."""

    @property
    def version(self) -> str:
        """The exact version, e.g. ``2026.4.1``."""

    def precisions(self, arch: ArchSpec) -> tuple[str, ...]:
        """Give the precisions that this engine can do here for an arch spec, the default first."""

    def build(self, model: Path, plugins: Sequence[PluginFile], options: EngineOptions) -> LoadedEngine:
        """Compile an ONNX model; external weights lie where the model says.

        Raises:
            UserError: ``precision``: not one of :meth:`precisions`; ``unsupported_op``; ``plugin_mismatch``: a node and
                its plugin do not fit; ``bad_plugin``; ``engine_refused``: anything else the engine does not accept.
            CandidateError: ``plugin_failed``.
        """

    def load(self, engine_file: Path, plugins: Sequence[PluginFile], options: EngineOptions) -> LoadedEngine:
        """Load an engine file that :meth:`LoadedEngine.save` wrote, with the precision it was built with.

        Raises:
            UserError: ``missing_plugin``, ``bad_engine_file``, and as :meth:`build`.
        """


def refuse_precision(precision: str, engine: Engine, arch: ArchSpec) -> UserError:
    """Give the error for a precision that an engine cannot do."""
    able = ", ".join(engine.precisions(arch))
    return UserError(
        f"{engine.name} {engine.version} cannot build {precision} for {arch} on this worker; it can do: {able}",
        code="precision",
        hint=f"Use -p with one of: {able}. A precision is never changed silently.",
    )
