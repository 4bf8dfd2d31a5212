"""Take one call of an operator through the frontend, and judge the result without the frontend's own comparison."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import torch
from torch.utils import _pytree as pytree

from ytk_client.frontend import captured, faithful, last_look, load_model, regions, steps
from ytk_client.frontend.capture import capture
from ytk_client.frontend.carve import CarvedRegion, Carver
from ytk_client.frontend.growth import border_of
from ytk_client.frontend.load_model import LoadedModel
from ytk_client.frontend.recording import SiteRecord
from ytk_client.frontend.rewrites import rewrite
from ytk_core.errors import ToolkitError, UserError, YtkError
from ytk_core.formats.plugin_meta import (
    SCHEMA_VERSION,
    DeploymentTarget,
    Generator,
    InputDecl,
    Launcher,
    OutputDecl,
    PluginMeta,
    TensorType,
    Tolerance,
    Variant,
)
from ytk_core.formats.plugin_meta_checks import validate
from ytk_core.targets import TargetProfile

from conformance.outcome import Outcome, RegionFinding, SampleFinding

# Those of the plain exporter's sweep, so that the figures can be compared.
_TOLERANCE = {torch.float64: (1e-6, 1e-5), torch.float16: (1e-2, 1e-2), torch.bfloat16: (5e-2, 5e-2)}
_FLOAT32_TOLERANCE = (1e-4, 1e-3)
_ROUNDING = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
"""Half types only: torch rounds sums in them, so elements that nearly cancel differ by roundings of the largest."""


class Call(torch.nn.Module):
    """A function with its arguments as a module: tensors are inputs, everything else is part of the graph."""

    def __init__(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self._function = function
        leaves, self._spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
        self._leaves = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self._places = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self.tensors = tuple(leaves[index].detach().clone() for index in self._places)

    def forward(self, *tensors: torch.Tensor) -> Any:
        leaves = list(self._leaves)
        for index, tensor in zip(self._places, tensors, strict=True):
            leaves[index] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        return self._function(*args, **kwargs)


@dataclass(frozen=True)
class _Prepared:
    exported: faithful.FaithfulExport
    carver: Carver
    names: Any
    inputs: tuple[torch.Tensor, ...]
    truth: list[torch.Tensor]
    onnx_path: Path


def examine(module: torch.nn.Module, tensors: tuple[torch.Tensor, ...], profile: TargetProfile) -> SampleFinding:
    """Give what becomes of a module on its inputs; never raises for anything the frontend does.

    What is refused since it draws random numbers is examined again with ``--random-inputs``, and marked.

    Args:
        module: In the mode that is meant; it need not be deterministic.
        tensors: Its inputs.
        profile: The target.
    """
    start = time.process_time()
    shapes = ", ".join(f"{str(each.dtype).removeprefix('torch.')}{list(each.shape)}" for each in tensors)
    finding = _ending(module, tensors, profile, noisy=False)
    random = finding.code == "random_draw"
    if random:
        finding = _ending(module, tensors, profile, noisy=True)
    spent = round(time.process_time() - start, 3)
    return msgspec.structs.replace(finding, inputs=shapes, random=random, cpu_s=spent)


def _ending(
    module: torch.nn.Module, tensors: tuple[torch.Tensor, ...], profile: TargetProfile, *, noisy: bool
) -> SampleFinding:
    """Examine in a folder of its own, and turn what is raised into an outcome."""
    with tempfile.TemporaryDirectory(prefix="ytk-conformance-") as scratch:
        try:
            return _examine(module, tensors, profile, Path(scratch), noisy=noisy)
        except ToolkitError as err:
            return _ended(Outcome.CRASH, err)
        except YtkError as err:
            blocked = err.code in {"capture_blocked", "model_forward_failed"}
            return _ended(Outcome.BLOCKED if blocked else Outcome.REFUSED, err)
        except Exception as err:  # noqa: BLE001 - what is no error of ours is what is looked for
            return SampleFinding(outcome=Outcome.CRASH, code=type(err).__name__, reason=plain_words(str(err)))


def _examine(
    module: torch.nn.Module, tensors: tuple[torch.Tensor, ...], profile: TargetProfile, folder: Path, *, noisy: bool
) -> SampleFinding:
    model = LoadedModel(Path(__file__), module, tensors, {})
    prepared = _prepare(model, profile, folder, noisy=noisy)
    found = {"opset": prepared.exported.graph.opset_imports[""], "evaluator": prepared.exported.comparison.evaluator}
    if prepared.carver.regions:
        return _carved(prepared, found)
    wrong, reason = judge_native(prepared.onnx_path, prepared.names, prepared.inputs, prepared.truth)
    if reason:
        return SampleFinding(outcome=Outcome.WRONG if wrong else Outcome.CRASH, code="judge", reason=reason, **found)
    return SampleFinding(outcome=Outcome.NATIVE, **found)


def _ended(outcome: Outcome, error: YtkError) -> SampleFinding:
    return SampleFinding(outcome=outcome, code=error.code, reason=plain_words(error.message))


def plain_words(text: str) -> str:
    """Take out of a message what is different on every run: folders."""
    return re.sub(r"(?:/[^\s/:]+)+/(?=[^\s/]+\.(?:py|onnx|cpp)\b)", "", text)[:300]


def _prepare(model: LoadedModel, profile: TargetProfile, folder: Path, *, noisy: bool) -> _Prepared:
    """Do what prepare does, up to the written graph and its comparison with torch."""
    torch.manual_seed(0)
    for tensor in model.flat_args:
        load_model.check_leaf(tensor, "the call takes")
    steps.flat_outputs(model, model.flat_args)
    border = border_of(profile)
    lowered = captured.lower(capture(model), model, [model.flat_args], noisy=noisy, border=border)
    names = lowered.names
    rewrite(lowered.program, profile)
    carver = Carver(
        lowered.program,
        namespace="yasp",
        is_builtin=profile.is_builtin,
        border=border,
        can_vary=regions.can_vary,
    )
    exported = faithful.export_faithfully(
        lowered.program,
        carver,
        profile,
        names,
        faithful.Samples(lowered.inputs, lowered.truth),
        onnx_path=folder / "model.onnx",
        npz_path=folder / "model.npz",
        model_path=model.path,
    )
    last_look.refuse_losses(folder / "model.onnx", profile, names, faithful.Samples(lowered.inputs, lowered.truth))
    truth = names.pick(lowered.truth[0])
    return _Prepared(exported, carver, names, lowered.inputs[0], truth, folder / "model.onnx")


def judge_native(
    onnx_path: Path, names: Any, tensors: Sequence[torch.Tensor], truth: Sequence[torch.Tensor]
) -> tuple[bool, str]:
    """Run a written graph in ONNX Runtime and compare: (values differ, what is wrong); ``""`` if all agree."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(str(_runnable(onnx_path)), options, providers=["CPUExecutionProvider"])
        wanted = {value.name for value in session.get_inputs()}
        feeds = {name: _array(_plain(each)) for name, each in zip(names.inputs, tensors, strict=True) if name in wanted}
        results = session.run(list(names.outputs), feeds)
    except Exception as err:  # noqa: BLE001 - it raises classes of its own without a common base
        return False, f"onnxruntime: {str(err).splitlines()[0][:250]}"
    for name, got, want in zip(names.outputs, results, truth, strict=True):
        array = np.asarray(got)
        if want.dtype is torch.bfloat16:
            array = array.astype(_array(want).dtype)
        problem = difference(array, want)
        if problem:
            return True, f"{name}: {problem}"
    return True, ""


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype is torch.bfloat16 else tensor


