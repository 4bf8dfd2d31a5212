// What a warp does together with matrices, on a CPU: lanes are fibers, fragments lie in their registers as PTX says.
//
// The layouts are those of the PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point type", "Warp-level matrix load
// instruction: ldmatrix" and "Data movement and conversion instructions: cp.async". Memory is touched here, in the
// instrumented unit, so bounds and races of every lane are seen. None of these orders memory among lanes.
#ifndef YTK_EMULATED_TENSOR_CORES_H
#define YTK_EMULATED_TENSOR_CORES_H
#include <cstddef>
#include <cstdint>

struct ytk_emulated_copy {
  void* to;
  const void* from;
  int bytes;
};
extern "C" {
// All 32 lanes hand in up to 64 bytes; gives those of lane 0, the next lane's 64 bytes further. Kinds must agree.
const unsigned char* ytk_emulated_meet(const char* kind, const void* mine, size_t size);
void ytk_emulated_mma_m16n8k16(float* d, const uint32_t* a, const uint32_t* b);
// Ends the process unless the address is shared memory and aligned.
void ytk_emulated_shared_address(const char* what, const void* at, size_t alignment);
void ytk_emulated_global_address(const char* what, const void* at, size_t alignment);
void ytk_emulated_copy_begin(const ytk_emulated_copy* copy);
void ytk_emulated_copy_commit(void);
// Takes the oldest copy that is not in one of the newest groups; 0: there is none.
int ytk_emulated_copy_next(int newest_groups, ytk_emulated_copy* copy);
}

// Four matrices of 8 x 8 halves: lane 8 * j + r has the address of row r of matrix j. Lane l gets of row l / 4 of each matrix the
// elements 2 * (l % 4) and the next; transposed: of column l / 4.
template <bool transposed>
inline void ytk_emulated_ldmatrix_x4(uint32_t (&found)[4], const void* row) {
  ytk_emulated_shared_address("ldmatrix", row, 16);
  const uint32_t* const words = (const uint32_t*)row;
  const uint32_t mine[4] = {words[0], words[1], words[2], words[3]};
  const unsigned char* const all = ytk_emulated_meet(transposed ? "ldmatrix.trans" : "ldmatrix", mine, sizeof mine);
  const int lane = ytk_emulated_lane(), g = lane / 4, t = lane % 4;
  for (int j = 0; j < 4; ++j) {
    uint16_t pair[2];
    for (int e = 0; e < 2; ++e) {
      const int line = transposed ? 2 * t + e : g, column = transposed ? g : 2 * t + e;
      std::memcpy(&pair[e], all + (8 * j + line) * 64 + column * 2, 2);
    }
    found[j] = (uint32_t)pair[0] | (uint32_t)pair[1] << 16;
  }
}

// 16 bytes to shared memory, of which the first `valid` come from global memory and the rest are zeros. The copy is done when it is
// waited for; until then what is there is no number, and the store counts from the beginning: both are what a GPU may do.
inline void ytk_emulated_cp_async_16(void* to, const void* from, int valid) {
  ytk_emulated_shared_address("cp.async", to, 16);
  if (valid > 0) ytk_emulated_global_address("cp.async", from, 16);
  for (int k = 0; k < 4; ++k) ((volatile uint32_t*)to)[k] = 0x7fff7fffu;
  const ytk_emulated_copy copy = {to, from, valid};
  ytk_emulated_copy_begin(&copy);
}
inline void ytk_emulated_cp_async_wait(int newest_groups) {
  ytk_emulated_copy copy;
  while (ytk_emulated_copy_next(newest_groups, &copy)) {
    for (int k = 0; k < 16; ++k) ((uint8_t*)copy.to)[k] = k < copy.bytes ? ((const uint8_t*)copy.from)[k] : (uint8_t)0;
  }
}
#endif  // YTK_EMULATED_TENSOR_CORES_H
