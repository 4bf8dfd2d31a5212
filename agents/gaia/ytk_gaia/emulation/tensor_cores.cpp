// Tensor cores and asynchronous copies for the emulation: what is not memory of a kernel, so nothing here is instrumented.
#include <cstdio>
#include <cstring>
#include <deque>

#include "runtime.h"

namespace {

constexpr unsigned kMaxThreads = 1024;
constexpr size_t kLane = 64;  // bytes that a lane hands in at most

struct Pending {
  ytk_emulated_copy copy;
  uint64_t group;
};
struct Copies {
  std::deque<Pending> pending;
  uint64_t group = 0;  // the one that is being filled
};
Copies copies[kMaxThreads];

float half_of(const unsigned char* at) {
  __half value;
  std::memcpy(&value.bits, at, 2);
  return __half::widen(value);
}

}  // namespace

void ytk_emulation_forget_copies() {
  for (Copies& each : copies) each.pending.clear(), each.group = 0;
}

extern "C" {

// PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point type". With g = lane / 4 and t = lane % 4:
//   A (16 x 16): register i has row g + 8 * (i % 2), columns 2 * t + 8 * (i / 2) and the next
//   B (16 x 8):  register i has column g, rows 2 * t + 8 * i and the next
//   D (16 x 8):  value i is row g + 8 * (i / 2), column 2 * t + i % 2
void ytk_emulated_mma_m16n8k16(float* d, const uint32_t* a, const uint32_t* b) {
  uint32_t mine[6];
  std::memcpy(mine, a, 16);
  std::memcpy(mine + 4, b, 8);
  const unsigned char* const all = ytk_emulated_meet("mma.m16n8k16", mine, sizeof mine);
  const int lane = ytk_emulated_lane(), g = lane / 4, t = lane % 4;
  for (int i = 0; i < 4; ++i) {
    const int row = g + 8 * (i / 2), column = 2 * t + i % 2;
    float sum = d[i];
    for (int k = 0; k < 16; ++k) {
      const int of_a = (row % 8) * 4 + k % 8 / 2, register_a = row / 8 + 2 * (k / 8);
      const int of_b = column * 4 + k % 8 / 2, register_b = k / 8;
      sum += half_of(all + of_a * kLane + register_a * 4 + k % 2 * 2) * half_of(all + of_b * kLane + 16 + register_b * 4 + k % 2 * 2);
    }
    d[i] = sum;
  }
}

void ytk_emulated_copy_begin(const ytk_emulated_copy* copy) {
  Copies& own = copies[ytk_emulation_thread()];
  own.pending.push_back({*copy, own.group});
}
void ytk_emulated_copy_commit(void) { ++copies[ytk_emulation_thread()].group; }
int ytk_emulated_copy_next(int newest_groups, ytk_emulated_copy* copy) {
  Copies& own = copies[ytk_emulation_thread()];
  // wait_group waits for groups that were committed; what is not committed is in none.
  if (own.pending.empty() || own.pending.front().group + (uint64_t)newest_groups >= own.group) return 0;
  *copy = own.pending.front().copy;
  own.pending.pop_front();
  return 1;
}

void ytk_emulated_shared_address(const char* what, const void* at, size_t alignment) {
  char text[120];
  const char* const problem = (uintptr_t)at % alignment                                    ? "an address that is not aligned"
                              : ytk_emulation_on_stack(at) || ytk_emulation_in_buffer(at) ? "an address that is not shared memory"
                                                                                          : nullptr;
  if (problem == nullptr) return;
  snprintf(text, sizeof text, "%s with %s", what, problem);
  ytk_emulation_die(text);
}
void ytk_emulated_global_address(const char* what, const void* at, size_t alignment) {
  char text[120];
  const char* const problem = (uintptr_t)at % alignment ? "an address that is not aligned" : ytk_emulation_on_stack(at) ? "a thread's own memory" : nullptr;
  if (problem == nullptr) return;
  snprintf(text, sizeof text, "%s from %s", what, problem);
  ytk_emulation_die(text);
}

}  // extern "C"
