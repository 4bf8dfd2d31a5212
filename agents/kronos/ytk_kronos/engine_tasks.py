"""The tasks that load plugins, that is native code of others: each runs sandboxed, in a child of its own."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ytk_core.agent.tasks import report_progress
from ytk_core.archspec import ArchSpec
from ytk_core.errors import NotAvailableError
from ytk_core.formats import codec
from ytk_core.formats.engine_bundle import SCHEMA_VERSION as MANIFEST_SCHEMA_VERSION
from ytk_core.formats.engine_bundle import EngineManifest
from ytk_core.formats.verify_report import PluginUse
from ytk_core.formats.weights_npz import read_arrays, write_weights
from ytk_core.input_ranges import InputRange
from ytk_kronos import checks, engine_files, layer_names, measure, onnx_model
from ytk_kronos.engine_files import BenchmarkFile, Layer, LayersFile
from ytk_kronos.engines.base import Arrays, Engine, EngineOptions, LoadedEngine, PluginFile
from ytk_kronos.task_types import INPUTS, OUT, OUTPUTS, RUN, BuildTask, Measuring, RunFile, RunTask, decode, sample_key

_MODEL_DIR = "model"


def build_engine(task: dict[str, Any], workdir: Path) -> dict[str, Any]:
    """Build, measure and profile an engine; leaves engine file, layers, benchmark, profile and log in ``out/``.

    Args:
        task: A :class:`ytk_kronos.task_types.BuildTask`.
        workdir: The work directory.

    Raises:
        UserError: A check or the engine refused something: :mod:`ytk_kronos.checks`, :mod:`ytk_kronos.engines.base`.
        CandidateError: ``plugin_failed``.
    """
    spec = decode(task, BuildTask)
    out = workdir / OUT
    (out / "engine").mkdir(parents=True)
    arch = checks.check_arch(spec.arch, "the engine")
    with _log_to(out / engine_files.LOG_MEMBER) as log:
        engine = make_engine(arch, spec.host_library)
        options = EngineOptions(arch=arch, precision=spec.precision, threads=spec.measuring.threads, ranges=spec.ranges)
        model, facts, plugins = _checked_inputs(spec, arch, workdir)
        for plugin in plugins:
            log(f"plugin {plugin.placeholder} version {plugin.version} from {plugin.path.name}")
        log(f"building with {engine.name} {engine.version} for {arch}, {options.precision}, {options.threads} threads")
        report_progress(0.1, "building the engine")
        loaded = engine.build(model, plugins, options)
        mapped = layer_names.map_layers(loaded.layers(), facts.names, facts.plugin_nodes)
        layer_names.check_plugins_used(mapped, facts.plugin_nodes)
        engine_file = out / engine_files.ENGINE_MEMBER
        loaded.save(engine_file)
        layers = LayersFile(
            inputs=loaded.inputs,
            outputs=loaded.outputs,
            layers=mapped,
            plugin_nodes=facts.plugin_nodes,
            onnx_names=facts.names,
            ranges=spec.ranges,
        )
        report_progress(0.5, "measuring")
        measured = _benchmark(loaded, spec.measuring, engine, "engine", log, ranges=spec.ranges)
        uses = _uses(measured, mapped, layers, log)
        layer_names.check_kernels_called(uses)
        del loaded
        # The profile is of the engine file, loaded again: what ships is what is shown.
        opened = Opened(engine=engine, engine_file=engine_file, plugins=plugins, options=options, layers=layers)
        _write_measured(opened, measured.row, uses, spec.measuring, out, log)
    return {}


def profile_engine(task: dict[str, Any], workdir: Path) -> dict[str, Any]:
    """Measure and profile an unpacked engine anew; leaves layers, benchmark, profile and log in ``out/``.

    Args:
        task: A :class:`ytk_kronos.task_types.RunTask`.
        workdir: The work directory.

    Raises:
        UserError: The engine file does not load here.
        CandidateError: ``plugin_failed``.
    """
    spec = decode(task, RunTask)
    out = workdir / OUT
    out.mkdir()
    with _log_to(out / engine_files.LOG_MEMBER) as log:
        opened = Opened.read(spec, workdir)
        log(f"loading with {opened.engine.name} {opened.engine.version} for {opened.options.arch}")
        loaded = opened.load(layer_times=False)
        measured = _benchmark(loaded, spec.measuring, opened.engine, spec.name, log, ranges=opened.layers.ranges)
        mapped = layer_names.map_layers(loaded.layers(), opened.layers.onnx_names, opened.layers.plugin_nodes)
        uses = _uses(measured, mapped, opened.layers, log)
        layer_names.check_kernels_called(uses)
        del loaded
        _write_measured(opened, measured.row, uses, spec.measuring, out, log)
    return {}


def run_samples(task: dict[str, Any], workdir: Path) -> dict[str, Any]:
    """Run every sample's inputs through an unpacked engine and time it; leaves ``outputs.npz`` and ``run.json`` in ``out/``.

    Args:
        task: A :class:`ytk_kronos.task_types.RunTask` with ``inputs``.
        workdir: The work directory.

    Raises:
        UserError: The engine file does not load here, or the inputs do not fit it.
        CandidateError: ``plugin_failed``.
    """
    spec = decode(task, RunTask)
    out = workdir / OUT
    out.mkdir()
    with _log_to(out / engine_files.LOG_MEMBER) as log:
        opened = Opened.read(spec, workdir)
        samples = _read_samples(workdir / (spec.inputs or INPUTS))
        loaded = opened.load(layer_times=False)
        mapped = layer_names.map_layers(loaded.layers(), opened.layers.onnx_names, opened.layers.plugin_nodes)
        arrays: dict[str, np.ndarray[Any, Any]] = {}
        counter = _CallCounter(loaded)
        for index, inputs in enumerate(samples):
            for name, value in loaded.run(inputs).items():
                arrays[sample_key(index, name)] = value
            report_progress(0.6 * (index + 1) / len(samples), f"sample {index + 1} of {len(samples)}")
        write_weights(out / OUTPUTS, arrays)
        measured = _benchmark(loaded, spec.measuring, opened.engine, spec.name, log, samples[0])
        measured = dataclasses.replace(measured, calls=counter.calls(), runs=counter.runs())
    ran = RunFile(
        outputs=tuple(info.name for info in loaded.outputs),
        samples=len(samples),
        benchmark=measured.row,
        plugins=_uses(measured, mapped, opened.layers, print),
    )
    codec.write_json(out / RUN, ran)
    return {}


# ---- parts -----------------------------------------------------------------------------------------------------------


def make_engine(arch: ArchSpec, host_library: str | None) -> Engine:
    """Give the engine that an arch spec names, its process prepared.

    Raises:
        NotAvailableError: This worker has no such engine.
    """
    from ytk_kronos.engines import openvino_engine

    if arch.engine_name != openvino_engine.OpenVinoEngine.name:
        raise NotAvailableError(f"{arch} needs {arch.engine_name}, which this worker has not", code="no_engine")
    openvino_engine.prepare_process(arch)
    return openvino_engine.OpenVinoEngine(Path(host_library) if host_library else None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Opened:
    """An engine file with all that is needed to load it."""

    engine: Engine
    engine_file: Path
    plugins: Sequence[PluginFile]
    options: EngineOptions
    layers: LayersFile

    @classmethod
    def read(cls, spec: RunTask, workdir: Path) -> Opened:
        """Read an unpacked bundle.

        Raises:
            FormatError: It is damaged.
            UserError: This worker cannot run it.
        """
        root = workdir / spec.bundle_dir
        text = codec.read_bytes(root / "manifest.json", "engine manifest")
        manifest = codec.decode(
            text, EngineManifest, "manifest.json", schema_version=MANIFEST_SCHEMA_VERSION, what="engine manifest"
        )
        arch = checks.check_bundle(manifest, "the bundle")
        return cls(
            engine=make_engine(arch, spec.host_library),
            engine_file=root / engine_files.ENGINE_MEMBER,
            plugins=[
                PluginFile(path=root / entry.file, namespace=entry.namespace, name=entry.name, version=entry.version)
                for entry in manifest.plugins
            ],
            options=EngineOptions(arch=arch, precision=manifest.precision, threads=spec.measuring.threads),
            layers=engine_files.read_layers(root / engine_files.LAYERS_MEMBER),
        )

    def load(self, *, layer_times: bool) -> LoadedEngine:
        """Load the engine file."""
        options = dataclasses.replace(self.options, layer_times=layer_times)
        return self.engine.load(self.engine_file, self.plugins, options)


def _checked_inputs(
    spec: BuildTask, arch: ArchSpec, workdir: Path
) -> tuple[Path, onnx_model.ModelFacts, list[PluginFile]]:
    """Check model, weights and plugins, before anything of them is loaded; gives the model laid out for the engine."""
    model = workdir / spec.model
    weights = workdir / spec.weights if spec.weights else None
    facts = onnx_model.read_facts(model)
    onnx_model.check_weights(model, weights)
    plugins = [checks.check_plugin(workdir / each.file, workdir / each.manifest, arch) for each in spec.plugins]
    checks.check_registered(facts.plugin_nodes, [plugin.file for plugin in plugins])
    checks.check_contracts(model, plugins, spec.precision, arch)
    return onnx_model.lay_out(model, weights, facts, workdir / _MODEL_DIR), facts, [plugin.file for plugin in plugins]


def _plan(measuring: Measuring, engine: Engine) -> measure.Plan:
    return measure.Plan(
        iterations=measuring.iterations,
        warmup=measuring.warmup,
        threads=measuring.threads,
        engine=f"{engine.name} {engine.version}",
        worker_id=measuring.worker_id,
        device_uid=measuring.device_uid,
    )


class _CallCounter:
    """Counts the calls of kernels, and the engine's runs, from now on. Runs that failed before, in search of inputs, do not count."""

    def __init__(self, loaded: LoadedEngine) -> None:
        self._loaded = loaded
        self._calls, self._runs = loaded.plugin_calls(), loaded.runs

    def calls(self) -> dict[str, int] | None:
        """Give the calls since, by layer; None: the engine does not count."""
        now = self._loaded.plugin_calls()
        if now is None or self._calls is None:
            return None
        return {name: count - self._calls.get(name, 0) for name, count in now.items()}

    def runs(self) -> int:
        """Give the runs since."""
        return self._loaded.runs - self._runs


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Measured:
    """A benchmark, and what the host counted meanwhile: ``calls`` by layer in ``runs`` runs."""

    row: BenchmarkFile
    calls: dict[str, int] | None
    runs: int


