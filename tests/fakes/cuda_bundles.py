"""CUDA kernel bundles written by hand: one text for both compilers, as ytk_cuda.h describes it."""

from __future__ import annotations

from ytk_core.dtypes import DType
from ytk_core.formats.kernel_bundle import KernelBundle
from ytk_core.formats.plugin_meta import (
    AttributeDecl,
    AttributeType,
    DeploymentTarget,
    Extent,
    Format,
    InputDecl,
    Launcher,
    OutputDecl,
    TensorType,
    Variant,
)

from fakes.kernel_bundles import F16, F32, meta

HEADER = '#include "ytk_cuda.h"\n'

FOLD = """
constexpr int kChannels = 4, kKernel = 3, kPadding = 1, kOut = 8, kThreads = 256;
YTK_KERNEL(fold_f32, const float* x, float* y, int64_t count);
YTK_KERNEL(fold_f16, const ytk_half* x, ytk_half* y, int64_t count);

#ifdef __CUDACC__
template <class T> __device__ float get(T v) { return v; }
template <> __device__ float get(ytk_half v) { return __half2float(v); }
__device__ void put(float* p, float v) { *p = v; }
__device__ void put(ytk_half* p, float v) { *p = __float2half(v); }

template <class T> __device__ void fold(const T* x, T* y, int64_t count) {
  const int64_t k = blockIdx.x * int64_t(kThreads) + threadIdx.x;
  if (k >= count) return;
  const int w = k % kOut, h = k / kOut % kOut;
  const int64_t plane = k / (kOut * kOut);
  float sum = 0;
  for (int i = 0; i < kKernel; ++i)
    for (int j = 0; j < kKernel; ++j) {
      const int row = h + kPadding - i, column = w + kPadding - j;
      if (row < 0 || row >= kOut || column < 0 || column >= kOut) continue;
      sum += get(x[((plane * kKernel + i) * kKernel + j) * kOut * kOut + row * kOut + column]);
    }
  put(y + k, sum);
}
extern "C" __global__ void fold_f32(const float* x, float* y, int64_t count) { fold(x, y, count); }
extern "C" __global__ void fold_f16(const ytk_half* x, ytk_half* y, int64_t count) { fold(x, y, count); }
#else
extern "C" int ytk_launch(const ytk_context* ctx, const ytk_tensor* in, int, ytk_tensor* out, int) {
  const int64_t count = out[0].dims[0] * kChannels * kOut * kOut;
  const ytk::Extent3 grid{static_cast<uint32_t>((count + kThreads - 1) / kThreads)}, block{kThreads};
  if (ctx->variant == 0)
    return fold_f32.launch(ctx, grid, block, 0, static_cast<const float*>(in[0].data), static_cast<float*>(out[0].data), count);
  return fold_f16.launch(ctx, grid, block, 0, static_cast<const ytk_half*>(in[0].data), static_cast<ytk_half*>(out[0].data), count);
}
#endif
"""


def fold() -> KernelBundle:
    """Col2im with a dynamic batch, in fp32 and fp16."""
    return KernelBundle(
        header=HEADER,
        source=FOLD,
        meta=meta(
            "Col2im",
            [InputDecl(name="columns", rank=3, dims=[None, 36, 64])],
            [OutputDecl(name="image", rank=4, shape=["in0.d0", "4", "8", "8"])],
            [Variant(id="f32", inputs=[F32], outputs=[F32]), Variant(id="f16", inputs=[F16], outputs=[F16])],
            deployment_target=DeploymentTarget.TENSORRT,
            extents=[Extent(input=0, axis=0, min=1, opt=4, max=64)],
        ),
    )


SCALE = """
YTK_KERNEL(scale, const float* x, const float* w, float* y, float* sum, int64_t count, float factor, int32_t shift);
#ifdef __CUDACC__
extern "C" __global__ void scale(const float* x, const float* w, float* y, float* sum, int64_t count, float factor, int32_t shift) {
  extern __shared__ float buffer[];
  const int64_t k = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  buffer[threadIdx.x] = k < count ? x[k] * w[k % 8] * factor + shift : 0;
  __syncthreads();
  if (k < count) y[k] = buffer[threadIdx.x];
  if (k < 2) sum[k] = buffer[0];
}
#else
extern "C" int64_t scale_workspace(const ytk_context*, const ytk_tensor* in, int, const ytk_tensor*, int) {
  return in[0].dims[0] * 16;
}
extern "C" int scale_launch(const ytk_context* ctx, const ytk_tensor* in, int, ytk_tensor* out, int) {
  float factor = 1;
  int32_t shift = 0;
  for (int k = 0; k < ctx->attr_count; ++k) {
    if (ctx->attrs[k].name[0] == 'f') factor = static_cast<float>(ctx->attrs[k].floats[0]);
    if (ctx->attrs[k].name[0] == 's') shift = static_cast<int32_t>(ctx->attrs[k].ints[0]);
  }
  const int64_t count = in[0].dims[0] * 8;
  return scale.launch(ctx, {static_cast<uint32_t>((count + 127) / 128)}, {128}, 65536, static_cast<const float*>(in[0].data),
                      static_cast<const float*>(in[1].data), static_cast<float*>(out[0].data),
                      static_cast<float*>(out[1].data), count, factor, shift);
}
#endif
"""


