// The judge's side of a CUDA candidate on a GPU: what it calls in the candidate's process, through the driver API. After the
// launcher's half of the bundle, in one unit with it. Host memory is the judge's; the kernel sees device memory of our own, with red
// zones round every buffer, fresh inputs and poisoned outputs at each call.
#ifndef YTK_GPU_ENTRY_H
#define YTK_GPU_ENTRY_H
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "ytk_formats.h"

#ifndef YTK_LIBCUDA
#define YTK_LIBCUDA "libcuda.so.1"
#endif

namespace ytk_gpu {

typedef int Result;
typedef unsigned long long Pointer;
typedef void* Handle;

// The part of the driver API that is used; unchanged since CUDA 4.
struct Driver {
  Result (*init)(unsigned);
  Result (*device)(int*, int);
  Result (*retain)(Handle*, int);
  Result (*set_current)(Handle);
  Result (*attribute)(int*, int, int);
  Result (*load)(Handle*, const void*);
  Result (*function)(Handle*, Handle, const char*);
  Result (*function_attribute)(Handle, int, int);
  Result (*launch)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void**, void**);
  Result (*allocate)(Pointer*, size_t);
  Result (*to_device)(Pointer, const void*, size_t);
  Result (*to_host)(void*, Pointer, size_t);
  Result (*fill)(Pointer, unsigned char, size_t);
  Result (*stream)(Handle*, unsigned);
  Result (*event)(Handle*, unsigned);
  Result (*record)(Handle, Handle);
  Result (*elapsed)(float*, Handle, Handle);
  Result (*synchronise)();
};

constexpr int kL2Bytes = 38;            // CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
constexpr int kMaxDynamicShared = 8;    // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
constexpr unsigned kNonBlocking = 1;    // CU_STREAM_NON_BLOCKING
constexpr size_t kRedZone = 4096;
constexpr unsigned char kCanary = 0xC7, kPoison = 0xA5;

inline void say(const char* what, long long value = 0) {
  char text[256];
  const int size = snprintf(text, sizeof text, "\nytk-gpu: %s (%lld)\n", what, value);
  (void)!write(2, text, (size_t)(size < (int)sizeof text ? size : (int)sizeof text - 1));
}

struct Buffer {
  Pointer whole = 0;
  size_t room = 0;
  Pointer data() const { return whole + kRedZone; }
};

struct Gpu {
  Driver api{};
  bool ready = false, failed = false;
  Handle context = nullptr, module = nullptr, stream = nullptr, before = nullptr, after = nullptr;
  size_t flush_bytes = 0;
  Pointer flush = 0;
  std::map<std::string, Handle> functions;
  std::vector<Buffer> buffers;
  std::vector<unsigned char> bytes;
  long long warm_ns = 0, cold_ns = 0;
};

inline Gpu& gpu() {
  static Gpu one;
  return one;
}

inline bool check(Result status, const char* what) {
  if (status != 0) say(what, status);
  return status == 0;
}

template <class F>
inline bool symbol(void* library, const char* name, F& function) {
  function = (F)dlsym(library, name);
  if (function == nullptr) say(name);
  return function != nullptr;
}

inline bool find_driver(Driver& d) {
  void* library = dlopen(YTK_LIBCUDA, RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) return say("no CUDA driver: libcuda.so.1 does not load"), false;
  return symbol(library, "cuInit", d.init) && symbol(library, "cuDeviceGet", d.device) &&
         symbol(library, "cuDevicePrimaryCtxRetain", d.retain) && symbol(library, "cuCtxSetCurrent", d.set_current) &&
         symbol(library, "cuDeviceGetAttribute", d.attribute) && symbol(library, "cuModuleLoadData", d.load) &&
         symbol(library, "cuModuleGetFunction", d.function) && symbol(library, "cuFuncSetAttribute", d.function_attribute) &&
         symbol(library, "cuLaunchKernel", d.launch) && symbol(library, "cuMemAlloc_v2", d.allocate) &&
         symbol(library, "cuMemcpyHtoD_v2", d.to_device) && symbol(library, "cuMemcpyDtoH_v2", d.to_host) &&
         symbol(library, "cuMemsetD8_v2", d.fill) && symbol(library, "cuStreamCreate", d.stream) &&
         symbol(library, "cuEventCreate", d.event) && symbol(library, "cuEventRecord", d.record) &&
         symbol(library, "cuEventElapsedTime", d.elapsed) && symbol(library, "cuCtxSynchronize", d.synchronise);
}

