// One tile of a matrix product by one block, after ytk_mma.h: C[row, column] = sum over k of A[row, k] * B[column, k], any extents.
//
// Operands are functions of (row, k), so transposed, strided, broadcast and computed ones are all the same; the tile goes through
// shared memory, two of them in turn, the next one on its way while this one is computed with. Sums are sums of floats in one order.
#ifndef YTK_GEMM_H
#define YTK_GEMM_H

namespace ytk {

// An operand of a product.
//   along_k   whether neighbours in memory are neighbours along k, or along rows
//   vector    whether `at` gives the address of eight neighbours, aligned to 16 bytes, all of them inside or none
//   one       (row, k) -> float
//   at        (row, k) -> pointer; unused where not vector
template <bool along_k_, bool vector_, class One, class At>
struct gemm_operand {
  static constexpr bool along_k = along_k_, vector = vector_;
  One one;
  At at;
};
template <bool along_k, bool vector, class One, class At>
YTK_INLINE gemm_operand<along_k, vector, One, At> make_operand(One one, At at) {
  return {one, at};
}

template <class T, int count>
struct alignas(count * sizeof(T)) neighbours {
  T at[count];
};
YTK_INLINE half to_half(float x) {
  const uint16_t bits = (uint16_t)pack_halves(x, 0.0f);
  return half{bits};
}

// ---- multiply-adds of floats ------------------------------------------------------------------------------------------
// BM x BN by (BM / TM) * (BN / TN) threads, each TM x TN.
template <int BM, int BN, int BK, int TM, int TN>
struct fma_tile {
  static constexpr int threads = (BM / TM) * (BN / TN), pad = 4;
  static_assert(TM % 4 == 0 && TN % 4 == 0, "four at a time");
  template <bool, bool>
  struct memory {
    alignas(16) float a[2][BK][BM + pad];
    alignas(16) float b[2][BK][BN + pad];
  };
  template <int R>
  static constexpr int share = R* BK / threads;

