// The device code of a CUDA plugin and how it is launched: driver API only. Built by Forge into every CUDA plugin.
#include <cstring>
#include <mutex>

#include "ytk_cuda.h"

// A section of its own, so that the audit finds the cubin again in the finished library.
__asm__(
    ".pushsection .ytk_cubin, \"a\", %progbits\n"
    ".balign 64\n"
    ".hidden ytk_cubin\n"
    ".globl ytk_cubin\n"
    "ytk_cubin:\n"
    ".incbin \"device.cubin\"\n"
    ".popsection\n");

extern "C" {
extern const unsigned char ytk_cubin[] __attribute__((visibility("hidden")));
// The linker's names for the ends of the section that YTK_KERNEL writes to; absent where a bundle has no kernel.
extern const char __start_ytk_kernels[] __attribute__((weak, visibility("hidden")));
extern const char __stop_ytk_kernels[] __attribute__((weak, visibility("hidden")));

// The part of the CUDA driver API (libcuda.so.1) that is used; unchanged since CUDA 4.
typedef int CUresult;
typedef struct CUctx_st* CUcontext;
typedef struct CUmod_st* CUmodule;
typedef struct CUfunc_st* CUfunction;
typedef struct CUstream_st* CUstream;
CUresult cuCtxGetCurrent(CUcontext* context);
CUresult cuModuleLoadData(CUmodule* module, const void* image);
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name);
CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value);
CUresult cuLaunchKernel(CUfunction function, unsigned gridX, unsigned gridY, unsigned gridZ, unsigned blockX,
                        unsigned blockY, unsigned blockZ, unsigned sharedBytes, CUstream stream, void** args,
                        void** extra);
}

namespace {

constexpr CUresult kSuccess = 0, kInvalidHandle = 400, kContextDestroyed = 709;
constexpr int kMaxDynamicShared = 8; // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
constexpr uint32_t kSharedWithoutAsking = 48 * 1024;
// A module belongs to a context: one per GPU of the process, and rarely more.
constexpr int kContexts = 16, kKernels = 64;

struct Loaded {
  CUcontext context;
  CUmodule module;
  const char* names[kKernels];
  CUfunction functions[kKernels];
  uint32_t dynamic_shared[kKernels];
  int kernels;
};

std::mutex lock;
Loaded loaded[kContexts];
int next_slot = 0;

// Every kernel that the launcher names; false where one is missing, which the audit has excluded.
bool find_kernels(Loaded& entry) {
  entry.kernels = 0;
  for (const char* name = __start_ytk_kernels; name < __stop_ytk_kernels; name += std::strlen(name) + 1) {
    if (*name == 0) continue; // padding between two names
    if (entry.kernels == kKernels) return false;
    CUfunction function = nullptr;
    if (cuModuleGetFunction(&function, entry.module, name) != kSuccess) return false;
    entry.names[entry.kernels] = name;
    entry.functions[entry.kernels] = function;
    entry.dynamic_shared[entry.kernels] = kSharedWithoutAsking;
    ++entry.kernels;
  }
  return true;
}

// The module in the calling thread's context; null where there is no context or it does not load. Call with the lock.
Loaded* current() {
  CUcontext context = nullptr;
  if (cuCtxGetCurrent(&context) != kSuccess || context == nullptr) return nullptr;
  for (Loaded& entry : loaded)
    if (entry.context == context) return &entry;
  Loaded fresh{};
  if (cuModuleLoadData(&fresh.module, ytk_cubin) != kSuccess || !find_kernels(fresh)) return nullptr;
  fresh.context = context;
  Loaded& slot = loaded[next_slot];
  next_slot = (next_slot + 1) % kContexts;
  slot = fresh;
  return &slot;
}

} // namespace

extern "C" int ytk_cuda_prepare(void) {
  const std::lock_guard<std::mutex> guard(lock);
  return current() == nullptr ? YTK_DEVICE_ERROR : YTK_OK;
}

extern "C" int ytk_cuda_launch(const ytk_context* ctx, const char* kernel, const uint32_t grid[3],
                               const uint32_t block[3], uint32_t shared_bytes, void** args) {
  CUfunction function = nullptr;
  {
    const std::lock_guard<std::mutex> guard(lock);
    Loaded* entry = current();
    if (entry == nullptr) return YTK_DEVICE_ERROR;
    for (int k = 0; k < entry->kernels && function == nullptr; ++k) {
      if (std::strcmp(entry->names[k], kernel) != 0) continue;
      function = entry->functions[k];
      if (shared_bytes > entry->dynamic_shared[k]) {
        if (cuFuncSetAttribute(function, kMaxDynamicShared, static_cast<int>(shared_bytes)) != kSuccess)
          return YTK_DEVICE_ERROR;
        entry->dynamic_shared[k] = shared_bytes;
      }
    }
  }
  if (function == nullptr) return YTK_DEVICE_ERROR;
  const CUresult status = cuLaunchKernel(function, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared_bytes,
                                         static_cast<CUstream>(ctx->stream), args, nullptr);
  if (status == kInvalidHandle || status == kContextDestroyed) {
    // The context is gone and another one has its address: load again at the next launch.
    const std::lock_guard<std::mutex> guard(lock);
    for (Loaded& entry : loaded)
      for (int k = 0; k < entry.kernels; ++k)
        if (entry.functions[k] == function) entry.context = nullptr;
  }
  return status == kSuccess ? YTK_OK : YTK_DEVICE_ERROR;
}
