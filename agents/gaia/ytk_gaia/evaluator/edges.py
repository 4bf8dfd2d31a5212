"""What a contract says, tried at its edge and just outside of it.

Two kinds of call. One that the contract *excludes* (another extent, divisor, rank, type, layout, number of tensors) must be refused
with a status, before anything is written: the engine's own check may be missing or late, and a kernel that takes what it was not made
for reads and writes beside its buffers. One that the contract leaves *free* (fewer threads than usual), or that a kernel need not be
able to do (buffers less aligned than it asks for, less workspace), must be refused or give right answers.

At the edges of dynamic ranges themselves the task has samples (:mod:`ytk_gaia.generator.extents`), which are judged by their values;
outside of them see :mod:`.ranges`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ytk_core.dtypes import ONNX_NUMBER, DType, itemsize
from ytk_core.formats.plugin_meta import BY_HAND, FORMAT_NUMBER, Format, PluginMeta
from ytk_gaia.evaluator.compare import judge_sample
from ytk_gaia.evaluator.session import Attempt, CandidateFaultError, Change, Session
from ytk_gaia.evaluator.track import Track
from ytk_gaia.evaluator.verdicts import Verdict
from ytk_gaia.task_format import Task, TaskSpec

# Of the same size where there is one: who takes it harms nothing yet.
_OTHER_TYPE = {
    DType.FLOAT32: DType.INT32,
    DType.INT32: DType.FLOAT32,
    DType.FLOAT64: DType.INT64,
    DType.INT64: DType.FLOAT64,
    DType.FLOAT16: DType.BFLOAT16,
    DType.BFLOAT16: DType.FLOAT16,
    DType.INT8: DType.UINT8,
    DType.UINT8: DType.INT8,
    DType.BOOL: DType.INT8,
}


@dataclass(frozen=True)
class Excluded:
    """A call that the contract excludes: ``what`` the launcher was given, ``declared`` what it should have been, who takes it gets ``verdict``."""

    change: Change
    what: str
    declared: str
    verdict: Verdict = Verdict.WRONG_SHAPE


def excluded(meta: PluginMeta, spec: TaskSpec, variant: int = 0) -> Iterator[Excluded]:
    """Give the calls that a contract excludes.

    Args:
        meta: The contract.
        spec: The task, for the captured shapes.
        variant: The one that is called.
    """
    yield from _extents(meta, spec)
    nin, nout = len(meta.inputs), len(meta.outputs)
    yield Excluded(Change(inputs_less=1), f"{nin - 1} inputs", f"declared with {nin}")
    yield Excluded(Change(outputs_less=1), f"{nout - 1} outputs", f"declared with {nout}")
    types = meta.variants[variant]
    for kind, declared, tensors in (("in", types.inputs, spec.inputs), ("out", types.outputs, spec.outputs)):
        for index, (each, tensor) in enumerate(zip(declared, tensors, strict=True)):
            name = f"{kind}put {index}"
            other = _OTHER_TYPE.get(each.dtype)
            if other is not None:
                fields = ((kind, index, "dtype", 0, ONNX_NUMBER[other]),)
                yield Excluded(Change(fields), f"{name} as {other}", f"declared as {each.dtype}", Verdict.WRONG_DTYPE)
            layout = Format.HWC8 if each.format is Format.LINEAR else Format.LINEAR
            fields = ((kind, index, "format", 0, FORMAT_NUMBER[layout]),)
            yield Excluded(Change(fields), f"{name} in {layout}", f"declared {each.format}", Verdict.WRONG_DTYPE)
            rank = len(tensor.shape)
            wrong = rank - 1 if rank else 1
            fields = ((kind, index, "rank", 0, wrong),)
            yield Excluded(Change(fields), f"{name} with rank {wrong}", f"declared with rank {rank}")
    if len(meta.variants) > 1:
        count = len(meta.variants)
        yield Excluded(Change(variant=count), f"variant {count}", f"declared with {count}", Verdict.WRONG_DTYPE)


def _extents(meta: PluginMeta, spec: TaskSpec) -> Iterator[Excluded]:
    def at(kind: str, index: int, axis: int, extent: int, declared: str) -> Excluded:
        what = f"{kind}put {index} with {extent} along axis {axis}"
        return Excluded(Change(((kind, index, "dims", axis, extent),)), what, declared)

    fixed = {(c.input, c.axis): c.extent for c in meta.constant_axes}
    for index, (decl, tensor) in enumerate(zip(meta.inputs, spec.inputs, strict=True)):
        for axis, dim in enumerate(decl.dims):
            extent = fixed.get((index, axis)) if dim is None else dim
            if extent is not None:
                for other in (extent - 1, extent + 1):  # the smaller first: taking it harms nothing yet
                    if other >= 0:
                        yield at("in", index, axis, other, f"declared as {extent}")
            elif tensor.shape[axis] >= 0:
                yield at("in", index, axis, -1, "declared as any extent, which is no negative number")
    for index, axis, divisor in meta.constraints.divisible:
        extent = spec.inputs[index].shape[axis]
        if divisor > 1 and meta.inputs[index].dims[axis] is None and extent > 0:
            yield at("in", index, axis, extent - 1, f"declared divisible by {divisor}")
    for index, output in enumerate(spec.outputs):
        for axis, extent in enumerate(output.shape):
            if extent > 0:
                text = meta.outputs[index].shape[axis]
                yield at("out", index, axis, extent - 1, f"declared as {text}, which is {extent}")


@dataclass(frozen=True)
class Free:
    """A call that a kernel may refuse, unless ``must`` take it; where it takes it, the outputs have to be right."""

    change: Change
    what: str
    must: bool = False


def free(meta: PluginMeta, spec: TaskSpec, threads: int, workspace_bytes: int) -> Iterator[Free]:
    """Give the calls that need not be taken.

    Args:
        meta: The contract.
        spec: The task.
        threads: With how many it is judged.
        workspace_bytes: What it asked for.
    """
    for other in sorted({1, 3} - {threads}):
        yield Free(
            Change(threads=other), f"with {other} thread{'s' if other > 1 else ''} instead of {threads}", must=True
        )
    asked = meta.constraints.alignment_bytes
    # Less aligned than an element is nothing that an engine does.
    if asked // 2 >= max(itemsize(t.dtype) for t in (*spec.inputs, *spec.outputs)):
        yield Free(Change(shift=asked // 2), f"with buffers aligned to {asked // 2} bytes, declared are {asked}")
    if workspace_bytes:
        less = f"with {workspace_bytes - 1} bytes of workspace, it asked for {workspace_bytes}"
        yield Free(Change(workspace_less=1), less)


def check_edges(session: Session, track: Track, task: Task) -> None:
    """Call a candidate at the edges of its contract and just outside.

    A kernel that was written by hand is only called as its contract allows.

    Raises:
        CandidateFaultError: It took what it excludes (WRONG_SHAPE, WRONG_DTYPE), was wrong where it need not have been able to do
            it (WRONG_VALUE), used workspace that it was not given (OUT_OF_BOUNDS), or misbehaved in one of these calls; the reason
            names the edge.
    """
    assert track.bundle is not None
    meta, sample = track.bundle.meta, task.spec.groups()[0][0]
    # Its author was promised that the plugin's table checks the call before it (`ytk kernelgen skeleton`).
    by_hand = meta.generator.strategy == BY_HAND
    for each in () if by_hand else excluded(meta, task.spec, track.variant):
        found = _attempt(session, task, sample, each.change, f"given {each.what}, {each.declared}")
        if found.status == 0:
            text = f"it took {each.what}, {each.declared}: a launcher refuses what its contract excludes"
            raise CandidateFaultError(each.verdict, text)
        check_untouched(found, f"given {each.what}, {each.declared}")
    for way in free(meta, task.spec, session.threads, session.workspace_bytes):
        if by_hand and not way.must:
            continue
        found = _attempt(session, task, sample, way.change, way.what)
        if found.status == 0:
            _check_right(found, task, sample, way.what)
        elif found.tried and way.must:
            raise CandidateFaultError(Verdict.RUNTIME_ERROR, f"{way.what}: launch returned {found.status}")
        elif found.tried:
            check_untouched(found, way.what)


def _attempt(session: Session, task: Task, sample: int, change: Change, what: str) -> Attempt:
    try:
        return session.attempt(task.samples[sample].inputs, change)
    except CandidateFaultError as fault:
        raise CandidateFaultError(fault.verdict, f"{what}: {fault.reason}") from fault


def check_untouched(found: Attempt, what: str) -> None:
    """Check that a launcher that refused had written nothing.

    Raises:
        CandidateFaultError: WRONG_SHAPE: it had.
    """
    if found.touched:
        text = f"{what}: it refused with {found.status}, but had written to {found.touched} before"
        raise CandidateFaultError(Verdict.WRONG_SHAPE, text)


def _check_right(found: Attempt, task: Task, sample: int, what: str) -> None:
    if found.beyond:
        raise CandidateFaultError(Verdict.OUT_OF_BOUNDS, f"{what}: it wrote to workspace that it was not given")
    comparison = judge_sample(task, sample, found.outputs)
    if not comparison.right:
        raise CandidateFaultError(Verdict.WRONG_VALUE, f"{what}: {comparison.where}")