inline bool start() {
  Gpu& g = gpu();
  if (g.ready || g.failed) return g.ready;
  g.failed = true;
  int device = 0, l2 = 0;
  std::vector<char> image;
  FILE* file = fopen(YTK_CUBIN, "rb");
  if (file == nullptr) return say("the cubin is gone"), false;
  char part[65536];
  for (size_t count; (count = fread(part, 1, sizeof part, file)) > 0;) image.insert(image.end(), part, part + count);
  fclose(file);
  Driver& d = g.api;
  if (!find_driver(d) || !check(d.init(0), "cuInit") || !check(d.device(&device, YTK_DEVICE), "cuDeviceGet") ||
      !check(d.retain(&g.context, device), "cuDevicePrimaryCtxRetain") || !check(d.set_current(g.context), "cuCtxSetCurrent") ||
      !check(d.load(&g.module, image.data()), "cuModuleLoadData") || !check(d.stream(&g.stream, kNonBlocking), "cuStreamCreate") ||
      !check(d.event(&g.before, 0), "cuEventCreate") || !check(d.event(&g.after, 0), "cuEventCreate"))
    return false;
  // Twice what the second-level cache holds, whatever this GPU's is.
  if (d.attribute(&l2, kL2Bytes, device) != 0 || l2 <= 0) l2 = 64 << 20;
  g.flush_bytes = 2 * (size_t)l2;
  if (!check(d.allocate(&g.flush, g.flush_bytes), "cuMemAlloc of the flush buffer")) return false;
  g.failed = false;
  return g.ready = true;
}

inline size_t bytes_of(const ytk_tensor& tensor) {
  return (size_t)(ytk_formats::room(tensor) * ytk_formats::item_bytes(tensor));
}

inline bool room_for(Buffer& buffer, size_t size) {
  if (buffer.whole != 0 && buffer.room >= size) return true;
  buffer.room = (size + 511) / 512 * 512;
  return check(gpu().api.allocate(&buffer.whole, buffer.room + 2 * kRedZone), "cuMemAlloc");
}

// Everything in a buffer that is not the tensor's own must still be what it was filled with.
inline bool intact(const Buffer& buffer, size_t size, const char* kind, int index) {
  Gpu& g = gpu();
  const size_t whole = buffer.room + 2 * kRedZone;
  g.bytes.resize(whole);
  if (!check(g.api.to_host(g.bytes.data(), buffer.whole, whole), "cuMemcpyDtoH")) return false;
  for (size_t k = 0; k < whole; ++k) {
    if (k == kRedZone) k += size;
    if (k < whole && g.bytes[k] != kCanary) {
      char text[120];
      snprintf(text, sizeof text, "out of bounds: a store beside %s %d, at byte", kind, index);
      say(text, (long long)k - (long long)kRedZone);
      return false;
    }
  }
  return true;
}

inline int timed(const ytk_context& own, const ytk_tensor* in, int nin, ytk_tensor* out, int nout, long long& took,
                 int (*launcher)(const ytk_context*, const ytk_tensor*, int, ytk_tensor*, int)) {
  Gpu& g = gpu();
  float ms = 0;
  if (!check(g.api.synchronise(), "cuCtxSynchronize") || !check(g.api.record(g.before, g.stream), "cuEventRecord")) return YTK_DEVICE_ERROR;
  const int status = launcher(&own, in, nin, out, nout);
  if (status != YTK_OK) return status;
  // The kernel's own faults show here.
  if (!check(g.api.record(g.after, g.stream), "cuEventRecord") || !check(g.api.synchronise(), "cuCtxSynchronize") ||
      !check(g.api.elapsed(&ms, g.before, g.after), "cuEventElapsedTime"))
    return YTK_DEVICE_ERROR;
  took = (long long)((double)ms * 1e6);
  return YTK_OK;
}

