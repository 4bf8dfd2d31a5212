// Attention by blocks of queries, after ytk_gemm.h: softmax(score(Q K^T)) V without the scores ever being in memory.
//
// Keys come in blocks; each row keeps its largest score so far, the sum of exp(score - largest) and the sum of exp(...) * V, and
// what it has is scaled when a larger score turns up ("online softmax": Milakov and Gimelshein 2018, arXiv:1805.02867; by tiles: Dao
// et al. 2022, arXiv:2205.14135). A row all of whose scores are minus infinity has the sum 0. Sums have one order.
//
// Operands are those of ytk_gemm.h: queries and keys (row, e), values (e, key). score: (query, key, product) -> float.
// finish: (query, e, sum, total).
#ifndef YTK_ATTENTION_H
#define YTK_ATTENTION_H

namespace ytk {

// The running maximum as what is subtracted: a row that has seen nothing but minus infinity subtracts nothing.
YTK_INLINE float subtracted(float top) { return top == -std::numeric_limits<float>::infinity() ? 0.0f : top; }

// ---- multiply-adds of floats ------------------------------------------------------------------------------------------
// 16 groups of eight lanes; a group has BQ / 16 queries, a lane every eighth key and every eighth element of the result.
template <int BQ, int BKV, int E, int EV>
struct attention_fma {
  static constexpr int threads = 128, queries = BQ, R = BQ / 16, C = BKV / 8, D = EV / 8;
  struct memory {
    alignas(16) float q[BQ][E + 1];
    float k[BKV][E + 1], v[BKV][EV + 1], p[BQ][BKV + 1];
  };
  template <int N, int W, class Tile, class Get>
  static YTK_INLINE_MEMBER void fill(Tile& tile, const Get& get) {
#pragma unroll 4
    for (int at = (int)threadIdx.x; at < N * W; at += threads) tile[at / W][at % W] = get(at / W, at % W);
  }
  template <class I, class Q, class K, class V, class Score, class Finish>
  static YTK_INLINE_MEMBER void run(memory& shared, I row0, I rows, I keys, I last_key, I depth, I width, const Q& q, const K& k, const V& v,
                                    const Score& score, const Finish& finish) {
    const int x = (int)threadIdx.x % 8, y = (int)threadIdx.x / 8 * R;
    float top[R], total[R], sums[R][D] = {};
#pragma unroll
    for (int r = 0; r < R; ++r) top[r] = -std::numeric_limits<float>::infinity(), total[r] = 0.0f;
    __syncthreads();  // whoever still reads what the block did before
    fill<BQ, E>(shared.q, [&](int row, int e) { return row0 + row < rows && e < depth ? (float)q.one(row0 + row, (I)e) : 0.0f; });
    for (I key0 = 0; key0 < last_key; key0 += BKV) {
      fill<BKV, E>(shared.k, [&](int row, int e) { return key0 + row < keys && e < depth ? (float)k.one(key0 + row, (I)e) : 0.0f; });
      fill<BKV, EV>(shared.v, [&](int row, int e) { return key0 + row < keys && e < width ? (float)v.one((I)e, key0 + row) : 0.0f; });
      __syncthreads();
      float s[R][C] = {};
#pragma unroll 4
      for (int e = 0; e < E; ++e) {
        float of_k[C];
#pragma unroll
        for (int c = 0; c < C; ++c) of_k[c] = shared.k[x + 8 * c][e];
#pragma unroll
        for (int r = 0; r < R; ++r)
#pragma unroll
          for (int c = 0; c < C; ++c) s[r][c] += shared.q[y + r][e] * of_k[c];
      }
#pragma unroll
      for (int r = 0; r < R; ++r) {
        float largest = top[r], sum = 0.0f;
#pragma unroll
        for (int c = 0; c < C; ++c) {
          const I row = row0 + y + r, key = key0 + x + 8 * c;
          s[r][c] = row < rows && key < keys ? score(row, key, s[r][c]) : -std::numeric_limits<float>::infinity();
          largest = op_maximum(largest, s[r][c]);
        }
        for (int by = 4; by > 0; by /= 2) largest = op_maximum(largest, __shfl_xor_sync(0xffffffffu, largest, by));
        const float minus = subtracted(largest), factor = op_exp(top[r] - minus);
#pragma unroll
        for (int c = 0; c < C; ++c) {
          const float p = op_exp(s[r][c] - minus);
          shared.p[y + r][x + 8 * c] = p;
          sum += p;
        }
        for (int by = 4; by > 0; by /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, by);
        total[r] = total[r] * factor + sum;
        top[r] = largest;
#pragma unroll
        for (int d = 0; d < D; ++d) sums[r][d] *= factor;
      }
      __syncwarp();  // a group of eight lanes is in one warp
#pragma unroll 4
      for (int key = 0; key < BKV; ++key) {
        float of_p[R];
#pragma unroll
        for (int r = 0; r < R; ++r) of_p[r] = shared.p[y + r][key];
#pragma unroll
        for (int d = 0; d < D; ++d)
#pragma unroll
          for (int r = 0; r < R; ++r) sums[r][d] += of_p[r] * shared.v[key][x + 8 * d];
      }
      __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int d = 0; d < D; ++d)
        if (row0 + y + r < rows && x + 8 * d < width) finish(row0 + y + r, (I)(x + 8 * d), sums[r][d], total[r]);
  }
};

// ---- tensor cores -----------------------------------------------------------------------------------------------------
// A warp has 16 queries. The probabilities of a warp lie in its registers as a product leaves them, which is as the next one takes
// them: value 2 * i + j of piece n is row i of the group, column 8 * n + 2 * t + j.
template <int BQ, int BKV, int E, int EV>
struct attention_mma {
  static constexpr int threads = BQ * 2, queries = BQ, pad = 8;
  struct memory {
    alignas(16) half q[BQ][E + pad];
    alignas(16) half k[BKV][E + pad];
    alignas(16) half v[BKV][EV + pad];
  };
  // A tile of N rows of W halves; `together`: eight neighbours of a row are in memory as they are, or beyond the end. address: of
  // the first of eight.
  template <int N, int W, bool together, class Tile, class Get, class At, class I>
  static YTK_INLINE_MEMBER void fill(Tile& tile, I rows, I width, const Get& get, const At& address) {
    if constexpr (together) {
#pragma unroll
      for (int at = (int)threadIdx.x * 8; at < N * W; at += threads * 8) {
        const int row = at / W, e = at % W;
        const bool inside = row < rows && e < width;
        cp_async_16(&tile[row][e], address(inside ? row : 0, inside ? e : 0), inside);
      }
    } else {
#pragma unroll 4
      for (int at = (int)threadIdx.x; at < N * W; at += threads) {
        const int row = at / W, e = at % W;
        tile[row][e] = to_half(row < rows && e < width ? (float)get(row, e) : 0.0f);
      }
    }
  }
  template <class O>
  static constexpr bool halves = std::is_same<bare<decltype(*std::declval<const O&>().at(0, 0))>, half>::value;

