// What the threads of a block do together in generated CUDA kernels, after ytk_loops.h. Device code; the emulation runs it too.
#ifndef YTK_BLOCKS_H
#define YTK_BLOCKS_H

#define YTK_INLINE_MEMBER inline __attribute__((always_inline))

namespace ytk {

// ---- indices of any width (ytk_loops.h has int64_t only) --------------------------------------------------------------
template <class A, class B>
YTK_INLINE common<A, B> floor_divide(A a, B b) {
  const common<A, B> q = a / b, r = a % b;
  return q - ((r != 0) & ((r < 0) != (b < 0)));
}
template <class A, class B>
YTK_INLINE common<A, B> floor_modulo(A a, B b) {
  const common<A, B> r = a % b;
  return (r != 0 && ((r < 0) != (b < 0))) ? r + b : r;
}

// ---- kHWC8: (N, C, H, W) with channels last, C a multiple of eight ------------------------------------------------------
// Indexed as if it were linear.
template <class T, int C, int HW>
struct hwc8 {
  T* at;
  template <class I>
  YTK_INLINE_MEMBER T& operator[](I index) const {
    const I position = index % HW, rest = index / HW, channel = rest % C, image = rest / C;
    return at[(image * HW + position) * C + channel];
  }
};
// The linear index of an element from its place in memory: threads side by side then touch memory side by side.
template <int C, int HW, class I>
YTK_INLINE I from_hwc8(I place) {
  const I channel = place % C, rest = place / C, position = rest % HW, image = rest / HW;
  return (image * C + channel) * HW + position;
}

// ---- warps ------------------------------------------------------------------------------------------------------------
// All 32 lanes must come here. Any type of at most 8 bytes.
template <class T>
YTK_INLINE T shuffle_down(T value, int by) {
  static_assert(sizeof(T) <= 8, "at most 8 bytes");
  if constexpr (sizeof(T) == 8) {
    return bitcast<T>(__shfl_down_sync(0xffffffffu, bitcast<long long>(value), by));
  } else {
    int word = 0;
    std::memcpy(&word, &value, sizeof(T));
    word = __shfl_down_sync(0xffffffffu, word, by);
    std::memcpy(&value, &word, sizeof(T));
    return value;
  }
}
template <class T>
YTK_INLINE T shuffle_up(T value, int by) {
  static_assert(sizeof(T) <= 8, "at most 8 bytes");
  if constexpr (sizeof(T) == 8) {
    return bitcast<T>(__shfl_up_sync(0xffffffffu, bitcast<long long>(value), by));
  } else {
    int word = 0;
    std::memcpy(&word, &value, sizeof(T));
    word = __shfl_up_sync(0xffffffffu, word, by);
    std::memcpy(&value, &word, sizeof(T));
    return value;
  }
}
// What the lane of this number has.
template <class T>
YTK_INLINE T shuffle_from(T value, int lane) {
  static_assert(sizeof(T) <= 8, "at most 8 bytes");
  if constexpr (sizeof(T) == 8) {
    return bitcast<T>(__shfl_sync(0xffffffffu, bitcast<long long>(value), lane));
  } else {
    int word = 0;
    std::memcpy(&word, &value, sizeof(T));
    word = __shfl_sync(0xffffffffu, word, lane);
    std::memcpy(&value, &word, sizeof(T));
    return value;
  }
}

// ---- neighbours in memory, at once ------------------------------------------------------------------------------------
// Elements index to index + count - 1, aligned like count of them, in pieces of at most 16 bytes.
template <class T, int count>
struct pieces {
  static constexpr int each = (int)sizeof(T) * count > 16 ? 16 / (int)sizeof(T) : count;
  struct alignas((int)sizeof(T) * each) piece {
    T of[each];
  };
};
template <int count, class D, class T, class I>
YTK_INLINE void load_vector(D* to, const T* from, I index) {
  using P = pieces<T, count>;
#pragma unroll
  for (int part = 0; part < count / P::each; ++part) {
    const typename P::piece got = *(const typename P::piece*)(from + index + part * P::each);
#pragma unroll
    for (int k = 0; k < P::each; ++k) to[part * P::each + k] = cast<D>(load(got.of[k]));
  }
}
template <int count, class D, class T, class I>
YTK_INLINE void store_vector(const D* from, T* to, I index) {
  using P = pieces<T, count>;
#pragma unroll
  for (int part = 0; part < count / P::each; ++part) {
    typename P::piece put;
#pragma unroll
    for (int k = 0; k < P::each; ++k) store(put.of[k], from[part * P::each + k]);
    *(typename P::piece*)(to + index + part * P::each) = put;
  }
}
template <int count, class D, class T, int C, int HW, class I>
YTK_INLINE void load_vector(D* to, hwc8<T, C, HW> from, I index) {
#pragma unroll
  for (int k = 0; k < count; ++k) to[k] = cast<D>(load(from[index + k]));
}
template <int count, class D, class T, int C, int HW, class I>
YTK_INLINE void store_vector(const D* from, hwc8<T, C, HW> to, I index) {
#pragma unroll
  for (int k = 0; k < count; ++k) store(to[index + k], from[k]);
}

// ---- reductions whose partial results are joined together -------------------------------------------------------------
// Of equal values the one at the lower position stays; a position below 0 says that nothing was seen.
template <bool largest, class T, class I>
YTK_INLINE void join_arg(T& best, I& position, T other, I at) {
  const bool better = largest ? better_max<T>(other, best) : better_min<T>(other, best);
  const bool worse = largest ? better_max<T>(best, other) : better_min<T>(best, other);
  if (at >= 0 && (position < 0 || better || (!worse && at < position))) {
    best = other;
    position = at;
  }
}
template <class T>
YTK_INLINE void join_welford(T& mean, T& squares, T& weight, T other_mean, T other_squares, T other_weight) {
  const T total = weight + other_weight;
  if (other_weight == T(0)) return;
  const T delta = other_mean - mean, share = other_weight / total;
  mean += delta * share;
  squares += other_squares + delta * delta * weight * share;
  weight = total;
}

// ---- scatters ---------------------------------------------------------------------------------------------------------
// Several threads may meet at one element. Used only where the order in which they do so cannot be seen in the result: integers,
// and the larger or smaller of floats (of equal ones, which differ in the sign of zero at most, the bits decide).
template <class T, class F>
YTK_INLINE void join_atomically(T& target, F joined) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "an atomic has 4 or 8 bytes");
  using W = std::conditional_t<sizeof(T) == 4, unsigned, unsigned long long>;
  W* const word = (W*)&target;
  W seen = atomicCAS(word, (W)0, (W)0);
  for (;;) {
    const W wanted = bitcast<W>((T)joined(bitcast<T>(seen)));
    if (wanted == seen) return;
    const W before = atomicCAS(word, seen, wanted);
    if (before == seen) return;
    seen = before;
  }
}
#define YTK_SCATTER(name, on_equal)                                                                          \
  template <bool atomic, class T, class V>                                                                   \
  YTK_INLINE void scatter_##name(T& target, V value) {                                                       \
    if constexpr (atomic) {                                                                                  \
      join_atomically(target, [&](T old) {                                                                   \
        using W = std::conditional_t<sizeof(T) == 4, unsigned, unsigned long long>;                          \
        [[maybe_unused]] const W a = bitcast<W>(old), b = bitcast<W>((T)value);                              \
        on_equal return (T)op_##name(old, (T)value);                                                         \
      });                                                                                                    \
    } else {                                                                                                 \
      store(target, op_##name(load(target), value));                                                         \
    }                                                                                                        \
  }
