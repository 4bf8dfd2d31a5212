"""What a contract excludes, the launcher must refuse: extents and divisors just outside what is declared.

The engine's own check may be missing or late, and a kernel that takes what it was not made for reads and writes beside its buffers.
At the edges themselves the task has samples (:mod:`ytk_gaia.generator.extents`), and those are judged by their values.
"""

from __future__ import annotations

from collections.abc import Iterator

from ytk_core.formats.plugin_meta import PluginMeta
from ytk_gaia.evaluator.session import CandidateFaultError, Session
from ytk_gaia.evaluator.track import Track
from ytk_gaia.evaluator.verdicts import Verdict
from ytk_gaia.task_format import Task, TaskSpec


def outside(meta: PluginMeta, spec: TaskSpec) -> Iterator[tuple[int, int, int, str]]:
    """Give calls that a contract excludes, as input, axis, extent, and what is declared.

    Args:
        meta: The contract.
        spec: The task, for the captured shapes.
    """
    for index, (declared, tensor) in enumerate(zip(meta.inputs, spec.inputs, strict=True)):
        for axis, extent in enumerate(declared.dims):
            if extent is not None:
                for other in (extent - 1, extent + 1):  # the smaller first: taking it harms nothing yet
                    if other >= 0:
                        yield index, axis, other, f"declared as {extent}"
            elif tensor.shape[axis] >= 0:
                yield index, axis, -1, "declared as any extent, which is no negative number"
    for index, axis, divisor in meta.constraints.divisible:
        extent = spec.inputs[index].shape[axis]
        if divisor > 1 and meta.inputs[index].dims[axis] is None and extent > 0:
            yield index, axis, extent - 1, f"declared divisible by {divisor}"


def check_edges(session: Session, track: Track, task: Task) -> None:
    """Call a candidate just outside its contract.

    Raises:
        CandidateFaultError: WRONG_SHAPE: it took what it excludes; or it crashed or wrote beside its buffers.
    """
    assert track.bundle is not None
    for index, axis, extent, declared in outside(track.bundle.meta, task.spec):
        if not session.refuses(index, axis, extent):
            raise CandidateFaultError(
                Verdict.WRONG_SHAPE,
                f"it took input {index} with {extent} along axis {axis}, {declared}: a launcher refuses what its contract excludes",
            )