  template <class I, class Q, class K, class V, class Score, class Finish>
  static YTK_INLINE_MEMBER void run(memory& shared, I row0, I rows, I keys, I last_key, I depth, I width, const Q& q, const K& k, const V& v,
                                    const Score& score, const Finish& finish) {
    const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4, own = (int)threadIdx.x / 32 * 16;
    float top[2] = {-std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}, total[2] = {};
    float sums[EV / 8][4] = {};
    const auto keys_from = [&](I key0) {
      fill<BKV, E, K::along_k && K::vector && halves<K>>(
          shared.k, keys - key0, depth, [&](int row, int e) { return k.one(key0 + row, (I)e); }, [&](int row, int e) { return k.at(key0 + row, (I)e); });
      cp_async_commit();
    };
    __syncthreads();  // whoever still reads what the block did before
    fill<BQ, E, Q::along_k && Q::vector && halves<Q>>(
        shared.q, rows - row0, depth, [&](int row, int e) { return q.one(row0 + row, (I)e); }, [&](int row, int e) { return q.at(row0 + row, (I)e); });
    keys_from((I)0);
    for (I key0 = 0; key0 < last_key; key0 += BKV) {
      // Values are on their way while scores are computed, the next keys while sums are.
      fill<BKV, EV, !V::along_k && V::vector && halves<V>>(
          shared.v, keys - key0, width, [&](int row, int e) { return v.one((I)e, key0 + row); }, [&](int row, int e) { return v.at((I)e, key0 + row); });
      cp_async_commit();
      cp_async_wait<1>();
      __syncthreads();
      float s[BKV / 8][4] = {};
#pragma unroll
      for (int e = 0; e < E; e += 16) {
        uint32_t of_q[4];
        load_piece<true, false>(of_q, shared.q, own, e);
#pragma unroll
        for (int j = 0; j < BKV / 16; ++j) {
          uint32_t of_k[4];
          load_piece<true, true>(of_k, shared.k, j * 16, e);
          mma_m16n8k16(s[2 * j], of_q, of_k[0], of_k[1]);
          mma_m16n8k16(s[2 * j + 1], of_q, of_k[2], of_k[3]);
        }
      }
      __syncthreads();
      if (key0 + BKV < last_key) keys_from(key0 + BKV);
      else cp_async_commit();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float largest = top[i], sum = 0.0f;
#pragma unroll
        for (int n = 0; n < BKV / 8; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const I row = row0 + own + g + 8 * i, key = key0 + n * 8 + 2 * t + e;
            float& value = s[n][2 * i + e];
            value = row < rows && key < keys ? score(row, key, value) : -std::numeric_limits<float>::infinity();
            largest = op_maximum(largest, value);
          }
        for (int by = 2; by > 0; by /= 2) largest = op_maximum(largest, __shfl_xor_sync(0xffffffffu, largest, by));
        const float minus = subtracted(largest), factor = op_exp(top[i] - minus);
#pragma unroll
        for (int n = 0; n < BKV / 8; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e) sum += s[n][2 * i + e] = op_exp(s[n][2 * i + e] - minus);
        for (int by = 2; by > 0; by /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, by);
        total[i] = total[i] * factor + sum;
        top[i] = largest;
#pragma unroll
        for (int d = 0; d < EV / 8; ++d) sums[d][2 * i] *= factor, sums[d][2 * i + 1] *= factor;
      }
      cp_async_wait<1>();
      __syncthreads();
#pragma unroll
      for (int j = 0; j < BKV / 16; ++j) {
        const uint32_t of_p[4] = {pack_halves(s[2 * j][0], s[2 * j][1]), pack_halves(s[2 * j][2], s[2 * j][3]),
                                  pack_halves(s[2 * j + 1][0], s[2 * j + 1][1]), pack_halves(s[2 * j + 1][2], s[2 * j + 1][3])};
#pragma unroll
        for (int d = 0; d < EV / 16; ++d) {
          uint32_t of_v[4];
          load_piece<false, true>(of_v, shared.v, d * 16, j * 16);
          mma_m16n8k16(sums[2 * d], of_p, of_v[0], of_v[1]);
          mma_m16n8k16(sums[2 * d + 1], of_p, of_v[2], of_v[3]);
        }
      }
      __syncthreads();
    }
    cp_async_wait<0>();
#pragma unroll
    for (int d = 0; d < EV / 8; ++d)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const I row = row0 + own + g + e / 2 * 8, column = (I)(d * 8 + 2 * t + e % 2);
        if (row < rows && column < width) finish(row, column, sums[d][e], total[e / 2]);
      }
  }
};

}  // namespace ytk
#endif  // YTK_ATTENTION_H