YTK_SCATTER(add, )
YTK_SCATTER(mul, )
YTK_SCATTER(maximum, if (old == (T)value) return bitcast<T>((W)(a & b));)
YTK_SCATTER(minimum, if (old == (T)value) return bitcast<T>((W)(a | b));)
#undef YTK_SCATTER

// ---- sorts ------------------------------------------------------------------------------------------------------------
// NaN counts as the largest key; equal keys keep their order. As sort_pairs of ytk_loops.h, which is one thread's.
template <bool descending, class P>
YTK_INLINE bool comes_before(const P& x, const P& y) {
  const bool x_nan = x.key != x.key, y_nan = y.key != y.key;
  if (x_nan != y_nan) return descending ? x_nan : y_nan;
  if (!x_nan && x.key != y.key) return descending ? y.key < x.key : x.key < y.key;
  return x.index < y.index;
}
template <bool descending, class P>
YTK_INLINE void order(P* pairs, int64_t low, int64_t high, int64_t count) {
  if (high < count && comes_before<descending>(pairs[high], pairs[low])) {
    const P kept = pairs[low];
    pairs[low] = pairs[high];
    pairs[high] = kept;
  }
}
// Bitonic, in the form whose comparisons all point one way: what is beyond the end counts as last, so any count will do. All
// threads from first to first + threads - 1 come here together; barrier is theirs, the pairs are in memory that they share.
template <bool descending, class P, class B>
YTK_INLINE void sort_together(P* pairs, int64_t count, int first, int threads, B barrier) {
  int64_t half = 1;
  while (2 * half < count) half *= 2;
  for (int64_t size = 1; size <= half; size *= 2) {
    barrier();
    for (int64_t t = first; t < half; t += threads) {
      const int64_t start = t / size * size * 2, within = t % size;
      order<descending>(pairs, start + within, start + 2 * size - 1 - within, count);
    }
    for (int64_t stride = size / 2; stride > 0; stride /= 2) {
      barrier();
      for (int64_t t = first; t < half; t += threads) {
        const int64_t low = t / stride * stride * 2 + t % stride;
        order<descending>(pairs, low, low + stride, count);
      }
    }
  }
  barrier();
}
template <bool descending, class P>
YTK_INLINE void sort_block(P* pairs, int64_t count) {
  sort_together<descending>(pairs, count, (int)threadIdx.x, (int)blockDim.x, []() { __syncthreads(); });
}
template <bool descending, class P>
YTK_INLINE void sort_warp(P* pairs, int64_t count) {
  sort_together<descending>(pairs, count, (int)threadIdx.x % 32, 32, []() { __syncwarp(); });
}

}  // namespace ytk
#endif  // YTK_BLOCKS_H
