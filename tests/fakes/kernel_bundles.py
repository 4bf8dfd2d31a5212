"""Kernel bundles written by hand, for what generated ones do not cover yet."""

from __future__ import annotations

from typing import Any

import msgspec

from ytk_core.digests import digest_bytes
from ytk_core.dtypes import DType
from ytk_core.formats.kernel_bundle import KernelBundle
from ytk_core.formats.plugin_meta import (
    AttributeDecl,
    AttributeType,
    Constraints,
    DeploymentTarget,
    Extent,
    Generator,
    InputDecl,
    Launcher,
    OutputDecl,
    PluginMeta,
    Role,
    TensorType,
    Tolerance,
    Variant,
)

F32, F16, I64 = (TensorType(dtype=d) for d in (DType.FLOAT32, DType.FLOAT16, DType.INT64))


def meta(
    name: str, inputs: list[InputDecl], outputs: list[OutputDecl], variants: list[Variant], **more: Any
) -> PluginMeta:
    fields: dict[str, Any] = {
        "schema_version": 1,
        "plugin_namespace": "yasp",
        "plugin_name": name,
        "plugin_version": "1",
        "deployment_target": DeploymentTarget.CPU,
        "inputs": inputs,
        "outputs": outputs,
        "variants": variants,
        "launcher": Launcher(),
        "tolerance": Tolerance(rtol=1e-5, atol=1e-6, source="hand"),
        "generator": Generator(name="hand", version="1", strategy="hand"),
        "region_digest": digest_bytes(name.encode()),
        # What the C++ types need: these kernels use no aligned loads.
        "constraints": Constraints(alignment_bytes=8),
    }
    return PluginMeta(**(fields | more))


FOLD = {"channels": 4, "kernel": 3, "padding": 1, "out": 8}
"""nn.Fold(output_size=(8, 8), kernel_size=3, padding=1): [N, 4*3*3, 64] -> [N, 4, 8, 8]."""

FOLD_SOURCE = """
extern "C" int ytk_launch(const ytk_context* ctx, const ytk_tensor* in, int, ytk_tensor* out, int) {
  const float* x = static_cast<const float*>(in[0].data);
  float* y = static_cast<float*>(out[0].data);
  const int64_t planes = out[0].dims[0] * kChannels;
#pragma omp parallel for num_threads(ctx->threads)
  for (int64_t plane = 0; plane < planes; ++plane)
    for (int h = 0; h < kOut; ++h)
      for (int w = 0; w < kOut; ++w) {
        float sum = 0;
        for (int i = 0; i < kKernel; ++i)
          for (int j = 0; j < kKernel; ++j) {
            const int row = h + kPadding - i, column = w + kPadding - j;  // stride 1: block (row, column)
            if (row < 0 || row >= kOut || column < 0 || column >= kOut) continue;
            sum += x[((plane * kKernel + i) * kKernel + j) * kOut * kOut + row * kOut + column];
          }
        y[(plane * kOut + h) * kOut + w] = sum;
      }
  return YTK_OK;
}
"""


def fold() -> KernelBundle:
    """Col2im in gather form with a dynamic batch; padding keeps the number of blocks equal to the output's extent."""
    header = (
        f"constexpr int kChannels = {FOLD['channels']}, kKernel = {FOLD['kernel']}, "
        f"kPadding = {FOLD['padding']}, kOut = {FOLD['out']};\n"
    )
    rows = FOLD["channels"] * FOLD["kernel"] ** 2
    return KernelBundle(
        header=header,
        source=FOLD_SOURCE,
        meta=meta(
            "Col2im",
            [InputDecl(name="input", rank=3, dims=[None, rows, FOLD["out"] ** 2])],
            [
                OutputDecl(
                    name="output",
                    rank=4,
                    shape=["in0.d0", f"in0.d1 // {FOLD['kernel'] ** 2}", str(FOLD["out"]), str(FOLD["out"])],
                )
            ],
            [Variant(id="f32", inputs=[F32], outputs=[F32])],
            extents=[Extent(input=0, axis=0, min=1, opt=2, max=64)],
        ),
    )