def _uses(
    measured: _Measured, mapped: Sequence[Layer], layers: LayersFile, log: Callable[[str], None]
) -> tuple[PluginUse, ...]:
    """Say of each plugin whether its kernel ran, and how often."""
    calls = None if measured.calls is None else layer_names.calls_by_node(measured.calls, layers.onnx_names)
    uses = layer_names.plugin_uses(mapped, layers.plugin_nodes, calls, measured.runs)
    for use in uses:
        if use.calls is not None:
            usual = ", which is not once a node and run" if use.unusual else ""
            log(f"plugin {use.placeholder}: {use.calls} kernel calls of {use.nodes} nodes in {use.runs} runs{usual}")
    return uses


def _benchmark(
    loaded: LoadedEngine,
    measuring: Measuring,
    engine: Engine,
    name: str,
    log: Callable[[str], None],
    inputs: Arrays | None = None,
    *,
    ranges: Sequence[InputRange] = (),
) -> _Measured:
    if inputs is None:
        inputs, extent = measure.usable_inputs(loaded, ranges)
        if ranges:
            usual = ", ".join(f"{each.input}:{each.axis}={each.opt}" for each in ranges)
            log(f"measured at the usual extents: {usual}")
        if extent is not None:
            log(f"dynamic axes of unknown range are measured at the extent {extent}")
    counter = _CallCounter(loaded)
    taken = measure.benchmark(loaded, inputs, _plan(measuring, engine), name)
    row = taken.row
    log(
        f"benchmark: min {row.min_ms:.3f} mean {row.mean_ms:.3f} p50 {row.p50_ms:.3f} p99 {row.p99_ms:.3f} ms, {row.iterations} runs"
    )
    if not taken.conditions.stable:
        log(f"unstable: {taken.conditions.reason}")
    return _Measured(row=taken, calls=counter.calls(), runs=counter.runs())


