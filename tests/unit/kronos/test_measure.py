from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ytk_core.conditions import Drift
from ytk_core.dtypes import DType
from ytk_core.errors import CandidateError, UserError, YtkError
from ytk_core.formats.reference import TensorInfo
from ytk_core.input_ranges import InputRange
from ytk_kronos.engine_files import Layer
from ytk_kronos.engines.base import LayerClock
from ytk_kronos.measure import Plan, benchmark, layer_means, profile, sample_inputs, usable_inputs

PLAN = Plan(iterations=20, warmup=5, threads=2, engine="fake 1", worker_id="w", device_uid="cpu:1")
NEVER = Drift(load_per_cpu=1e9, mhz_ratio=1e9, temperature_c=1e9)


class FakeEngine:
    """Clocks that charge the first run ten times, as a cold cache does."""

    inputs = (TensorInfo(name="x", dtype=DType.FLOAT32, shape=(2,)),)
    outputs = ()

    def __init__(self) -> None:
        self.runs = 0
        self.spent_ms = {"conv": 0.0, "fold": 0.0}

    def bind(self, inputs: object) -> Callable[[], None]:
        def run() -> None:
            cost = 10 if self.runs == 0 else 1
            self.runs += 1
            self.spent_ms["conv"] += 0.25 * cost
            self.spent_ms["fold"] += 0.5 * cost

        return run

    def layer_clocks(self) -> dict[str, LayerClock]:
        return {name: LayerClock(ms=ms / self.runs, runs=self.runs) for name, ms in self.spent_ms.items()}


LAYERS = (
    Layer(name="conv", type="Convolution", exec_type="jit", precision="f32", onnx_nodes=("conv", "relu")),
    Layer(
        name="fold",
        type="Reference",
        exec_type="ref",
        precision="f32",
        onnx_nodes=("fold",),
        external=True,
        plugin="yasp::Col2im",
    ),
    Layer(name="y", type="Output", exec_type="unknown", precision="f32"),
)


def test_a_benchmark_counts_its_runs_and_not_the_warm_up():
    engine = FakeEngine()
    taken = benchmark(engine, {}, PLAN, "engine", NEVER)
    assert engine.runs == 25
    assert taken.row.iterations == 20
    assert taken.row.name == "engine"
    assert taken.row.min_ms <= taken.row.p50_ms <= taken.row.p99_ms <= taken.row.max_ms
    conditions = taken.conditions
    assert (conditions.iterations, conditions.warmup, conditions.threads, conditions.device_uid) == (20, 5, 2, "cpu:1")
    assert conditions.stable


def test_a_drift_marks_the_figures_and_keeps_them():
    taken = benchmark(FakeEngine(), {}, PLAN, "engine", Drift(load_per_cpu=-1.0))
    assert not taken.conditions.stable
    assert "load" in taken.conditions.reason
    assert taken.row.iterations == 20


def test_a_profile_leaves_the_warm_up_out_though_the_clocks_have_it_in():
    taken = profile(FakeEngine(), LAYERS, {}, PLAN, NEVER)
    assert [(each.name, round(each.ms, 9)) for each in taken.layers] == [("conv", 0.25), ("fold", 0.5)]
    assert taken.layer_sum_ms == pytest.approx(0.75)
    assert taken.gap_ms == taken.end_to_end_ms - taken.layer_sum_ms


def test_a_profile_without_warm_up_still_drops_the_first_run():
    plan = Plan(iterations=4, warmup=0, threads=1, engine="fake 1")
    assert profile(FakeEngine(), LAYERS, {}, plan, NEVER).layer_sum_ms == pytest.approx(0.75)


def test_a_plugin_layer_is_flagged():
    conv, fold = profile(FakeEngine(), LAYERS, {}, PLAN, NEVER).layers
    assert (conv.type, conv.exec_type, conv.onnx_nodes) == ("Convolution", "jit", ("conv", "relu"))
    assert (fold.type, fold.exec_type) == ("yasp::Col2im", "plugin")


def test_rounded_clocks_never_give_a_negative_time():
    first = {"a": LayerClock(ms=0.002, runs=10)}
    second = {"a": LayerClock(ms=0.001, runs=20), "new": LayerClock(ms=0.5, runs=20)}
    assert layer_means(first, second) == {"a": 0.0, "new": 0.5}


@pytest.mark.parametrize(("iterations", "warmup"), [(0, 0), (-1, 5), (10, -1), (10**9, 0)])
def test_counts_that_mean_nothing_are_refused(iterations, warmup):
    plan = Plan(iterations=iterations, warmup=warmup, threads=1, engine="fake 1")
    with pytest.raises(UserError, match=str(iterations if iterations != 10 else warmup)):
        benchmark(FakeEngine(), {}, plan, "engine")


def test_made_up_inputs_fit_and_are_the_same_each_time():
    infos = [
        TensorInfo(name="image", dtype=DType.FLOAT16, shape=(None, 3)),
        TensorInfo(name="half", dtype=DType.BFLOAT16, shape=(4,)),
        TensorInfo(name="index", dtype=DType.INT64, shape=(5,)),
        TensorInfo(name="mask", dtype=DType.BOOL, shape=(64,)),
    ]
    made = sample_inputs(infos)
    assert (made["image"].shape, made["image"].dtype) == ((1, 3), np.float16)
    assert made["half"].dtype == np.uint16
    assert not made["index"].any()
    assert set(made["mask"].tolist()) == {True, False}
    for name, array in sample_inputs(infos).items():
        np.testing.assert_array_equal(array, made[name])


class PickyEngine(FakeEngine):
    """Takes images of 32 and more."""

    inputs = (TensorInfo(name="image", dtype=DType.FLOAT32, shape=(None, 3, None, 64)),)

    def __init__(self, least: int, error: type[YtkError] = UserError) -> None:
        super().__init__()
        self.least = least
        self.error = error

    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        rows = inputs["image"].shape[2]
        if rows < self.least:
            raise self.error(f"{rows} rows are too few", code="engine_failed")
        return {}


@pytest.mark.parametrize("error", [UserError, CandidateError])
def test_dynamic_axes_get_an_extent_that_the_engine_accepts(error):
    inputs, extent = usable_inputs(PickyEngine(32, error))
    assert extent == 32
    assert inputs["image"].shape == (32, 3, 32, 64)


def test_where_no_extent_is_accepted_the_first_error_is_told():
    with pytest.raises(UserError, match="1 rows are too few"):
        usable_inputs(PickyEngine(10_000))


def test_static_engines_are_not_tried():
    _, extent = usable_inputs(FakeEngine())
    assert extent is None


def test_axes_of_a_known_range_are_measured_at_their_usual_extent():
    batch = InputRange(input="image", axis=0, min=1, opt=4, max=8)
    inputs, extent = usable_inputs(PickyEngine(32), [batch])
    assert (inputs["image"].shape, extent) == ((4, 3, 32, 64), 32)
    rows = InputRange(input="image", axis=2, min=32, opt=48, max=64)
    inputs, extent = usable_inputs(PickyEngine(32), [batch, rows])
    assert (inputs["image"].shape, extent) == ((4, 3, 48, 64), None)
