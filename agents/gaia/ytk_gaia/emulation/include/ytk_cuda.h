// The device side of ytk_cuda.h where g++ stands in for the device compiler: a CUDA kernel bundle as C++, one fiber per thread.
// Found before the real header in the include path of the emulation's device unit (it defines __CUDACC__ and YTK_EMULATION).
#ifndef YTK_EMULATED_CUDA_H
#define YTK_EMULATED_CUDA_H

#include "ytk_kernel.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "cuda_fp16.h"

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)

typedef __half ytk_half;

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

// ---- the runtime (runtime.cpp) ------------------------------------------------------------------------------------------
struct ytk_emulated_place {
  uint3 thread, block;
  dim3 block_size, grid_size;
};
extern "C" {
extern ytk_emulated_place ytk_emulated;
void ytk_emulated_barrier(int site);
void ytk_emulated_warp_barrier(unsigned mask);
uint64_t ytk_emulated_exchange(unsigned mask, uint64_t value, int lane);
unsigned ytk_emulated_ballot(unsigned mask, int predicate);
int ytk_emulated_lane(void);
void* ytk_emulated_shared(void);
uint32_t ytk_emulated_cas32(uint32_t* at, uint32_t expected, uint32_t wanted);
uint64_t ytk_emulated_cas64(uint64_t* at, uint64_t expected, uint64_t wanted);
void ytk_emulated_register(const char* name, void (*start)(void** arguments));
}

#define threadIdx (ytk_emulated.thread)
#define blockIdx (ytk_emulated.block)
#define blockDim (ytk_emulated.block_size)
#define gridDim (ytk_emulated.grid_size)
#define warpSize 32

// The place in the text says which barrier it is: all threads of a block must meet at the same one.
#define __syncthreads() ytk_emulated_barrier(__COUNTER__ + 1)
inline void ytk_sync_warp(unsigned mask = 0xffffffffu) { ytk_emulated_warp_barrier(mask); }
#define __syncwarp ytk_sync_warp
inline void __threadfence() {}
inline void __threadfence_block() {}

// `extern __shared__ T name[]` has no form here: with __shared__ as static it does not compile. The bundle says instead:
#define YTK_DYNAMIC_SHARED(type, name) type* const name = (type*)ytk_emulated_shared()

#include "ytk_emulated_tensor_cores.h"

// ---- kernels by name ----------------------------------------------------------------------------------------------------
template <auto Function>
struct ytk_emulated_kernel;
template <class... Parameters, void (*Function)(Parameters...)>
struct ytk_emulated_kernel<Function> {
  // Its arguments are the launcher's memory, not a kernel's.
  template <size_t... K>
  __attribute__((noinline, no_sanitize_address, no_sanitize_thread, no_sanitize_undefined)) static void call(void** arguments, std::index_sequence<K...>) {
    (void)arguments;
    Function(*(std::remove_const_t<Parameters>*)arguments[K]...);
  }
  __attribute__((no_sanitize_address, no_sanitize_thread, no_sanitize_undefined)) static void start(void** arguments) { call(arguments, std::index_sequence_for<Parameters...>()); }
};
struct ytk_emulated_entry {
  ytk_emulated_entry(const char* name, void (*start)(void**)) { ytk_emulated_register(name, start); }
};
#define YTK_KERNEL(kernel, ...)                \
  extern "C" void kernel(__VA_ARGS__);         \
  static const ytk_emulated_entry ytk_entry_of_##kernel(#kernel, ytk_emulated_kernel<&kernel>::start)

// ---- warps --------------------------------------------------------------------------------------------------------------
template <class T>
inline T ytk_emulated_shuffle(unsigned mask, T value, int lane) {
  static_assert(sizeof(T) <= 8, "at most 8 bytes");
  uint64_t word = 0;
  std::memcpy(&word, &value, sizeof(T));
  word = ytk_emulated_exchange(mask, word, lane);
  std::memcpy(&value, &word, sizeof(T));
  return value;
}
template <class T>
inline T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
  const int lane = ytk_emulated_lane();
  return ytk_emulated_shuffle(mask, value, lane / width * width + ((from % width) + width) % width);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
  const int lane = ytk_emulated_lane();
  return ytk_emulated_shuffle(mask, value, lane % width + (int)by < width ? lane + (int)by : lane);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
  const int lane = ytk_emulated_lane();
  return ytk_emulated_shuffle(mask, value, lane % width >= (int)by ? lane - (int)by : lane);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  const int lane = ytk_emulated_lane(), other = lane ^ bits;
  return ytk_emulated_shuffle(mask, value, other / width == lane / width ? other : lane);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) { return ytk_emulated_ballot(mask, predicate); }
inline int __any_sync(unsigned mask, int predicate) { return ytk_emulated_ballot(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return ytk_emulated_ballot(mask, !predicate) == 0; }

// ---- atomics ------------------------------------------------------------------------------------------------------------
inline int atomicCAS(int* at, int expected, int wanted) {
  return (int)ytk_emulated_cas32((uint32_t*)at, (uint32_t)expected, (uint32_t)wanted);
}
inline unsigned atomicCAS(unsigned* at, unsigned expected, unsigned wanted) {
  return ytk_emulated_cas32(at, expected, wanted);
}
inline unsigned long long atomicCAS(unsigned long long* at, unsigned long long expected, unsigned long long wanted) {
  return ytk_emulated_cas64((uint64_t*)at, expected, wanted);
}
template <class T, class F>
inline T ytk_emulated_update(T* at, F change) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "an atomic has 4 or 8 bytes");
  using W = std::conditional_t<sizeof(T) == 4, unsigned, unsigned long long>;
  W seen = atomicCAS((W*)at, (W)0, (W)0);
  for (;;) {
    T old;
    std::memcpy(&old, &seen, sizeof(T));
    const T changed = change(old);
    W wanted;
    std::memcpy(&wanted, &changed, sizeof(T));
    const W before = atomicCAS((W*)at, seen, wanted);
    if (before == seen) return old;
    seen = before;
  }
}
template <class T>
inline T atomicAdd(T* at, T value) {
  return ytk_emulated_update(at, [&](T old) { return (T)(old + value); });
}
template <class T>
inline T atomicMax(T* at, T value) {
  return ytk_emulated_update(at, [&](T old) { return old > value ? old : value; });
}
template <class T>
inline T atomicMin(T* at, T value) {
  return ytk_emulated_update(at, [&](T old) { return old < value ? old : value; });
}
template <class T>
inline T atomicOr(T* at, T value) {
  return ytk_emulated_update(at, [&](T old) { return (T)(old | value); });
}
template <class T>
inline T atomicExch(T* at, T value) {
  return ytk_emulated_update(at, [&](T) { return value; });
}

// ---- arithmetic that CUDA has by other names ------------------------------------------------------------------------------
template <class T>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}
template <class T>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
inline T __ldg(const T* at) {
  return *at;
}
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline int __popc(unsigned word) { return __builtin_popcount(word); }
inline int __ffs(int word) { return __builtin_ffs(word); }
inline int __float_as_int(float x) {
  int bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
inline float __int_as_float(int bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

#endif  // YTK_EMULATED_CUDA_H
