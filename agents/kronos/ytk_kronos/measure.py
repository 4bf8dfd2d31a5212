"""Times of a loaded engine: whole runs (benchmark) and layers (profile), each with its conditions."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from ytk_core.conditions import Conditions, Drift, Snapshot, make_conditions, snapshot
from ytk_core.dtypes import DType, float32_to_bfloat16, storage_dtype
from ytk_core.errors import CandidateError, UserError, YtkError
from ytk_core.formats.benchmark import PLUGIN_EXEC_TYPE, BenchmarkRow, LayerTime
from ytk_core.formats.reference import TensorInfo
from ytk_core.input_ranges import InputRange, usual_extents
from ytk_kronos.engine_files import BenchmarkFile, Layer, ProfileFile
from ytk_kronos.engines.base import Arrays, LayerClock, LoadedEngine

_MAX_RUNS = 1_000_000
# Tried for dynamic axes where no inputs are given: a batch of one first, then what images and sequences need at least.
_EXTENTS = (1, 8, 32, 64, 128, 224, 512)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """How to measure; ``warmup`` runs are not counted. ``worker_id`` and ``device_uid`` go into the conditions."""

    iterations: int
    warmup: int
    threads: int
    engine: str
    worker_id: str = ""
    device_uid: str = ""

    def check(self) -> None:
        """Refuse counts that mean nothing.

        Raises:
            UserError: ``iterations``.
        """
        if not 1 <= self.iterations <= _MAX_RUNS or not 0 <= self.warmup <= _MAX_RUNS:
            raise UserError(
                f"iterations is {self.iterations} and warmup {self.warmup}",
                code="iterations",
                hint=f"Use 1 to {_MAX_RUNS} iterations and 0 to {_MAX_RUNS} warm-up runs.",
            )


def benchmark(loaded: LoadedEngine, inputs: Arrays, plan: Plan, name: str, drift: Drift | None = None) -> BenchmarkFile:
    """Time whole runs.

    Args:
        loaded: An engine without per-layer timing.
        inputs: One set of inputs; in place before the clock starts.
        plan: How.
        name: The row's name.
        drift: What counts as disturbed.

    Returns:
        The row, and the conditions: on a shared CPU a drift marks the figures unstable and keeps them.
    """
    plan.check()
    run = loaded.bind(inputs)
    before = snapshot()
    times_ms = _timed(run, plan.warmup, plan.iterations)
    return BenchmarkFile(row=BenchmarkRow.from_samples(name, times_ms), conditions=_conditions(plan, before, drift))


def profile(
    loaded: LoadedEngine, layers: Sequence[Layer], inputs: Arrays, plan: Plan, drift: Drift | None = None
) -> ProfileFile:
    """Time layers.

    The engine's clocks are means over all runs ever, warm-up included: the figures are the difference of two readings.

    Args:
        loaded: An engine with per-layer timing.
        layers: Its layers, mapped (:func:`ytk_kronos.layer_names.map_layers`).
        inputs: One set of inputs.
        plan: How.
        drift: What counts as disturbed.
    """
    plan.check()
    run = loaded.bind(inputs)
    before = snapshot()
    _timed(run, max(plan.warmup, 1), 0)
    first = loaded.layer_clocks()
    times_ms = _timed(run, 0, plan.iterations)
    means = layer_means(first, loaded.layer_clocks())
    times = tuple(_layer_time(layer, means[layer.name]) for layer in layers if layer.name in means)
    end_to_end_ms = sum(times_ms) / len(times_ms)
    layer_sum_ms = sum(each.ms for each in times)
    return ProfileFile(
        layers=times,
        end_to_end_ms=end_to_end_ms,
        layer_sum_ms=layer_sum_ms,
        gap_ms=end_to_end_ms - layer_sum_ms,
        conditions=_conditions(plan, before, drift),
    )


def layer_means(first: Mapping[str, LayerClock], second: Mapping[str, LayerClock]) -> dict[str, float]:
    """Give the mean time in ms of each layer over the runs between two readings.

    A layer that the first reading lacks started at zero. Means are whole units of the engine's clock, so a short layer's
    difference may come out slightly negative; it is then 0.
    """
    means: dict[str, float] = {}
    for name, last in second.items():
        start = first.get(name, LayerClock(ms=0.0, runs=0))
        runs = last.runs - start.runs
        if runs > 0:
            means[name] = max(0.0, (last.ms * last.runs - start.ms * start.runs) / runs)
    return means


def _timed(run: Callable[[], None], warmup: int, iterations: int) -> list[float]:
    for _ in range(warmup):
        run()
    times_ms = []
    for _ in range(iterations):
        start = time.perf_counter_ns()
        run()
        times_ms.append((time.perf_counter_ns() - start) / 1e6)
    return times_ms


def _layer_time(layer: Layer, ms: float) -> LayerTime:
    return LayerTime(
        name=layer.name,
        type=layer.plugin or layer.type,
        ms=ms,
        onnx_nodes=layer.onnx_nodes,
        exec_type=PLUGIN_EXEC_TYPE if layer.plugin else layer.exec_type,
    )


def _conditions(plan: Plan, before: Snapshot, drift: Drift | None) -> Conditions:
    return make_conditions(
        before,
        snapshot(),
        iterations=plan.iterations,
        warmup=plan.warmup,
        threads=plan.threads,
        engine=plan.engine,
        worker_id=plan.worker_id,
        device_uid=plan.device_uid,
        drift=drift,
    )


def usable_inputs(
    loaded: LoadedEngine, ranges: Iterable[InputRange] = ()
) -> tuple[dict[str, np.ndarray[Any, Any]], int | None]:
    """Make inputs that the engine really runs with: dynamic axes of a known range get their usual extent.

    Where no range is known, the first of a few extents that the engine accepts is taken.

    Returns:
        The inputs, and that extent; None if no dynamic axis needed it.

    Raises:
        UserError: It accepts none; the error is that of the first extent.
        CandidateError: As above, where a plugin refused.
    """
    usual = usual_extents(ranges)
    infos = [
        msgspec.structs.replace(
            info,
            shape=tuple(usual.get((info.name, axis)) if dim is None else dim for axis, dim in enumerate(info.shape)),
        )
        for info in loaded.inputs
    ]
    if all(extent is not None for info in infos for extent in info.shape):
        return sample_inputs(infos), None
    first: YtkError | None = None
    for extent in _EXTENTS:
        inputs = sample_inputs(infos, extent)
        try:
            loaded.run(inputs)
        except (UserError, CandidateError) as err:
            first = first or err
        else:
            return inputs, extent
    assert first is not None
    raise first


def sample_inputs(infos: Sequence[TensorInfo], extent: int = 1, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Make inputs for measuring where there are none: the same ones for the same engine.

    Floats are standard normal, booleans are mixed, integers are zero: the one value that is a valid index into everything.
    Dynamic axes get ``extent``.
    """
    rng = np.random.default_rng(seed)
    made: dict[str, np.ndarray[Any, Any]] = {}
    for info in infos:
        shape = tuple(extent if known is None else known for known in info.shape)
        if info.dtype is DType.BFLOAT16:
            made[info.name] = float32_to_bfloat16(rng.standard_normal(shape, dtype=np.float32))
        elif info.dtype is DType.BOOL:
            made[info.name] = rng.integers(0, 2, shape).astype(np.bool_)
        elif info.dtype in {DType.FLOAT16, DType.FLOAT32, DType.FLOAT64}:
            made[info.name] = rng.standard_normal(shape).astype(storage_dtype(info.dtype))
        else:
            made[info.name] = np.zeros(shape, storage_dtype(info.dtype))
    return made