  // What of a tile of R rows this thread moves, in registers.
  template <int R, class I, class O>
  static YTK_INLINE_MEMBER void fetch(float (&kept)[share<R>], const O& operand, I row0, I k0, I rows, I depth) {
    constexpr int V = O::vector ? 4 : 1;
    static_assert(share<R> % V == 0, "whole vectors");
#pragma unroll
    for (int c = 0; c < share<R> / V; ++c) {
      const int chunk = (int)threadIdx.x + c * threads;
      const I row = row0 + (O::along_k ? chunk / (BK / V) : chunk % (R / V) * V);
      const I k = k0 + (O::along_k ? chunk % (BK / V) * V : chunk / (R / V));
      const bool inside = row < rows && k < depth;
      if constexpr (O::vector) {
        using T = bare<decltype(*operand.at(row, k))>;
        neighbours<T, V> found{};
        if (inside) found = *(const neighbours<T, V>*)operand.at(row, k);
#pragma unroll
        for (int e = 0; e < V; ++e) kept[c * V + e] = (float)load(found.at[e]);
      } else {
        kept[c] = inside ? (float)operand.one(row, k) : 0.0f;
      }
    }
  }
  template <int R, class O>
  static YTK_INLINE_MEMBER void put(float (&tile)[BK][R + pad], const float (&kept)[share<R>]) {
    constexpr int V = O::vector ? 4 : 1;
#pragma unroll
    for (int c = 0; c < share<R> / V; ++c) {
      const int chunk = (int)threadIdx.x + c * threads;
#pragma unroll
      for (int e = 0; e < V; ++e) {
        const int row = O::along_k ? chunk / (BK / V) : chunk % (R / V) * V + e;
        const int k = O::along_k ? chunk % (BK / V) * V + e : chunk / (R / V);
        tile[k][row] = kept[c * V + e];
      }
    }
  }
  // finish: (row, column, sum), for what is inside.
  template <class I, class M, class A, class B, class Finish>
  static YTK_INLINE_MEMBER void run(M& shared, I row0, I column0, I rows, I columns, I depth, const A& a, const B& b, const Finish& finish) {
    float sums[TM][TN] = {}, kept_a[share<BM>], kept_b[share<BN>];
    const int x = (int)threadIdx.x % (BN / TN), y = (int)threadIdx.x / (BN / TN);
    const I steps = (depth + BK - 1) / BK;
    if (steps > 0) {
      fetch<BM>(kept_a, a, row0, (I)0, rows, depth);
      fetch<BN>(kept_b, b, column0, (I)0, columns, depth);
      put<BM, A>(shared.a[0], kept_a);
      put<BN, B>(shared.b[0], kept_b);
    }
    __syncthreads();
    for (I step = 0; step < steps; ++step) {
      const int now = (int)(step % 2);
      const bool more = step + 1 < steps;
      if (more) {
        fetch<BM>(kept_a, a, row0, (step + 1) * BK, rows, depth);
        fetch<BN>(kept_b, b, column0, (step + 1) * BK, columns, depth);
      }
#pragma unroll
      for (int k = 0; k < BK; ++k) {
        neighbours<float, 4> of_a[TM / 4], of_b[TN / 4];
#pragma unroll
        for (int g = 0; g < TM / 4; ++g) of_a[g] = *(const neighbours<float, 4>*)&shared.a[now][k][g * (BM / (TM / 4)) + y * 4];
#pragma unroll
        for (int g = 0; g < TN / 4; ++g) of_b[g] = *(const neighbours<float, 4>*)&shared.b[now][k][g * (BN / (TN / 4)) + x * 4];
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
          for (int j = 0; j < TN; ++j) sums[i][j] += of_a[i / 4].at[i % 4] * of_b[j / 4].at[j % 4];
      }
      if (more) {
        put<BM, A>(shared.a[1 - now], kept_a);
        put<BN, B>(shared.b[1 - now], kept_b);
      }
      __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < TM; ++i) {
      const I row = row0 + i / 4 * (BM / (TM / 4)) + y * 4 + i % 4;
#pragma unroll
      for (int j = 0; j < TN; ++j) {
        const I column = column0 + j / 4 * (BN / (TN / 4)) + x * 4 + j % 4;
        if (row < rows && column < columns) finish(row, column, sums[i][j]);
      }
    }
  }
};

// Four 8 x 8 matrices of a tile of (rows, k) halves, from (row, k) on, as one operand of mma_m16n8k16 takes them: A, 16 rows and 16
// k, the second matrix eight rows further; B, 16 columns (two pieces) and 16 k, the second matrix eight k further.
template <bool along_k, bool is_b, class Tile>
YTK_INLINE void load_piece(uint32_t (&found)[4], const Tile& tile, int row, int k) {
  const int lane = (int)threadIdx.x % 32, j = lane / 8, r = lane % 8;
  const int at_row = row + (is_b ? j / 2 : j % 2) * 8, at_k = k + (is_b ? j % 2 : j / 2) * 8;
  if constexpr (along_k) ldmatrix_x4<false>(found, &tile[at_row + r][at_k]);
  else ldmatrix_x4<true>(found, &tile[at_k + r][at_row]);
}

// ---- tensor cores: halves, sums of floats -----------------------------------------------------------------------------
// BM x BN by WM x WN warps, each (BM / WM) x (BN / WN) in pieces of 16 x 8.
template <int BM, int BN, int BK, int WM, int WN>
struct mma_tile {
  static constexpr int threads = 32 * WM * WN, TM = BM / WM, TN = BN / WN, pad = 8, V = 8;
  static_assert(TM % 16 == 0 && TN % 16 == 0 && BK % 16 == 0, "whole pieces");
  // Neighbours lie as in memory, so that 16 bytes stay together; the padding spreads rows over the banks.
  template <bool a_along_k, bool b_along_k>
  struct memory {
    alignas(16) half a[2][a_along_k ? BM : BK][(a_along_k ? BK : BM) + pad];
    alignas(16) half b[2][b_along_k ? BN : BK][(b_along_k ? BK : BN) + pad];
  };
  template <class T>
  static constexpr bool copied = std::is_same<T, half>::value;
  template <int R>
  static constexpr int share = R* BK / threads;
  template <class O, class I>
  using element = bare<decltype(*std::declval<const O&>().at(I(), I()))>;

