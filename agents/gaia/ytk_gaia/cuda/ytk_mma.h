// Tensor cores and asynchronous copies (sm_80 and later), after ytk_blocks.h. PTX on a device; fibers on the emulation, whose
// layouts are those of the PTX ISA (emulation/include/ytk_emulated_tensor_cores.h). Not confirmed on any GPU.
#ifndef YTK_MMA_H
#define YTK_MMA_H

namespace ytk {

#if defined(YTK_EMULATION)
constexpr bool has_tensor_cores = true;
#else
constexpr bool has_tensor_cores = __CUDA_ARCH__ >= 800;
YTK_INLINE uint32_t shared_address(const void* at) { return (uint32_t)__cvta_generic_to_shared(at); }
#endif

// d (16 x 8, float) += a (16 x 16, halves, by rows) * b (16 x 8, halves, by columns). With g = lane / 4 and t = lane % 4:
// register i of a: row g + 8 * (i % 2), columns 2 * t + 8 * (i / 2) and the next; of b: column g, rows 2 * t + 8 * i and the next;
// value i of d: row g + 8 * (i / 2), column 2 * t + i % 2 (PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point type").
// All lanes of a warp must come here together; memory among them is not ordered. So the next two.
YTK_INLINE void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t b0, const uint32_t b1) {
#if defined(YTK_EMULATION)
  const uint32_t b[2] = {b0, b1};
  ytk_emulated_mma_m16n8k16(d, a, b);
#elif __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// Four 8 x 8 matrices of halves from shared memory: lane 8 * j + r gives the address of row r (16 bytes, aligned) of matrix j.
// Lane l gets of each the elements 2 * (l % 4) and the next of row l / 4; transposed: of column l / 4 (PTX ISA, "ldmatrix").
template <bool transposed>
YTK_INLINE void ldmatrix_x4(uint32_t (&found)[4], const void* row) {
#if defined(YTK_EMULATION)
  ytk_emulated_ldmatrix_x4<transposed>(found, row);
#elif __CUDA_ARCH__ >= 800
  if constexpr (transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(found[0]), "=r"(found[1]), "=r"(found[2]), "=r"(found[3])
                 : "r"(shared_address(row))
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(found[0]), "=r"(found[1]), "=r"(found[2]), "=r"(found[3])
                 : "r"(shared_address(row))
                 : "memory");
  }
#endif
}

// 16 bytes from global to shared memory, both aligned; where `valid` is false, zeros, and nothing is read (PTX ISA, "cp.async").
// Whoever started it sees it after cp_async_wait, others after a barrier that follows.
YTK_INLINE void cp_async_16(void* to, const void* from, bool valid) {
#if defined(YTK_EMULATION)
  ytk_emulated_cp_async_16(to, from, valid ? 16 : 0);
#elif __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(__cvta_generic_to_global(from)),
               "r"(valid ? 16 : 0)
               : "memory");
#endif
}
YTK_INLINE void cp_async_commit() {
#if defined(YTK_EMULATION)
  ytk_emulated_copy_commit();
#elif __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Until all but the newest `groups` groups of this thread are there.
template <int groups>
YTK_INLINE void cp_async_wait() {
#if defined(YTK_EMULATION)
  ytk_emulated_cp_async_wait(groups);
#elif __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
#endif
}

template <class T>
struct bare_of {
  using type = T;
};
template <class T>
struct bare_of<const T> : bare_of<T> {};
template <class T>
struct bare_of<T&> : bare_of<T> {};
template <class T>
using bare = typename bare_of<T>::type;

// What a pointer, an array, or a view of memory in another layout, has stored.
template <class T>
struct stored_type;
template <class T>
struct stored_type<T*> {
  using type = bare<T>;
  static constexpr bool linear = true;
};
template <class T>
struct stored_type<T* __restrict__> : stored_type<T*> {};
template <class T>
struct stored_type<T* const> : stored_type<T*> {};
template <class T, int N>
struct stored_type<const T[N]> : stored_type<T*> {};
template <class T, int C, int HW>
struct stored_type<hwc8<T, C, HW>> {
  using type = bare<T>;
  static constexpr bool linear = false;
};
template <class... P>
constexpr bool any_half = (std::is_same<typename stored_type<P>::type, half>::value || ...);
// Whether neighbours are neighbours in memory, and eight of them are no more than two times 16 bytes.
template <class P>
constexpr bool moves_together = stored_type<P>::linear && sizeof(typename stored_type<P>::type) <= 4;

// Two halves in a register, the first in the lower bits.
YTK_INLINE uint32_t pack_halves(float low, float high) {
#if defined(YTK_EMULATION)
  return (uint32_t)narrow_half(low).bits | (uint32_t)narrow_half(high).bits << 16;
#else
  return bitcast<uint32_t>(__floats2half2_rn(low, high));
#endif
}

}  // namespace ytk
#endif  // YTK_MMA_H