def _runnable(onnx_path: Path) -> Path:
    """Give the file, or a copy that takes and gives float32 where it had bfloat16, which cannot cross ONNX Runtime's Python."""
    model = onnx.load(str(onnx_path), load_external_data=False)
    graph, kind = model.graph, onnx.TensorProto
    changed = False
    for values, given in ((graph.input, True), (graph.output, False)):
        for value in values:
            if value.type.tensor_type.elem_type != kind.BFLOAT16:
                continue
            changed = True
            value.type.tensor_type.elem_type = kind.FLOAT
            inner = f"{value.name}_bfloat16"
            for node in graph.node:
                ports = node.input if given else node.output
                ports[:] = [inner if name == value.name else name for name in ports]
                if not given:
                    node.input[:] = [inner if name == value.name else name for name in node.input]
            if given:
                graph.node.insert(0, onnx.helper.make_node("Cast", [value.name], [inner], to=kind.BFLOAT16))
            else:
                graph.node.append(onnx.helper.make_node("Cast", [inner], [value.name], to=kind.FLOAT))
    if not changed:
        return onnx_path
    copy = onnx_path.with_name("judged.onnx")
    copy.write_bytes(model.SerializeToString())
    return copy


def _array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if plain.dtype is torch.bfloat16:
        import ml_dtypes

        return plain.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return plain.numpy()