  template <int R, class O>
  static YTK_INLINE_MEMBER void place(int c, int& line, int& column) {
    constexpr int width = (O::along_k ? BK : R) / (O::vector ? V : 1);
    const int chunk = (int)threadIdx.x + c * threads;
    line = chunk / width;
    column = chunk % width * (O::vector ? V : 1);
  }
  // Halves that lie side by side go to shared memory by themselves; others through registers, from fetch to put.
  template <int R, class I, class O, class Tile>
  static YTK_INLINE_MEMBER void fetch(Tile& tile, half (&kept)[share<R>], const O& operand, I row0, I k0, I rows, I depth) {
    constexpr int each = O::vector ? V : 1;
    static_assert(share<R> % each == 0, "whole vectors");
#pragma unroll
    for (int c = 0; c < share<R> / each; ++c) {
      int line, column;
      place<R, O>(c, line, column);
      const I row = row0 + (O::along_k ? line : column), k = k0 + (O::along_k ? column : line);
      const bool inside = row < rows && k < depth;
      if constexpr (O::vector) {
        using T = element<O, I>;
        if constexpr (copied<T>) {
          cp_async_16(&tile[line][column], inside ? operand.at(row, k) : operand.at(0, 0), inside);
        } else {
          neighbours<T, V / 2> found[2] = {};
          if (inside) {
            found[0] = ((const neighbours<T, V / 2>*)operand.at(row, k))[0];
            found[1] = ((const neighbours<T, V / 2>*)operand.at(row, k))[1];
          }
#pragma unroll
          for (int e = 0; e < V; ++e) kept[c * V + e] = to_half((float)load(found[e / (V / 2)].at[e % (V / 2)]));
        }
      } else {
        kept[c] = to_half(inside ? (float)operand.one(row, k) : 0.0f);
      }
    }
  }
  template <int R, class I, class O, class Tile>
  static YTK_INLINE_MEMBER void put(Tile& tile, const half (&kept)[share<R>]) {
    constexpr int each = O::vector ? V : 1;
    if constexpr (O::vector) {
      if constexpr (copied<element<O, I>>) return;
    }
#pragma unroll
    for (int c = 0; c < share<R> / each; ++c) {
      int line, column;
      place<R, O>(c, line, column);
      neighbours<half, each> group;
#pragma unroll
      for (int e = 0; e < each; ++e) group.at[e] = kept[c * each + e];
      *(neighbours<half, each>*)&tile[line][column] = group;
    }
  }
  template <class I, class M, class A, class B, class Finish>
  static YTK_INLINE_MEMBER void run(M& shared, I row0, I column0, I rows, I columns, I depth, const A& a, const B& b, const Finish& finish) {
    float sums[TM / 16][TN / 8][4] = {};
    half kept_a[share<BM>], kept_b[share<BN>];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int row = warp / WN * TM, column = warp % WN * TN;
    const I steps = (depth + BK - 1) / BK;
    if (steps > 0) {
      fetch<BM>(shared.a[0], kept_a, a, row0, (I)0, rows, depth);
      fetch<BN>(shared.b[0], kept_b, b, column0, (I)0, columns, depth);
      put<BM, I, A>(shared.a[0], kept_a);
      put<BN, I, B>(shared.b[0], kept_b);
      cp_async_commit();
      cp_async_wait<0>();
    }
    __syncthreads();
    for (I step = 0; step < steps; ++step) {
      const int now = (int)(step % 2);
      const bool more = step + 1 < steps;
      if (more) {
        fetch<BM>(shared.a[1 - now], kept_a, a, row0, (step + 1) * BK, rows, depth);
        fetch<BN>(shared.b[1 - now], kept_b, b, column0, (step + 1) * BK, columns, depth);
        cp_async_commit();
      }
#pragma unroll
      for (int k = 0; k < BK; k += 16) {
        uint32_t of_a[TM / 16][4], of_b[TN / 16][4];
#pragma unroll
        for (int i = 0; i < TM / 16; ++i) load_piece<A::along_k, false>(of_a[i], shared.a[now], row + i * 16, k);
#pragma unroll
        for (int j = 0; j < TN / 16; ++j) load_piece<B::along_k, true>(of_b[j], shared.b[now], column + j * 16, k);
#pragma unroll
        for (int i = 0; i < TM / 16; ++i)
#pragma unroll
          for (int j = 0; j < TN / 8; ++j) mma_m16n8k16(sums[i][j], of_a[i], of_b[j / 2][j % 2 * 2], of_b[j / 2][j % 2 * 2 + 1]);
      }
      if (more) {
        put<BM, I, A>(shared.a[1 - now], kept_a);
        put<BN, I, B>(shared.b[1 - now], kept_b);
        cp_async_wait<0>();
      }
      __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < TM / 16; ++i)
#pragma unroll
      for (int j = 0; j < TN / 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const I at_row = row0 + row + i * 16 + lane / 4 + e / 2 * 8, at_column = column0 + column + j * 8 + lane % 4 * 2 + e % 2;
          if (at_row < rows && at_column < columns) finish(at_row, at_column, sums[i][j][e]);
        }
  }
};

// The block's form: halves on tensor cores where there are any, else floats.
template <bool halves, class Fma, class Mma>
using gemm_tile = std::conditional_t<halves && has_tensor_cores, Mma, Fma>;

}  // namespace ytk
#endif  // YTK_GEMM_H