def _write_measured(
    opened: Opened,
    row: BenchmarkFile,
    uses: tuple[PluginUse, ...],
    measuring: Measuring,
    out: Path,
    log: Callable[[str], None],
) -> None:
    """Profile, and write ``layers.json``, ``benchmark.json`` and ``profile.json``."""
    report_progress(0.7, "profiling")
    loaded = opened.load(layer_times=True)
    layers = opened.layers
    mapped = layer_names.map_layers(loaded.layers(), layers.onnx_names, layers.plugin_nodes)
    layer_names.check_plugins_used(mapped, layers.plugin_nodes)
    inputs, _ = measure.usable_inputs(loaded, layers.ranges)
    profile = measure.profile(loaded, mapped, inputs, _plan(measuring, opened.engine))
    log(
        f"profile: {len(profile.layers)} layers, end to end {profile.end_to_end_ms:.3f} ms, "
        f"layer sum {profile.layer_sum_ms:.3f} ms, gap {profile.gap_ms:.3f} ms"
    )
    codec.write_json(out / engine_files.LAYERS_MEMBER, msgspec.structs.replace(layers, layers=mapped))
    codec.write_json(out / engine_files.BENCHMARK_MEMBER, row)
    codec.write_json(out / engine_files.PROFILE_MEMBER, msgspec.structs.replace(profile, plugins=uses))


def _read_samples(path: Path) -> list[dict[str, np.ndarray[Any, Any]]]:
    samples: dict[int, dict[str, np.ndarray[Any, Any]]] = {}
    for key, array in read_arrays(path).items():
        sample, _, name = key.partition("/")
        samples.setdefault(int(sample.removeprefix("sample")), {})[name] = array
    return [samples[index] for index in sorted(samples)]


@contextlib.contextmanager
def _log_to(path: Path) -> Iterator[Callable[[str], None]]:
    """Log both to the job (standard output) and to a file for the bundle."""
    with path.open("w", encoding="utf-8") as file:

        def write(line: str) -> None:
            print(line, flush=True)  # noqa: T201  (a task's standard output is the job's log)
            file.write(line + "\n")

        yield write