def scale() -> KernelBundle:
    """Two inputs, two outputs, attributes, workspace, and more dynamic shared memory than comes without asking."""
    f32s = [F32, F32]
    return KernelBundle(
        header=HEADER,
        source=SCALE,
        meta=meta(
            "Scale",
            [InputDecl(name="x", rank=2, dims=[None, 8]), InputDecl(name="w", rank=1, dims=[8])],
            [
                OutputDecl(name="y", rank=2, shape=["in0.d0", "in0.d1"]),
                OutputDecl(
                    name="sum",
                    rank=1,
                    shape=["min(max(ceildiv(in0.d0, 4) - in0.d0 // 4, 0), 1) + 2 * (in0.d1 == 8) - (in0.d0 < 0)"],
                ),
            ],
            [Variant(id="f32", inputs=f32s, outputs=f32s)],
            deployment_target=DeploymentTarget.TENSORRT,
            launcher=Launcher(launch="scale_launch", workspace="scale_workspace", fixed_workspace_bytes=256),
            attributes=[
                AttributeDecl(name="factor", type=AttributeType.FLOATS),
                AttributeDecl(name="shift", type=AttributeType.INTS, required=False),
                AttributeDecl(name="mode", type=AttributeType.STRING, value='lin"ear'),
            ],
        ),
    )


def depthwise() -> KernelBundle:
    """A kernel that takes fp16 in kHWC8 or fp32 linear."""
    h8 = TensorType(dtype=F16.dtype, format=Format.HWC8)
    source = """
YTK_KERNEL(copy_words, const uint32_t* x, uint32_t* y, int64_t words);
#ifdef __CUDACC__
extern "C" __global__ void copy_words(const uint32_t* x, uint32_t* y, int64_t words) {
  const int64_t k = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (k < words) y[k] = x[k];
}
#else
extern "C" int ytk_launch(const ytk_context* ctx, const ytk_tensor* in, int, ytk_tensor* out, int) {
  const int64_t words = in[0].dims[0] * in[0].dims[1] * in[0].dims[2] * in[0].dims[3] * (ctx->variant == 0 ? 2 : 1);
  return copy_words.launch(ctx, {static_cast<uint32_t>((words + 255) / 256)}, {256}, 0,
                           static_cast<const uint32_t*>(in[0].data), static_cast<uint32_t*>(out[0].data), words);
}
#endif
"""
    return KernelBundle(
        header=HEADER,
        source=source,
        meta=meta(
            "Depthwise",
            [InputDecl(name="x", rank=4, dims=[None, 16, None, None])],
            [OutputDecl(name="y", rank=4, shape=["in0.d0", "in0.d1", "in0.d2", "in0.d3"])],
            [Variant(id="f16hwc8", inputs=[h8], outputs=[h8]), Variant(id="f32", inputs=[F32], outputs=[F32])],
            deployment_target=DeploymentTarget.TENSORRT,
        ),
    )


def quantised() -> KernelBundle:
    """int8 in kCHW32 with a scale, or in linear order; int32 tensors beside it; two outputs of different types."""
    i8, i32 = DType.INT8, DType.INT32
    source = """
YTK_KERNEL(requantise, const int8_t* x, const int32_t* shift, int8_t* y, int32_t* sums, int64_t count, float scale);
#ifdef __CUDACC__
extern "C" __global__ void requantise(const int8_t* x, const int32_t* shift, int8_t* y, int32_t* sums, int64_t count, float scale) {
  const int64_t k = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (k < count) y[k] = static_cast<int8_t>(x[k] * scale);
  if (k < 6) sums[k] = shift[k] + x[k];
}
#else
extern "C" int ytk_launch(const ytk_context* ctx, const ytk_tensor* in, int, ytk_tensor* out, int) {
  if (in[0].format != (ctx->variant == 0 ? YTK_CHW32 : YTK_LINEAR)) return YTK_BAD_VARIANT;
  const int64_t count = in[0].dims[0] * in[0].dims[1] * in[0].dims[2] * in[0].dims[3];
  return requantise.launch(ctx, {static_cast<uint32_t>((count + 255) / 256)}, {256}, 0,
                           static_cast<const int8_t*>(in[0].data), static_cast<const int32_t*>(in[1].data),
                           static_cast<int8_t*>(out[0].data), static_cast<int32_t*>(out[1].data), count,
                           in[0].scale / out[0].scale + in[0].scale);
}
#endif
"""

    def variant(name: str, layout: Format) -> Variant:
        types = [TensorType(dtype=i8, format=layout), TensorType(dtype=i32)]
        return Variant(id=name, inputs=types, outputs=types)

    return KernelBundle(
        header=HEADER,
        source=source,
        meta=meta(
            "Quantised",
            [InputDecl(name="x", rank=4, dims=[None, 32, None, None]), InputDecl(name="shift", rank=1, dims=[6])],
            [
                OutputDecl(name="y", rank=4, shape=["in0.d0", "in0.d1", "in0.d2", "in0.d3"]),
                OutputDecl(name="sums", rank=1, shape=["in1.d0"]),
            ],
            [variant("i8chw32", Format.CHW32), variant("i8", Format.LINEAR)],
            deployment_target=DeploymentTarget.TENSORRT,
        ),
    )
