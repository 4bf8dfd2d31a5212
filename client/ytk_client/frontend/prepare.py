"""``prepare``: from ``model.py`` to ONNX, weights, reference and the regions that need a generated kernel.

Nothing heavy is imported before :func:`prepare` runs.
"""

from __future__ import annotations

import importlib.util
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ytk_client.frontend.artifacts import OutputPaths, Staging, disk_errors, own_candidate_files
from ytk_client.frontend.dynamic import parse_dynamic, write_ranges
from ytk_client.frontend.selectors import Selector, parse_selectors
from ytk_core.errors import NotAvailableError, UserError
from ytk_core.formats.benchmark import BenchmarkRow
from ytk_core.formats.prepare_outputs import Candidate, PluginRow, write_candidates, write_fx_nodes, write_plugins
from ytk_core.formats.reference import Reference, Sample, TensorInfo, write_reference
from ytk_core.formats.verify_report import OutputAccuracy

if TYPE_CHECKING:
    import torch

    from ytk_client.frontend.carve import Carver
    from ytk_client.frontend.dryrun import DryRunReport
    from ytk_client.frontend.load_model import LoadedModel
    from ytk_client.frontend.opened import OpenedModel
    from ytk_client.frontend.recording import Recording
    from ytk_core.targets import TargetProfile

DEFAULT_NAMESPACE = "yasp"


@dataclass(frozen=True, kw_only=True)
class PrepareRequest:
    """What to prepare and where to write it.

    ``arch`` or ``profile`` choose the target (an arch spec, or a profile name such as ``trt86``); neither means
    :data:`ytk_core.targets.DEFAULT_PROFILE`, the strictest. ``plugins`` are selectors of regions to carve
    (:mod:`ytk_client.frontend.selectors`), ``dynamic`` input axes with their ranges
    (:mod:`ytk_client.frontend.dynamic`). ``debug_taps`` adds a copy of the graph that gives out what enters and leaves
    every plugin. ``random_inputs`` makes the noise of random draws inputs of the graph
    (:mod:`ytk_client.frontend.random_inputs`). ``torch_timing_budget_s`` of 0 leaves the torch row out of the reference.
    """

    model: Path
    onnx_out: Path
    npz_out: Path
    reference_out: Path
    arch: str | None = None
    profile: str | None = None
    namespace: str = DEFAULT_NAMESPACE
    plugins: tuple[str, ...] = ()
    dynamic: tuple[str, ...] = ()
    debug_taps: bool = False
    random_inputs: bool = False
    samples: int = 3
    seed: int = 0
    torch_timing_budget_s: float = 2.0


