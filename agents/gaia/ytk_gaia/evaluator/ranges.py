"""Just outside a dynamic range: a kernel may take more than it promises, but it keeps to its memory, or refuses.

Nobody knows what is right there: the region was not computed at such an extent. So the buffers have the size that the contract's own
expressions give for it, and a kernel that takes the call is watched for what it touches. The engine's check keeps such calls away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import msgspec
import numpy as np

from ytk_core.dtypes import storage_dtype
from ytk_core.errors import UserError
from ytk_core.formats import shape_expr
from ytk_core.formats.plugin_meta import PluginMeta
from ytk_gaia.evaluator.edges import check_untouched
from ytk_gaia.evaluator.session import CandidateFaultError, Change, Session
from ytk_gaia.evaluator.track import Track
from ytk_gaia.task_format import FLOATS, Task, TaskSpec

Array = np.ndarray[Any, Any]


def outside(meta: PluginMeta, spec: TaskSpec) -> Iterator[tuple[str, TaskSpec]]:
    """Give the shapes one step below and above what a contract promises, and what that is in words.

    Axes that have one range and are equal in every sample are one extent, and change together. Where there is more than one extent,
    they may depend on one another in a way that no contract says: then nothing is given.
    """
    seen = [spec.at(group[0]) for group in spec.groups()]
    tied = {(e.min, e.max, *(each.inputs[e.input].shape[e.axis] for each in seen)) for e in meta.extents}
    if len(tied) != 1:
        return
    low, high = next(iter(tied))[:2]
    for extent in (low - 1, high + 1):
        if extent < 1:
            continue  # an engine computes nothing that is empty
        dims = [list(t.shape) for t in spec.inputs]
        for each in meta.extents:
            dims[each.input][each.axis] = extent
        try:
            shapes = [tuple(shape_expr.evaluate(expr, dims) for expr in output.shape) for output in meta.outputs]
        except UserError:
            continue
        places = ", ".join(f"input {e.input} axis {e.axis}" for e in meta.extents)
        inputs = tuple(msgspec.structs.replace(t, shape=tuple(d)) for t, d in zip(spec.inputs, dims, strict=True))
        outputs = tuple(msgspec.structs.replace(t, shape=s) for t, s in zip(spec.outputs, shapes, strict=True))
        text = f"with {extent} at {places}, outside of its range {low} to {high}"
        yield text, msgspec.structs.replace(spec, inputs=inputs, outputs=outputs)


def _inputs(task: Task, spec: TaskSpec) -> list[Array]:
    """Make inputs of other shapes: values of a sample again and again; zeros for integers, the one index into everything."""
    return [
        np.resize(given, tensor.shape)
        if tensor.dtype in FLOATS
        else np.zeros(tensor.shape, storage_dtype(tensor.dtype))
        for given, tensor in zip(task.samples[0].inputs, spec.inputs, strict=True)
    ]


def check_ranges(track: Track, task: Task, start: Callable[[TaskSpec], AbstractContextManager[Session]]) -> None:
    """Call a candidate just outside its dynamic ranges.

    Args:
        track: The candidate.
        task: For shapes and values.
        start: Gives a process with buffers of the given shapes.

    Raises:
        CandidateFaultError: It touched what it must not, crashed, or wrote something and then refused; the reason names the extent.
    """
    assert track.bundle is not None
    for what, spec in outside(track.bundle.meta, task.spec):
        try:
            with start(spec) as session:
                found = session.attempt(_inputs(task, spec), Change())
        except CandidateFaultError as fault:
            raise CandidateFaultError(fault.verdict, f"{what}: {fault.reason}") from fault
        if found.status != 0:
            check_untouched(found, what)
