"""A small kernel of our own, to see a toolchain work from bundle to audited library."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from ytk_core.archspec import ArchSpec
from ytk_core.digests import digest_bytes
from ytk_core.dtypes import DType
from ytk_core.formats.kernel_bundle import KernelBundle, render_bundle
from ytk_core.formats.plugin_manifest import PluginManifest
from ytk_core.formats.plugin_meta import (
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
from ytk_core.sandbox import SandboxMode
from ytk_forge.build import build_plugin
from ytk_forge.toolchain import Toolchain

# Uses what kernels use: the maths library, libstdc++ and OpenMP, so that a missing one shows here.
_HEADER = "#include <cmath>\n#include <vector>\n"
_SOURCE = """
extern "C" int ytk_launch(const ytk_context* ctx, const ytk_tensor* in, int, ytk_tensor* out, int) {
  const float* x = static_cast<const float*>(in[0].data);
  float* y = static_cast<float*>(out[0].data);
  const int64_t count = in[0].dims[0];
  const std::vector<float> scale(1, 2.0f);
#pragma omp parallel for num_threads(ctx->threads)
  for (int64_t k = 0; k < count; ++k) y[k] = scale.at(0) * std::tanh(x[k]);
  return YTK_OK;
}
"""


# The same computation for a GPU, in both languages of a CUDA bundle.
_CUDA_SOURCE = """
YTK_KERNEL(tanh2, const float* x, float* y, int64_t count);
#ifdef __CUDACC__
extern "C" __global__ void tanh2(const float* x, float* y, int64_t count) {
  const int64_t k = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (k < count) y[k] = 2.0f * tanhf(x[k]);
}
#else
extern "C" int ytk_launch(const ytk_context* ctx, const ytk_tensor* in, int, ytk_tensor* out, int) {
  const int64_t count = in[0].dims[0];
  return tanh2.launch(ctx, {static_cast<uint32_t>((count + 255) / 256)}, {256}, 0, static_cast<const float*>(in[0].data),
                      static_cast<float*>(out[0].data), count);
}
#endif
"""


def selftest_bundle(device_kind: str = "cpu") -> KernelBundle:
    """Give the kernel bundle that the self-test builds for a CPU ("cpu") or a GPU ("gpu")."""
    on_cpu = device_kind == "cpu"
    f32 = TensorType(dtype=DType.FLOAT32)
    meta = PluginMeta(
        schema_version=1,
        plugin_namespace="ytk.selftest",
        plugin_name="Tanh2",
        plugin_version="1",
        deployment_target=DeploymentTarget.CPU if on_cpu else DeploymentTarget.TENSORRT,
        inputs=[InputDecl(name="x", rank=1, dims=[None])],
        outputs=[OutputDecl(name="y", rank=1, shape=["in0.d0"])],
        variants=[Variant(id="f32", inputs=[f32], outputs=[f32])],
        launcher=Launcher(),
        tolerance=Tolerance(rtol=1e-5, atol=1e-6, source="self-test"),
        generator=Generator(name="ytk-forge", version="1", strategy="self-test"),
        region_digest=digest_bytes(b"self-test"),
    )
    if on_cpu:
        return KernelBundle(header=_HEADER, source=_SOURCE, meta=meta)
    return KernelBundle(header='#include "ytk_cuda.h"\n', source=_CUDA_SOURCE, meta=meta)


def selftest(
    arch: ArchSpec, toolchains: Sequence[Toolchain], mode: SandboxMode, *, declared_abi: bool = False
) -> PluginManifest:
    """Build and audit the self-test's kernel for an arch spec, without a cache.

    ``declared_abi``: as in :func:`ytk_forge.build.build_plugin`.

    Raises:
        YtkError: As :func:`ytk_forge.build.build_plugin`.
    """
    with tempfile.TemporaryDirectory(prefix="ytk-selftest-") as directory:
        work = Path(directory)
        (work / "selftest.module_source.py").write_text(
            render_bundle(selftest_bundle(arch.device_kind)), encoding="utf-8"
        )
        return build_plugin(
            work / "selftest.module_source.py",
            arch,
            work / "out",
            work / "cache",
            mode,
            toolchains=toolchains,
            declared_abi=declared_abi,
        )