@dataclass(frozen=True, kw_only=True)
class PrepareReport:
    """What prepare found and wrote.

    ``accuracy`` has one verdict per sample for each graph output and each value that enters a region; ``random_inputs``
    describes each noise input of the graph; ``seconds`` has the duration of each phase.
    """

    rows: tuple[PluginRow, ...]
    candidates: tuple[Candidate, ...]
    written: tuple[Path, ...]
    profile: str
    opset: int
    evaluator: str
    accuracy: tuple[OutputAccuracy, ...]
    notes: tuple[str, ...] = ()
    random_inputs: tuple[dict[str, Any], ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def blocking(self) -> tuple[PluginRow, ...]:
        """The rows for which no plugin exists yet."""
        return tuple(row for row in self.rows if not row.has_plugin)


def prepare(request: PrepareRequest, on_phase: Callable[[str], None] = lambda _text: None) -> PrepareReport:
    """Export a model for a target; carve what it refuses; compare the result with torch; write all files or none.

    Args:
        request: What to do.
        on_phase: Told what happens next, for a person who waits.

    Raises:
        UserError: The model, an option or an output path is wrong; the model cannot be captured (``capture_blocked``);
            the exported graph computes something else than torch (``export_differs``).
        NotAvailableError: torch is not installed.
        BoardError: ``disk_full``.
    """
    paths = OutputPaths(request.onnx_out, request.npz_out, request.reference_out)
    profile, selectors = _checked(request)
    with disk_errors(paths), Staging() as staging:
        return _Run(request, paths, profile, staging, selectors, on_phase).run()


def dry_run(request: PrepareRequest, on_phase: Callable[[str], None] = lambda _text: None) -> DryRunReport:
    """Do everything that :func:`prepare` does but write, and tell what it would carve and rewrite.

    Raises:
        UserError: As :func:`prepare`.
        NotAvailableError: torch is not installed.
    """
    profile, selectors = _checked(request)
    if importlib.util.find_spec("torch") is None:
        msg = "prepare runs the model and needs torch, which is not installed"
        raise NotAvailableError(msg, hint="pip install 'yasp-toolkit[torch]'")
    from ytk_client.frontend import dryrun

    return dryrun.dry_run(request, profile, selectors, lambda _name, text: on_phase(text) if text else None)


def _checked(request: PrepareRequest) -> tuple[TargetProfile, list[Selector]]:
    """Check what needs no torch."""
    if request.samples < 1:
        raise UserError(
            f"--samples is {request.samples}", code="bad_option", hint="At least 1: the model's own example inputs."
        )
    from ytk_core.targets import DEFAULT_PROFILE, load_profile

    # Not `or`: an empty name is a shell variable that was not set, and no wish for the default.
    chosen = request.profile if request.profile is not None else request.arch
    profile = load_profile(DEFAULT_PROFILE if chosen is None else chosen)
    if request.arch is not None and request.profile is None and "-" not in request.arch:
        msg = f"-a is {request.arch!r}, which is a target profile and no arch spec"
        raise UserError(msg, code="bad_option", hint=f"Give --target-profile {request.arch}.")
    if "" not in profile.domains:
        msg = f"the target {profile.name} takes no ONNX"
        raise UserError(msg, code="no_profile", hint="Choose a TensorRT, OpenVINO or ONNX Runtime target.")
    if not re.fullmatch(r"[A-Za-z]\w*", request.namespace) or request.namespace in profile.domains:
        msg = f"--namespace is {request.namespace!r}"
        raise UserError(msg, code="bad_option", hint="A letter, then letters, digits and _; none of the target's own.")
    selectors = parse_selectors(request.plugins)
    parse_dynamic(request.dynamic)
    # Read when torch is loaded: its idle threads must sleep, spinning ones on a shared host cost a hundredfold.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    return profile, selectors


class _Run:
    """One run of prepare; the phases in order, each with what the next ones need."""

    def __init__(
        self,
        request: PrepareRequest,
        paths: OutputPaths,
        profile: TargetProfile,
        staging: Staging,
        selectors: list[Selector],
        on_phase: Callable[[str], None],
    ) -> None:
        self._request = request
        self._selectors = selectors
        self._paths = paths
        self._profile = profile
        self._staging = staging
        self._on_phase = on_phase
        self._noise: tuple[dict[str, Any], ...] = ()
        self._seconds: dict[str, float] = {}
        self._notes: list[str] = []
        self._started: tuple[str, float] | None = None

    def run(self) -> PrepareReport:
        from ytk_client.frontend import fx_nodes, regions
        from ytk_client.frontend.faithful import Samples, export_faithfully
        from ytk_client.frontend.last_look import refuse_losses
        from ytk_client.frontend.opened import open_model

        paths = self._paths
        opened = open_model(self._request, self._profile, self._selectors, self._phase)
        self._notes += opened.notes
        model, carver, names, inputs, truth = opened.model, opened.carver, opened.names, opened.inputs, opened.truth
        # The npz goes first, so that at no moment an ONNX refers to data that is not there yet.
        npz_path, onnx_path = self._staging.path_for(paths.npz), self._staging.path_for(paths.onnx)
        exported = export_faithfully(
            opened.program,
            carver,
            self._profile,
            names,
            Samples(inputs, truth),
            onnx_path=onnx_path,
            npz_path=npz_path,
            model_path=model.path,
            on_phase=self._phase,
        )
        self._notes += refuse_losses(onnx_path, self._profile, names, Samples(inputs, truth))
        if self._request.dynamic:
            write_ranges(onnx_path, parse_dynamic(self._request.dynamic))
        self._noise = tuple(entry.described() for entry in opened.noise)
        if self._noise:
            from ytk_client.frontend.random_inputs import write_description

            write_description(onnx_path, self._noise)
        graph, onnx_names, comparison = exported.graph, exported.onnx_names, exported.comparison
        self._phase("regions", "writing the regions")
        rows, candidates = self._write_regions(carver, model, onnx_names, comparison.first)
        carved = carver.carved
        finished = fx_nodes.finish(
            opened.nodes,
            {name: placeholder for name, (placeholder, _) in carved.items()},
            {name: site for name, (_, site) in carved.items()},
            graph,
        )
        write_fx_nodes(self._staging.path_for(paths.fx_nodes), finished)
        self._phase("torch timing", "timing torch on this host")
        row = self._time_torch(model.path)
        self._phase("write", "writing")
        outputs = [names.pick(sample) for sample in truth]
        self._write_reference(paths.reference, names.inputs, names.outputs, inputs, outputs, row, model.path)
        if self._request.debug_taps:
            self._write_taps(opened, onnx_names, onnx_path, row)
        write_plugins(self._staging.path_for(paths.plugins), rows)
        stale = own_candidate_files(paths, regions.SUFFIXES) | ({paths.candidates} if not candidates else set())
        stale |= {paths.debug_onnx, paths.debug_reference}
        self._staging.commit(sorted(stale))
        self._phase(None, "")
        return PrepareReport(
            rows=tuple(rows),
            candidates=tuple(candidates),
            written=self._written(bool(candidates)),
            profile=self._profile.name,
            opset=graph.opset_imports[""],
            evaluator=comparison.evaluator,
            accuracy=tuple(exported.accuracy),
            notes=tuple(self._notes),
            random_inputs=self._noise,
            seconds=self._seconds,
        )

    # ---- phases --------------------------------------------------------------------------------------------------

    def _phase(self, name: str | None, text: str) -> None:
        now = time.perf_counter()
        if self._started is not None:
            # Export and comparison alternate where the comparison finds something to carve.
            self._seconds[self._started[0]] = self._seconds.get(self._started[0], 0.0) + now - self._started[1]
        self._started = (name, now) if name else None
        if text:
            self._on_phase(text)

    def _write_regions(
        self, carver: Carver, model: LoadedModel, onnx_names: dict[str, str], recording: Recording | None
    ) -> tuple[list[PluginRow], list[Candidate]]:
        from ytk_client.frontend import regions
        from ytk_client.frontend.catalogue import routing

        rows, candidates = routing.shipped_rows(carver.regions), []
        for region in carver.regions:
            if region.shipped is not None:
                continue
            gaia_input = None
            if region.cannot_be_plugin is None and recording is not None:
                staged = [
                    self._staging.path_for(self._paths.candidates_dir / f"{region.name}{suffix}")
                    for suffix in regions.SUFFIXES
                ]
                self._notes += regions.write_region(staged[0].parent, region, recording.sites, model.module)
                gaia_input = f"{self._paths.candidates_dir.name}/{region.name}{regions.SUFFIXES[0]}"
            candidates.append(regions.candidate(region, model, onnx_names, gaia_input))
            rows.append(
                PluginRow(
                    name=region.name,
                    has_plugin=False,
                    placeholder=region.placeholder,
                    gaia_input=gaia_input,
                    sites=len(region.sites),
                    namespace=region.namespace,
                    version=region.version,
                    selector=region.selector,
                )
            )
        if candidates:
            write_candidates(self._staging.path_for(self._paths.candidates), candidates)
        return rows, candidates

    def _time_torch(self, path: Path) -> BenchmarkRow | None:
        from ytk_client.frontend.timing import time_torch

        if self._request.torch_timing_budget_s <= 0:
            return None
        row, problem = time_torch(path, budget_s=self._request.torch_timing_budget_s)
        if problem:
            self._notes.append(f"no torch row in the reference: {problem}")
        return row

    def _write_taps(
        self, opened: OpenedModel, onnx_names: dict[str, str], onnx_path: Path, row: BenchmarkRow | None
    ) -> None:
        """Write the copy of the graph with every plugin boundary as an output, and the reference for it."""
        from ytk_client.frontend.debug_taps import write_debug_graph
        from ytk_client.frontend.recording import record

        paths, names = self._paths, opened.names
        taps = write_debug_graph(onnx_path, self._staging.path_for(paths.debug_onnx))
        if not taps:
            self._notes.append("--debug-taps: the graph has no plugin, so the debug copy has no taps")
        sites = {onnx: fx for fx, onnx in onnx_names.items()}
        outputs = []
        for given, truth in zip(opened.inputs, opened.truth, strict=True):
            found = record(opened.program, given, list(onnx_names)).sites
            records = [(found[sites[tap.node]], tap) for tap in taps]
            values = [(site.inputs if tap.is_input else site.outputs)[tap.index] for site, tap in records]
            outputs.append([*names.pick(truth), *values])
        all_names = [*names.outputs, *(tap.name for tap in taps)]
        self._write_reference(
            paths.debug_reference, names.inputs, all_names, opened.inputs, outputs, row, opened.model.path
        )

    def _write_reference(
        self,
        path: Path,
        input_names: Sequence[str],
        output_names: Sequence[str],
        inputs: Sequence[tuple[torch.Tensor, ...]],
        outputs: Sequence[Sequence[torch.Tensor]],
        row: BenchmarkRow | None,
        model_path: Path,
    ) -> None:
        import platform

        import torch

        from ytk_client.frontend.tensors import to_storage

        samples = tuple(
            Sample(
                inputs={name: to_storage(tensor) for name, tensor in zip(input_names, given, strict=True)},
                outputs={name: to_storage(tensor) for name, tensor in zip(output_names, wanted, strict=True)},
            )
            for given, wanted in zip(inputs, outputs, strict=True)
        )
        info = {
            "torch": str(torch.__version__),
            "model": str(model_path),
            "host": platform.platform(),
            "threads": torch.get_num_threads(),
            "seed": self._request.seed,
            "target_profile": self._profile.name,
            **({"random_inputs": list(self._noise)} if self._noise else {}),
        }
        reference = Reference(
            inputs=_infos(input_names, inputs),
            outputs=_infos(output_names, outputs),
            samples=samples,
            torch_benchmark=row,
            info=info,
        )
        write_reference(self._staging.path_for(path), reference)

    def _written(self, has_regions: bool) -> tuple[Path, ...]:
        paths = self._paths
        written: tuple[Path, ...] = (paths.onnx, paths.npz, paths.reference, paths.plugins, paths.fx_nodes)
        if self._request.debug_taps:
            written += (paths.debug_onnx, paths.debug_reference)
        return (*written, paths.candidates_dir) if has_regions else written


def _infos(names: Sequence[str], samples: Sequence[Sequence[torch.Tensor]]) -> tuple[TensorInfo, ...]:
    """Describe tensors; an extent that differs between samples is None (data-dependent outputs)."""
    from ytk_client.frontend.tensors import dtype_of

    infos = []
    for index, name in enumerate(names):
        shapes = [tuple(sample[index].shape) for sample in samples]
        shape = tuple(extents[0] if len(set(extents)) == 1 else None for extents in zip(*shapes, strict=True))
        infos.append(TensorInfo(name=name, dtype=dtype_of(samples[0][index]), shape=shape))
    return tuple(infos)
