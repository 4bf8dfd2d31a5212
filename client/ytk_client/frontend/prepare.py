"""``prepare``: from ``model.py`` to ONNX, weights, reference and the regions that need a generated kernel.

Nothing heavy is imported before :func:`prepare` runs.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ytk_core.dtypes import DType
from ytk_core.errors import ToolkitError, UserError
from ytk_core.formats.benchmark import BenchmarkRow
from ytk_core.formats.prepare_outputs import Candidate, PluginRow, write_candidates, write_fx_nodes, write_plugins
from ytk_core.formats.reference import Reference, Sample, TensorInfo, write_reference
from ytk_core.formats.verify_report import OutputAccuracy

from ytk_client.frontend.artifacts import OutputPaths, Staging, disk_errors, own_candidate_files

if TYPE_CHECKING:
    import torch
    from ytk_core.targets import TargetProfile

    from ytk_client.frontend.carve import Carver
    from ytk_client.frontend.growth import Border
    from ytk_client.frontend.load_model import LoadedModel
    from ytk_client.frontend.naming import BorderNames
    from ytk_client.frontend.recording import Recording

DEFAULT_NAMESPACE = "yasp"


@dataclass(frozen=True, kw_only=True)
class PrepareRequest:
    """What to prepare and where to write it.

    ``arch`` or ``profile`` choose the target (an arch spec, or a profile name such as ``trt86``); neither means
    :data:`ytk_core.targets.DEFAULT_PROFILE`, the strictest. ``torch_timing_budget_s`` of 0 leaves the torch row out of the reference.
    """

    model: Path
    onnx_out: Path
    npz_out: Path
    reference_out: Path
    arch: str | None = None
    profile: str | None = None
    namespace: str = DEFAULT_NAMESPACE
    samples: int = 3
    seed: int = 0
    torch_timing_budget_s: float = 2.0


@dataclass(frozen=True, kw_only=True)
class PrepareReport:
    """What prepare found and wrote.

    ``accuracy`` has one verdict per sample for each graph output and each value that enters a region; ``seconds`` the
    duration of each phase.
    """

    rows: tuple[PluginRow, ...]
    candidates: tuple[Candidate, ...]
    written: tuple[Path, ...]
    profile: str
    opset: int
    evaluator: str
    accuracy: tuple[OutputAccuracy, ...]
    notes: tuple[str, ...] = ()
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
    if request.samples < 1:
        raise UserError(
            f"--samples is {request.samples}", code="bad_option", hint="At least 1: the model's own example inputs."
        )
    from ytk_core.targets import DEFAULT_PROFILE, load_profile

    profile = load_profile(request.profile or request.arch or DEFAULT_PROFILE)
    if "" not in profile.domains:
        msg = f"the target {profile.name} takes no ONNX"
        raise UserError(msg, code="no_profile", hint="Choose a TensorRT, OpenVINO or ONNX Runtime target.")
    if not re.fullmatch(r"[A-Za-z]\w*", request.namespace) or request.namespace in profile.domains:
        msg = f"--namespace is {request.namespace!r}"
        raise UserError(msg, code="bad_option", hint="A letter, then letters, digits and _; none of the target's own.")
    # Read when torch is loaded: its idle threads must sleep, spinning ones on a shared host cost a hundredfold.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    with disk_errors(paths), Staging() as staging:
        return _Run(request, paths, profile, staging, on_phase).run()


class _Run:
    """One run of prepare; the phases in order, each with what the next ones need."""

    def __init__(
        self,
        request: PrepareRequest,
        paths: OutputPaths,
        profile: TargetProfile,
        staging: Staging,
        on_phase: Callable[[str], None],
    ) -> None:
        self._request = request
        self._paths = paths
        self._profile = profile
        self._staging = staging
        self._on_phase = on_phase
        self._seconds: dict[str, float] = {}
        self._notes: list[str] = []
        self._started: tuple[str, float] | None = None

    def run(self) -> PrepareReport:
        from ytk_client.frontend import export as exporting
        from ytk_client.frontend import fx_nodes, regions, torch_adapter
        from ytk_client.frontend.capture import capture
        from ytk_client.frontend.carve import Carver
        from ytk_client.frontend.comparison import Comparison
        from ytk_client.frontend.load_model import load_model
        from ytk_client.frontend.samples import reference_inputs
        from ytk_client.frontend.weights import write_model

        request, paths = self._request, self._paths
        self._phase("load", f"loading {request.model}")
        model = load_model(request.model)
        inputs = reference_inputs(model.flat_args, count=request.samples, seed=request.seed)
        truth = [self._flat_outputs(model, sample) for sample in inputs]
        self._phase("capture", "capturing the model")
        program = torch_adapter.decompose(capture(model))
        self._refuse_mutation(program)
        names = self._border_names(program, model)
        torch_adapter.drop_constant_outputs(program)
        nodes = fx_nodes.snapshot(program, model.path)
        self._phase("export", f"exporting for {self._profile.name}")
        carver = Carver(
            program,
            namespace=request.namespace,
            is_builtin=self._profile.is_builtin,
            border=_border(self._profile),
            can_vary=regions.can_vary,
        )
        graph = exporting.export(program, carver, self._profile)
        exporting.name_borders(graph, names.inputs, names.outputs)
        onnx_names = exporting.annotate(graph, carver)
        exporting.strip_graph_metadata(graph)
        # The npz goes first, so that at no moment an ONNX refers to data that is not there yet.
        npz_path, onnx_path = self._staging.path_for(paths.npz), self._staging.path_for(paths.onnx)
        write_model(graph, onnx_path, npz_path)
        self._phase("compare", "comparing the exported graph with torch")
        comparison = Comparison(program, carver, onnx_path, names, onnx_names)
        accuracy = comparison.run(inputs, truth, model.path)
        self._phase("regions", "writing the regions")
        rows, candidates = self._write_regions(carver, model, onnx_names, comparison.first)
        carved = carver.carved
        finished = fx_nodes.finish(
            nodes,
            {name: placeholder for name, (placeholder, _) in carved.items()},
            {name: site for name, (_, site) in carved.items()},
            graph,
        )
        write_fx_nodes(self._staging.path_for(paths.fx_nodes), finished)
        self._phase("torch timing", "timing torch on this host")
        row = self._time_torch(model.path)
        self._phase("write", "writing")
        self._write_reference(names, inputs, truth, row, model.path)
        write_plugins(self._staging.path_for(paths.plugins), rows)
        stale = own_candidate_files(paths, regions.SUFFIXES) | ({paths.candidates} if not rows else set())
        self._staging.commit(sorted(stale))
        self._phase(None, "")
        return PrepareReport(
            rows=tuple(rows),
            candidates=tuple(candidates),
            written=self._written(bool(rows)),
            profile=self._profile.name,
            opset=graph.opset_imports[""],
            evaluator=comparison.evaluator,
            accuracy=tuple(accuracy),
            notes=tuple(self._notes),
            seconds=self._seconds,
        )

    # ---- phases --------------------------------------------------------------------------------------------------

    def _phase(self, name: str | None, text: str) -> None:
        now = time.perf_counter()
        if self._started is not None:
            self._seconds[self._started[0]] = now - self._started[1]
        self._started = (name, now) if name else None
        if text:
            self._on_phase(text)

    def _flat_outputs(self, model: LoadedModel, sample: tuple[torch.Tensor, ...]) -> list[torch.Tensor | None]:
        """Run the model; tensors in flattened order, None for an output that is no tensor."""
        import torch

        from ytk_client.frontend.torch_adapter import flatten_output

        leaves = flatten_output(model.call(sample))
        if not any(isinstance(leaf, torch.Tensor) for leaf in leaves):
            kinds = ", ".join(sorted({type(leaf).__name__ for leaf in leaves})) or "nothing"
            msg = f"forward() in {model.path} returned no tensor but {kinds}"
            raise UserError(msg, code="model_bad_output", hint="Return a tensor, or a tuple or dict of tensors.")
        return [leaf.detach() if isinstance(leaf, torch.Tensor) else None for leaf in leaves]

    @staticmethod
    def _refuse_mutation(program: torch.export.ExportedProgram) -> None:
        from ytk_client.frontend.torch_adapter import mutated_names

        mutated = mutated_names(program)
        if mutated:
            msg = f"forward() writes to {', '.join(mutated)}: an engine keeps no state between calls"
            hint = "Pass the state in and return it as an output, or compute with a copy (x = x.clone())."
            raise UserError(msg, code="model_mutates_state", hint=hint)

    def _border_names(self, program: torch.export.ExportedProgram, model: LoadedModel) -> BorderNames:
        from ytk_client.frontend import torch_adapter
        from ytk_client.frontend.naming import BorderNames, output_names

        values = torch_adapter.user_output_names(program)
        paths = torch_adapter.output_paths(program.call_spec.out_spec)
        kept = [index for index, value in enumerate(values) if value is not None]
        if len(kept) < len(values):
            lost = ["/".join(map(str, paths[index])) for index in range(len(values)) if index not in kept]
            self._notes.append(f"outputs that are no tensors are left out: {', '.join(lost)}")
        inputs = torch_adapter.user_input_names(program)
        if len(inputs) != len(model.flat_args):
            msg = f"the program has inputs {inputs}, the model was given {len(model.flat_args)} tensors"
            raise ToolkitError(msg, code="input_mismatch")
        outputs = output_names([paths[index] for index in kept], inputs)
        return BorderNames(inputs, outputs, kept)

    def _write_regions(
        self, carver: Carver, model: LoadedModel, onnx_names: dict[str, str], recording: Recording | None
    ) -> tuple[list[PluginRow], list[Candidate]]:
        from ytk_client.frontend import regions

        rows, candidates = [], []
        for region in carver.regions:
            gaia_input = None
            if region.cannot_be_plugin is None and recording is not None:
                staged = [
                    self._staging.path_for(self._paths.candidates_dir / f"{region.name}{suffix}")
                    for suffix in regions.SUFFIXES
                ]
                regions.write_region(staged[0].parent, region, recording.sites, model.module)
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
                )
            )
        if rows:
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

    def _write_reference(
        self,
        names: BorderNames,
        inputs: Sequence[tuple[torch.Tensor, ...]],
        truth: Sequence[list[torch.Tensor | None]],
        row: BenchmarkRow | None,
        model_path: Path,
    ) -> None:
        import platform

        import torch

        from ytk_client.frontend.tensors import to_storage

        outputs = [names.pick(sample) for sample in truth]
        samples = tuple(
            Sample(
                inputs={name: to_storage(tensor) for name, tensor in zip(names.inputs, given, strict=True)},
                outputs={name: to_storage(tensor) for name, tensor in zip(names.outputs, wanted, strict=True)},
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
        }
        reference = Reference(
            inputs=_infos(names.inputs, inputs),
            outputs=_infos(names.outputs, outputs),
            samples=samples,
            torch_benchmark=row,
            info=info,
        )
        write_reference(self._staging.path_for(self._paths.reference), reference)

    def _written(self, has_regions: bool) -> tuple[Path, ...]:
        paths = self._paths
        written = (paths.onnx, paths.npz, paths.reference, paths.plugins, paths.fx_nodes)
        return (*written, paths.candidates_dir) if has_regions else written


def _border(profile: TargetProfile) -> Border:
    """Give what a target passes to plugins: its own types, and those that it stores in one of its own."""
    from ytk_client.frontend.growth import MAX_PLUGIN_RANK, Border

    dtypes = frozenset(dtype for dtype in DType if profile.narrowed.get(dtype, dtype) in profile.dtypes)
    return Border(dtypes, min(profile.max_rank or MAX_PLUGIN_RANK, MAX_PLUGIN_RANK))


def _infos(names: Sequence[str], samples: Sequence[Sequence[torch.Tensor]]) -> tuple[TensorInfo, ...]:
    """Describe tensors; an extent that differs between samples is None (data-dependent outputs)."""
    from ytk_client.frontend.tensors import dtype_of

    infos = []
    for index, name in enumerate(names):
        shapes = [tuple(sample[index].shape) for sample in samples]
        shape = tuple(extents[0] if len(set(extents)) == 1 else None for extents in zip(*shapes, strict=True))
        infos.append(TensorInfo(name=name, dtype=dtype_of(samples[0][index]), shape=shape))
    return tuple(infos)
