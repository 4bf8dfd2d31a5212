"""CUDA kernels with and without faults, for the task ``y[i] = sum_j x[i, j] * w[j]``; each with the verdict it must get."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ytk_core.dtypes import DType
from ytk_core.formats.kernel_bundle import KernelBundle, render_bundle
from ytk_core.formats.plugin_meta import DeploymentTarget, InputDecl, OutputDecl, Variant
from ytk_gaia.evaluator.verdicts import Verdict
from ytk_gaia.task_format import Sample, SampleLimits, Task, TaskSpec, TaskTensor

from fakes.kernel_bundles import F32, meta

ROWS, COLUMNS = 19, 77

_KERNEL = """
constexpr int kRows = 19, kColumns = 77;
YTK_KERNEL(row_sums, const float* x, const float* w, float* y);
#ifdef __CUDACC__
extern "C" __global__ void __launch_bounds__(64) row_sums(const float* x, const float* w, float* y) {
  __shared__ float parts[2];
  const int row = blockIdx.x;
  float sum = 0;
  for (int j = threadIdx.x; j < kColumns; j += blockDim.x) sum += x[row * kColumns + j] * w[j];
  for (int by = 16; by > 0; by /= 2) sum += __shfl_down_sync(0xffffffffu, sum, by);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) y[row] = parts[0] + parts[1];
}
#else
extern "C" int ytk_launch(const ytk_context* ctx, const ytk_tensor* in, int nin, ytk_tensor* out, int nout) {
  if (nin != 2 || nout != 1) return YTK_BAD_ARITY;
  return row_sums.launch(ctx, {kRows}, {64}, 0, (const float*)in[0].data, (const float*)in[1].data, (float*)out[0].data);
}
#endif
"""


@dataclass(frozen=True)
class Fault:
    """A change of the right kernel, its verdict, and a part of the reason."""

    name: str
    old: str
    new: str
    verdict: Verdict
    reason: str


FAULTS = (
    Fault("no barrier", "  __syncthreads();\n", "", Verdict.NONDETERMINISTIC, "on shared memory"),
    Fault(
        "barrier for some",
        "  __syncthreads();\n",
        "  if (threadIdx.x < 40) __syncthreads(); else { float v = __shfl_down_sync(0xffffffffu, sum, 1); (void)v; }\n",
        Verdict.RUNTIME_ERROR,
        "deadlock",
    ),
    Fault("reads one too many", "j < kColumns;", "j <= kColumns;", Verdict.OUT_OF_BOUNDS, "input"),
    Fault("writes one too far", "y[row] =", "y[row + 1] =", Verdict.OUT_OF_BOUNDS, "output 0"),
    Fault("writes an input", "y[row] =", "((float*)x)[0] = 0; y[row] =", Verdict.MUTATED_INPUT, "input 0"),
    Fault("shared array too small", "parts[2];", "parts[1];", Verdict.OUT_OF_BOUNDS, "index 1 out of bounds"),
    Fault(
        "all blocks write one element",
        "y[row] = parts[0] + parts[1];",
        "{ y[row] = parts[0] + parts[1]; if (row > 0) y[0] += 0.0f * parts[0]; }",
        Verdict.NONDETERMINISTIC,
        "race:",
    ),
    Fault("the other row", "row * kColumns + j", "(row + 1) % kRows * kColumns + j", Verdict.WRONG_VALUE, "elements"),
    Fault("a row less", "{kRows}, {64}", "{kRows - 1}, {64}", Verdict.WRONG_VALUE, ""),
    Fault(
        "shift too far",
        "y[row] =",
        "y[row] = (float)((1 << (row + 31)) & 0) +",
        Verdict.RUNTIME_ERROR,
        "shift exponent",
    ),
    Fault("endless", "y[row] =", "for (volatile int k = 0; k >= 0; k = 0) {} y[row] =", Verdict.TIMEOUT, "no answer"),
    Fault("does not compile", "float sum = 0;", "flaot sum = 0;", Verdict.COMPILE_ERROR, "flaot"),
    Fault(
        "host code that does not compile",
        "return row_sums.launch(ctx, {kRows}",
        "return row_sums.launch({kRows}",
        Verdict.COMPILE_ERROR,
        "for the emulation",
    ),
)


def bundle(source: str = _KERNEL) -> KernelBundle:
    """Give the right kernel, or another with its contract."""
    return KernelBundle(
        header='#include "ytk_cuda.h"\n',
        source=source,
        meta=meta(
            "RowSums",
            [InputDecl(name="x", rank=2, dims=[ROWS, COLUMNS]), InputDecl(name="w", rank=1, dims=[COLUMNS])],
            [OutputDecl(name="y", rank=1, shape=["in0.d0"])],
            [Variant(id="f32", inputs=[F32, F32], outputs=[F32])],
            deployment_target=DeploymentTarget.TENSORRT,
        ),
    )


def right() -> str:
    """Give the text of the right kernel."""
    return render_bundle(bundle())


def faulty(fault: Fault) -> str:
    """Give the text of the kernel with a fault."""
    assert fault.old in _KERNEL
    return render_bundle(bundle(_KERNEL.replace(fault.old, fault.new)))


def make_task() -> Task:
    """Give the evaluation task."""
    rng = np.random.default_rng(7)
    samples, limits = [], []
    for k in range(4):
        x = rng.standard_normal((ROWS, COLUMNS)).astype(np.float32)
        w = rng.standard_normal(COLUMNS).astype(np.float32)
        samples.append(Sample((x, w), (x.astype(np.float64) @ w.astype(np.float64),)))
        name = f"random-{k}" if k else "structured-0"
        limits.append(SampleLimits(name=name, timed=k > 0, atol=(2e-5,), rtol=(1e-6,)))
    spec = TaskSpec(
        region_digest=bundle().meta.region_digest,
        inputs=(
            TaskTensor(name="x", dtype=DType.FLOAT32, shape=(ROWS, COLUMNS)),
            TaskTensor(name="w", dtype=DType.FLOAT32, shape=(COLUMNS,)),
        ),
        outputs=(TaskTensor(name="y", dtype=DType.FLOAT32, shape=(ROWS,)),),
        samples=tuple(limits),
        expectation="float64",
        tolerance_source="by hand",
    )
    return Task(spec, tuple(samples))
