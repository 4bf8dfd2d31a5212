// A CUDA driver whose GPU is the CPU emulation: what the GPU evaluator asks of libcuda.so.1, answered without a GPU.
//
// Device memory is host memory, events are the host's clock, and a launch goes to ytk_cuda_launch of the emulated kernel library that
// was given when this was compiled (EMULATED). Kernels are found by name, as in a real module.
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int (*Launch)(const void*, const char*, const uint32_t*, const uint32_t*, uint32_t, void**);

static Launch emulated() {
  static Launch found = nullptr;
  if (found == nullptr) {
    void* library = dlopen(EMULATED, RTLD_NOW | RTLD_LOCAL);
    found = library ? (Launch)dlsym(library, "ytk_cuda_launch") : nullptr;
  }
  return found;
}
static int64_t now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}
static char names[64][128];
static int name_count = 0;

extern "C" {
int cuInit(unsigned) { return emulated() ? 0 : 999; }
int cuDeviceGet(int* device, int index) { return *device = index, index == 0 ? 0 : 101; }
int cuDevicePrimaryCtxRetain(void** context, int) { return *context = (void*)0x10, 0; }
int cuCtxSetCurrent(void*) { return 0; }
int cuDeviceGetAttribute(int* value, int, int) { return *value = 1 << 16, 0; }
int cuModuleLoadData(void** module, const void* image) { return *module = (void*)0x20, memcmp(image, "\x7f" "ELF", 4) ? 200 : 0; }
int cuModuleGetFunction(void** function, void*, const char* name) {
  if (name_count == 64) return 500;
  strncpy(names[name_count], name, 127);
  *function = names[name_count++];
  return 0;
}
int cuFuncSetAttribute(void*, int, int) { return 0; }
int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void*, void** args, void**) {
  const uint32_t grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
  return emulated()(nullptr, (const char*)function, grid, block, shared, args) == 0 ? 0 : 719;
}
int cuMemAlloc_v2(unsigned long long* pointer, size_t size) { return *pointer = (unsigned long long)aligned_alloc(512, (size + 511) / 512 * 512), 0; }
int cuMemcpyHtoD_v2(unsigned long long to, const void* from, size_t size) { return memcpy((void*)to, from, size), 0; }
int cuMemcpyDtoH_v2(void* to, unsigned long long from, size_t size) { return memcpy(to, (void*)from, size), 0; }
int cuMemsetD8_v2(unsigned long long to, unsigned char value, size_t size) { return memset((void*)to, value, size), 0; }
int cuStreamCreate(void** stream, unsigned) { return *stream = (void*)0x30, 0; }
int cuEventCreate(void** event, unsigned) { return *event = calloc(1, 8), 0; }
int cuEventRecord(void* event, void*) { return *(int64_t*)event = now(), 0; }
int cuEventElapsedTime(float* ms, void* before, void* after) { return *ms = (float)(*(int64_t*)after - *(int64_t*)before) / 1e6f, 0; }
int cuCtxSynchronize() { return 0; }
}
