/* How a CUDA kernel bundle is written: one text, compiled twice.
 *
 * The device compiler (it defines __CUDACC__) makes a cubin of it, the host compiler makes the launcher. Both see the
 * declaration of every kernel, so that a call with other arguments than the kernel takes does not compile:
 *
 *   #include "ytk_cuda.h"
 *   YTK_KERNEL(scale, const float* x, float* y, int64_t count);
 *   #ifdef __CUDACC__
 *   extern "C" __global__ void scale(const float* x, float* y, int64_t count) { ... }
 *   #else
 *   extern "C" int ytk_launch(const ytk_context* ctx, const ytk_tensor* in, int, ytk_tensor* out, int) {
 *     return scale.launch(ctx, {blocks}, {256}, 0, x, y, count);
 *   }
 *   #endif
 *
 * Launches go through the driver API on ctx->stream; nothing links against the CUDA runtime. Kernels are extern "C": a
 * template is instantiated by a kernel that calls it. Parameters are passed by value; pointers are device pointers.
 */
#ifndef YTK_CUDA_H
#define YTK_CUDA_H

#include "ytk_kernel.h"

#if defined(__CUDACC__)

#include <cuda_fp16.h>

typedef __half ytk_half;
#define YTK_KERNEL(name, ...) extern "C" __global__ void name(__VA_ARGS__)

#else

/* An IEEE half: host code passes pointers to them on. */
typedef struct ytk_half {
  uint16_t bits;
} ytk_half;

/* Launches a kernel of this library on ctx->stream; 0, or an enum ytk_status. Rendered into every CUDA plugin. */
extern "C" int ytk_cuda_launch(const ytk_context* ctx, const char* kernel, const uint32_t grid[3],
                               const uint32_t block[3], uint32_t shared_bytes, void** args);
/* Loads the device code into the current context ahead of the first launch, which must not happen while a CUDA graph is
 * captured; 0, or an enum ytk_status. */
extern "C" int ytk_cuda_prepare(void);

namespace ytk {

struct Extent3 {
  uint32_t x = 1, y = 1, z = 1;
};

template <class Signature>
struct Kernel;

template <class... Parameters>
struct Kernel<void(Parameters...)> {
  const char* name;

  /* shared_bytes: of dynamic shared memory, beside what the kernel declares itself. */
  int launch(const ytk_context* ctx, Extent3 grid, Extent3 block, uint32_t shared_bytes, Parameters... arguments) const {
    void* pointers[] = {static_cast<void*>(&arguments)..., nullptr};
    const uint32_t grids[3] = {grid.x, grid.y, grid.z}, blocks[3] = {block.x, block.y, block.z};
    return ytk_cuda_launch(ctx, name, grids, blocks, shared_bytes, pointers);
  }
};

} // namespace ytk

/* The names go into a section of their own: the audit compares it with what the cubin has. */
#define YTK_KERNEL(kernel, ...)                                                                            \
  __attribute__((section("ytk_kernels"), used)) static const char ytk_symbol_of_##kernel[] = #kernel;     \
  [[maybe_unused]] static constexpr ytk::Kernel<void(__VA_ARGS__)> kernel { ytk_symbol_of_##kernel }

#endif
#endif