def difference(got: np.ndarray[Any, Any], tensor: torch.Tensor) -> str:
    """Say how an array differs from what torch gives, ``""`` if it does not: shape, dtype, and values by dtype."""
    want = _array(tensor)
    if got.dtype != want.dtype:
        return f"{got.dtype} instead of {want.dtype}"
    if got.shape != want.shape:
        return f"shape {got.shape} instead of {want.shape}"
    if not tensor.is_floating_point():
        return "" if np.array_equal(got, want) else "other integers"
    atol, rtol = _TOLERANCE.get(tensor.dtype, _FLOAT32_TOLERANCE)
    a, b = got.astype(np.float64), want.astype(np.float64)
    largest = float(np.abs(b, where=np.isfinite(b), out=np.zeros_like(b)).max(initial=0.0))
    atol = max(atol, 4 * _ROUNDING.get(tensor.dtype, 0.0) * largest)
    if np.allclose(a, b, atol=atol, rtol=rtol, equal_nan=True):
        return ""
    with np.errstate(invalid="ignore"):
        gap = np.nanmax(np.abs(a - b), initial=0.0)
    return f"values differ by {gap:.3g}"


# ---- regions ---------------------------------------------------------------------------------------------------------


def _carved(prepared: _Prepared, found: dict[str, Any]) -> SampleFinding:
    recording = prepared.exported.comparison.first
    if recording is None:
        return SampleFinding(
            outcome=Outcome.CRASH, code="no_recording", reason="regions, but nothing recorded", **found
        )
    findings = tuple(_region(region, recording.sites) for region in prepared.carver.regions)
    obstacle = next((each for each in findings if each.obstacle), None)
    differing = next((each for each in findings if each.difference), None)
    if differing is not None:
        reason = f"{differing.name}: {differing.difference}"
        return SampleFinding(outcome=Outcome.WRONG, code="region_differs", reason=reason, regions=findings, **found)
    if obstacle is not None:
        reason = f"{obstacle.name}: {obstacle.obstacle}"
        return SampleFinding(outcome=Outcome.REFUSED, code="no_plugin", reason=reason, regions=findings, **found)
    return SampleFinding(outcome=Outcome.CARVED, regions=findings, **found)


def _region(region: CarvedRegion, records: dict[str, SiteRecord]) -> RegionFinding:
    obstacle = region.cannot_be_plugin or contract_problem(region)
    return RegionFinding(
        name=region.name,
        aten_op=region.aten_op,
        reason=str(region.refusal.reason),
        rule=region.refusal.rule,
        obstacle=obstacle,
        difference="" if obstacle else _reproduction_problem(region, records),
    )


def contract_problem(region: CarvedRegion) -> str:
    """Write the contract that a kernel for a region would have, and give the checks' objection to it."""
    spec = regions.region_spec(region)
    meta = PluginMeta(
        schema_version=SCHEMA_VERSION,
        plugin_namespace=region.namespace,
        plugin_name=region.name,
        plugin_version=region.version,
        deployment_target=DeploymentTarget.CPU,
        inputs=[
            InputDecl(name=each.name, rank=len(each.shape), dims=list(each.shape), role=each.role)
            for each in spec.inputs
        ],
        outputs=[
            OutputDecl(name=each.name, rank=len(each.shape), shape=[str(extent) for extent in each.shape])
            for each in spec.outputs
        ],
        variants=[
            Variant(
                id="captured",
                inputs=[TensorType(dtype=each.dtype) for each in spec.inputs],
                outputs=[TensorType(dtype=each.dtype) for each in spec.outputs],
            )
        ],
        launcher=Launcher(),
        tolerance=Tolerance(rtol=1e-3, atol=1e-5, source="default"),
        generator=Generator(name="conformance", version="1", strategy="none"),
        region_digest=spec.digest,
    )
    try:
        validate(meta)
    except UserError as err:
        return err.message
    return ""


def _reproduction_problem(region: CarvedRegion, records: dict[str, SiteRecord]) -> str:
    """Export each site's region on its own, as for kernel generation, and run that on what entered the site."""
    for site in region.sites:
        record = records[site.node]
        spec = regions.region_spec(region)
        program = regions.export_body(region.body, record.inputs, [each.dynamic_axes for each in spec.inputs])
        with torch.no_grad():
            results = program.module()(*record.inputs)
        for index, (got, want) in enumerate(zip(pytree.tree_leaves(results), record.outputs, strict=True)):
            problem = difference(_array(got), want)
            if problem:
                return f"output {index} at {site.node}: {problem}"
    return ""
