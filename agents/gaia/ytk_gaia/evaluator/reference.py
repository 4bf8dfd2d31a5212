"""Kernels of the judge's own, run as candidates are: one that does nothing, and one that only moves the region's memory.

What they take says what a call costs here, how fast memory moves here, and whether this worker still works at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from ytk_core.archspec import ArchSpec
from ytk_core.errors import BoardError
from ytk_core.formats.kernel_bundle import KernelBundle
from ytk_core.formats.plugin_meta import Launcher
from ytk_core.sandbox import SandboxMode
from ytk_gaia.evaluator.arena import Placement
from ytk_gaia.evaluator.build import build
from ytk_gaia.evaluator.schedule import schedule
from ytk_gaia.evaluator.session import Call, CandidateFaultError, Limits, Session
from ytk_gaia.task_format import Task, TaskSpec, TaskTensor, expected_dtype

LEAST_MOVED = 64 << 10
"""Bytes. A store or load of less is over before a clock has moved."""

_NULL_SOURCE = """\
extern "C" int ytk_launch(const ytk_context*, const ytk_tensor*, int, ytk_tensor*, int) { return YTK_OK; }
"""

# Stores every output byte once and loads the first BYTES of the inputs, by as many threads as are worth starting: what a right
# kernel does at the least, with no computation in between.
_MOVE_SOURCE = """\
#include <string.h>
static int64_t size_of(const ytk_tensor& t) {
  static const int64_t by_type[] = {1, 4, 1, 1, 2, 2, 4, 8, 1, 1, 2, 8, 4, 8, 8, 16, 2};
  int64_t n = t.dtype >= 0 && t.dtype <= 16 ? by_type[t.dtype] : 1;
  for (int axis = 0; axis < t.rank; ++axis) n *= t.dims[axis];
  return n;
}
static uint64_t load(const char* from, int64_t n) {
  uint64_t sum = 0;
  const int64_t words = n / 8;
  const uint64_t* at = (const uint64_t*)from;
#pragma omp simd reduction(^ : sum)
  for (int64_t i = 0; i < words; ++i) sum ^= at[i];
  return sum;
}
static uint64_t part(const ytk_tensor* in, int nin, ytk_tensor* out, int nout, int share, int shares, unsigned char fill) {
  uint64_t sum = 0;
  int64_t left = @BYTES@;
  for (int i = 0; i < nin && left > 0; ++i) {
    const int64_t all = size_of(in[i]), n = all < left ? all : left, begin = n * share / shares & ~(int64_t)63;
    const int64_t end = share + 1 == shares ? n : (n * (share + 1) / shares & ~(int64_t)63);
    sum ^= load((const char*)in[i].data + begin, end - begin);
    left -= n;
  }
  for (int o = 0; o < nout; ++o) {
    const int64_t n = size_of(out[o]), begin = n * share / shares, end = n * (share + 1) / shares;
    memset((char*)out[o].data + begin, fill, (size_t)(end - begin));
  }
  return sum;
}
extern "C" int ytk_launch(const ytk_context* ctx, const ytk_tensor* in, int nin, ytk_tensor* out, int nout) {
  volatile uint64_t keep = 0;
  if (ctx->threads < 2) {
    keep = part(in, nin, out, nout, 0, 1, 7);
  } else {
    uint64_t sum = 0;
#pragma omp parallel for schedule(static) num_threads(ctx->threads) reduction(^ : sum)
    for (int share = 0; share < ctx->threads; ++share) sum ^= part(in, nin, out, nout, share, ctx->threads, 7);
    keep = sum;
  }
  (void)keep;
  return YTK_OK;
}
"""


@dataclass(frozen=True)
class Reference:
    """The judge's own kernels for one task, compiled.

    Attributes:
        null: Does nothing.
        move: Moves the memory that every right kernel has to move; None where that is so little that it takes no time that one
            could tell from the cost of a call.
        task: Whose buffers they are called on.
        threads: Of candidates.
        mode: Whether a sandbox is required.
        limits: How long to wait.
    """

    null: Path
    move: Path | None
    task: Task
    threads: int
    mode: SandboxMode
    limits: Limits

    def calls(self, library: Path, threads: int) -> list[Call]:
        """Run one process of a kernel of ours over the captured samples; give every call after the first."""
        found = []
        with Session(library, self.task.spec, threads, Placement.END, self.mode, self.limits) as session:
            for sample, _ in schedule(self.task, self.task.spec.groups()[0]):
                found.append(session.call(self.task.samples[sample].inputs))
        return found[1:] or found

    def foreign_libraries(self) -> frozenset[str]:
        """Give the names of the files that an empty kernel's process has in memory: nobody's fault."""
        with Session(self.null, self.task.spec, 1, Placement.END, self.mode, self.limits) as session:
            return session.mapped_files()

    def check_health(self, after: str) -> None:
        """Call the empty kernel in a fresh process.

        Args:
            after: What happened, for the message.

        Raises:
            BoardError: Not even that runs here any more. Tried twice: one process may meet a moment of no memory.
        """
        reason = ""
        for _ in range(2):
            try:
                with Session(self.null, self.task.spec, 1, Placement.END, self.mode, self.limits) as session:
                    session.call(self.task.samples[0].inputs)
            except CandidateFaultError as fault:
                reason = fault.reason
            else:
                return
        raise sick(f"after {after}, {reason}")


def sick(reason: str) -> BoardError:
    """Give the error that says that this worker runs nothing any more."""
    return BoardError(
        f"this worker cannot run an empty kernel: {reason}",
        code="worker_sick",
        hint="Look at the eval worker's compiler, memory and sandbox; the job goes to another worker.",
    )


def build_reference(
    like: KernelBundle, task: Task, arch: ArchSpec, directory: Path, threads: int, mode: SandboxMode, limits: Limits
) -> Reference:
    """Compile the judge's own kernels.

    Args:
        like: Whose contract they have.
        task: For the sizes.
        arch: What candidates are compiled for.
        directory: Gets one directory for each.
        threads: Of candidates.
        mode: Whether a sandbox is required.
        limits: How long to wait.

    Raises:
        BoardError: ``worker_sick``: they do not compile or run.
    """
    meta = msgspec.structs.replace(like.meta, compile_flags=[], launcher=Launcher())

    def compiled(name: str, source: str) -> Path:
        (directory / name).mkdir(parents=True, exist_ok=True)
        built = build(KernelBundle(header="", source=source, meta=meta), arch, directory / name, mode)
        if built.library is None:
            raise sick(f"it does not compile: {built.log[:300]}")
        return built.library

    null = compiled("-empty", _NULL_SOURCE)
    move = None
    if floor_bytes(task) >= LEAST_MOVED:
        move = compiled("-move", _MOVE_SOURCE.replace("@BYTES@", str(task.spec.must_read_bytes)))
    return Reference(null, move, task, threads, mode, limits)


def floor_bytes(task: Task) -> int:
    """Give the bytes that every right kernel has to move: every output once, and the inputs that must be read."""
    return moved_bytes(task.spec, task.spec.must_read_bytes)


def moved_bytes(spec: TaskSpec, must_read_bytes: int) -> int:
    """Give the bytes of every output once and of what must be read besides.

    Args:
        spec: At the shape in question.
        must_read_bytes: Of the inputs, at that shape.
    """
    # Expectations of floats are kept in float64; the kernel stores half of that at most, hence the 2.
    return _output_bytes(spec.outputs) // 2 + must_read_bytes


def _output_bytes(tensors: Sequence[TaskTensor]) -> int:
    return sum(int(np.prod(t.shape)) * min(8, expected_dtype(t.dtype).itemsize) for t in tensors)


def fastest(calls: Sequence[Call]) -> int:
    """Give the shortest time of some calls, by the process's own clock, in nanoseconds."""
    return min(call.inner_ns for call in calls)