// formats: of inputs, then outputs, in the variant in effect.
inline int call(const ytk_context* ctx, const ytk_tensor* in, int nin, ytk_tensor* out, int nout, const int32_t* formats,
                int (*launcher)(const ytk_context*, const ytk_tensor*, int, ytk_tensor*, int)) {
  if (!start()) return YTK_DEVICE_ERROR;
  Gpu& g = gpu();
  g.buffers.resize((size_t)(nin + nout + 1));
  std::vector<ytk_tensor> tensors(in, in + nin), results(out, out + nout);
  // What goes to the device and comes from it is in the variant's layout.
  std::vector<std::vector<char>> given((size_t)nin), found((size_t)nout);
  for (int k = 0; k < nin; ++k) {
    ytk_tensor& tensor = tensors[(size_t)k];
    tensor.format = formats[k];
    given[(size_t)k].resize(bytes_of(tensor));
    ytk_formats::copy(tensor, (char*)in[k].data, given[(size_t)k].data(), false);
  }
  for (int k = 0; k < nout; ++k) {
    results[(size_t)k].format = formats[nin + k];
    found[(size_t)k].resize(bytes_of(results[(size_t)k]));
  }
  ytk_context own = *ctx;
  own.variant = ctx->threads - 1;
  own.stream = g.stream;
  const size_t workspace = (size_t)ctx->workspace_bytes;
  const auto prepare = [&](Buffer& buffer, size_t size, unsigned char content) {
    return room_for(buffer, size) && check(g.api.fill(buffer.whole, kCanary, buffer.room + 2 * kRedZone), "cuMemset") &&
           (size == 0 || check(g.api.fill(buffer.data(), content, size), "cuMemset"));
  };
  for (int k = 0; k < nin; ++k) {
    Buffer& buffer = g.buffers[(size_t)k];
    const size_t size = given[(size_t)k].size();
    if (!prepare(buffer, size, kPoison)) return YTK_DEVICE_ERROR;
    if (size && !check(g.api.to_device(buffer.data(), given[(size_t)k].data(), size), "cuMemcpyHtoD")) return YTK_DEVICE_ERROR;
    tensors[(size_t)k].data = (void*)buffer.data();
  }
  for (int k = 0; k < nout; ++k) {
    if (!prepare(g.buffers[(size_t)(nin + k)], found[(size_t)k].size(), kPoison)) return YTK_DEVICE_ERROR;
    results[(size_t)k].data = (void*)g.buffers[(size_t)(nin + k)].data();
  }
  Buffer& scratch = g.buffers[(size_t)(nin + nout)];
  if (!prepare(scratch, workspace, kPoison)) return YTK_DEVICE_ERROR;
  own.workspace = (void*)scratch.data();
  const auto outputs_intact = [&](bool again) {
    for (int k = 0; k < nout; ++k) {
      std::vector<char>& first = found[(size_t)k];
      if (!intact(g.buffers[(size_t)(nin + k)], first.size(), "output", k)) return false;
      const unsigned char* const bytes = g.bytes.data() + kRedZone;
      if (again && memcmp(first.data(), bytes, first.size()) != 0) return say("nondeterministic: output", k), false;
      if (again) continue;
      memcpy(first.data(), bytes, first.size());
      ytk_formats::copy(results[(size_t)k], (char*)out[k].data, first.data(), true);
    }
    return true;
  };
  const auto inputs_intact = [&]() {
    for (int k = 0; k < nin; ++k) {
      const size_t size = given[(size_t)k].size();
      if (!intact(g.buffers[(size_t)k], size, "input", k)) return false;
      if (size && memcmp(g.bytes.data() + kRedZone, given[(size_t)k].data(), size) != 0) return say("mutated: input", k), false;
    }
    return true;
  };
  // The first run sees inputs that nobody has seen: it is the one that counts. The second, with cold caches, is only reported.
  int status = timed(own, tensors.data(), nin, results.data(), nout, g.warm_ns, launcher);
  if (status != YTK_OK) return status;
  if (!outputs_intact(false) || !inputs_intact()) return YTK_DEVICE_ERROR;
  for (int k = 0; k < nout; ++k) {
    if (!prepare(g.buffers[(size_t)(nin + k)], found[(size_t)k].size(), kPoison)) return YTK_DEVICE_ERROR;
  }
  if (!check(g.api.fill(g.flush, kPoison, g.flush_bytes), "cuMemset of the flush buffer")) return YTK_DEVICE_ERROR;
  status = timed(own, tensors.data(), nin, results.data(), nout, g.cold_ns, launcher);
  if (status != YTK_OK) return status;
  if (!outputs_intact(true)) return YTK_DEVICE_ERROR;
  if (!inputs_intact()) return YTK_DEVICE_ERROR;
  return intact(scratch, workspace, "workspace", 0) ? YTK_OK : YTK_DEVICE_ERROR;
}

}  // namespace ytk_gpu

extern "C" int ytk_cuda_launch(const ytk_context* ctx, const char* kernel, const uint32_t grid[3], const uint32_t block[3],
                               uint32_t shared_bytes, void** args) {
  ytk_gpu::Gpu& g = ytk_gpu::gpu();
  ytk_gpu::Handle& function = g.functions[kernel];
  if (function == nullptr && !ytk_gpu::check(g.api.function(&function, g.module, kernel), "cuModuleGetFunction")) return YTK_DEVICE_ERROR;
  if (shared_bytes > 48 * 1024 &&
      !ytk_gpu::check(g.api.function_attribute(function, ytk_gpu::kMaxDynamicShared, (int)shared_bytes), "cuFuncSetAttribute"))
    return YTK_DEVICE_ERROR;
  const int status = g.api.launch(function, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared_bytes, ctx->stream, args, nullptr);
  return ytk_gpu::check(status, "cuLaunchKernel") ? YTK_OK : YTK_DEVICE_ERROR;
}
extern "C" int ytk_cuda_prepare(void) { return ytk_gpu::start() ? YTK_OK : YTK_DEVICE_ERROR; }
// The GPU's own clock: nanoseconds of the last call, with the caches flushed before (cold) or right after the first run.
extern "C" __attribute__((visibility("default"))) int64_t ytk_gaia_elapsed(int cold) {
  return cold ? ytk_gpu::gpu().cold_ns : ytk_gpu::gpu().warm_ns;
}
#endif  // YTK_GPU_ENTRY_H