def split() -> KernelBundle:
    """Two outputs from one input: the halves of the last axis, scaled by an attribute; workspace of a row."""
    source = """
extern "C" int64_t split_workspace(const ytk_context*, const ytk_tensor* in, int, const ytk_tensor*, int) {
  return in[0].dims[1] * static_cast<int64_t>(sizeof(float));
}
extern "C" int split_launch(const ytk_context* ctx, const ytk_tensor* in, int, ytk_tensor* out, int) {
  double scale = 1;
  for (int k = 0; k < ctx->attr_count; ++k)
    if (ctx->attrs[k].type == YTK_ATTR_FLOATS) scale = ctx->attrs[k].floats[0];
  const int64_t rows = in[0].dims[0], width = in[0].dims[1], half = width / 2;
  float* row = static_cast<float*>(ctx->workspace);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t k = 0; k < width; ++k) row[k] = static_cast<const float*>(in[0].data)[r * width + k] * float(scale);
    for (int64_t k = 0; k < half; ++k) {
      static_cast<float*>(out[0].data)[r * half + k] = row[k];
      static_cast<float*>(out[1].data)[r * half + k] = row[half + k];
    }
  }
  return YTK_OK;
}
"""
    half = ["in0.d0", "in0.d1 // 2"]
    return KernelBundle(
        header="",
        source=source,
        meta=meta(
            "Split2",
            [InputDecl(name="x", rank=2, dims=[None, None])],
            [OutputDecl(name="left", rank=2, shape=half), OutputDecl(name="right", rank=2, shape=half)],
            [Variant(id="f32", inputs=[F32], outputs=[F32, F32])],
            launcher=Launcher(launch="split_launch", workspace="split_workspace"),
            attributes=[
                AttributeDecl(name="scale", type=AttributeType.FLOATS, required=True),
                AttributeDecl(name="axis", type=AttributeType.INTS, required=False, value=[1]),
                AttributeDecl(name="mode", type=AttributeType.STRING, required=False, value='hal"f'),
            ],
            constraints=Constraints(alignment_bytes=64, divisible=[(0, 1, 2)]),
        ),
    )


def gather() -> KernelBundle:
    """Rows of a table by int64 index, in two variants (float32 and float16 table)."""
    source = """
extern "C" int ytk_launch(const ytk_context* ctx, const ytk_tensor* in, int, ytk_tensor* out, int) {
  const int64_t* index = static_cast<const int64_t*>(in[1].data);
  const int64_t bytes = in[0].dims[1] * (ctx->variant == 0 ? 4 : 2);
  for (int64_t k = 0; k < in[1].dims[0]; ++k) {
    if (index[k] < 0 || index[k] >= in[0].dims[0]) return YTK_BAD_SHAPE;
    std::memcpy(static_cast<char*>(out[0].data) + k * bytes, static_cast<const char*>(in[0].data) + index[k] * bytes,
                static_cast<std::size_t>(bytes));
  }
  return YTK_OK;
}
"""
    return KernelBundle(
        header="#include <cstring>\n",
        source=source,
        meta=meta(
            "GatherRows",
            [
                InputDecl(name="table", rank=2, dims=[None, 16], role=Role.PARAMETER),
                InputDecl(name="index", rank=1, dims=[None]),
            ],
            [OutputDecl(name="rows", rank=2, shape=["in1.d0", "in0.d1"])],
            [
                Variant(id="f32", inputs=[F32, I64], outputs=[F32]),
                Variant(id="f16", inputs=[F16, I64], outputs=[F16]),
            ],
        ),
    )


def with_source(bundle: KernelBundle, source: str) -> KernelBundle:
    """The same contract with another kernel text."""
    return msgspec.structs.replace(bundle, source=source)


def with_meta(bundle: KernelBundle, **changes: Any) -> KernelBundle:
    """The same kernel with other fields of the contract."""
    return msgspec.structs.replace(bundle, meta=msgspec.structs.replace(bundle.meta, **changes))
