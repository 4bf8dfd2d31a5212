// Sparse convolution on a CPU: building the row map, and the sums.
namespace ytk_catalogue {

// Numbers the set bits; gives how many there are.
inline int32_t rank_bits(const uint32_t* bits, int32_t* before, int64_t words) {
  int32_t count = 0;
  for (int64_t w = 0; w < words; ++w) {
    before[w] = count;
    count += count_bits(bits[w]);
  }
  return count;
}

inline void build_map(const MapSpace& space, const Grid& grid, const int32_t* indices, int64_t rows) {
  std::memset(space.bits, 0, size_t(words_of(grid)) * sizeof(uint32_t));
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t cell = cell_of(grid, indices + row * 4);
    if (cell >= 0) space.bits[cell >> 5] |= 1u << (cell & 31);
  }
  rank_bits(space.bits, space.before, words_of(grid));
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t cell = cell_of(grid, indices + row * 4);
    if (cell >= 0) space.rows[rank_of(space.bits, space.before, cell)] = int32_t(row);
  }
}

constexpr int64_t kChunk = 128;  // output rows that one thread takes at a time

// Adds x[r] (a row of features) times matrix [channels_in, channels_out] to out[r], for R rows at once: each line of the
// matrix is read once for all of them.
template <int R>
void add_products(const float* const* x, const float* matrix, int64_t channels_in, int64_t channels_out, float* const* out) {
  int64_t o = 0;
  for (; o + kLanes <= channels_out; o += kLanes) {
    Lanes sums[R];
    for (int r = 0; r < R; ++r) sums[r] = *reinterpret_cast<const Lanes*>(out[r] + o);
    for (int64_t i = 0; i < channels_in; ++i) {
      const Lanes line = *reinterpret_cast<const Lanes*>(matrix + i * channels_out + o);
      for (int r = 0; r < R; ++r) sums[r] += x[r][i] * line;
    }
    for (int r = 0; r < R; ++r) *reinterpret_cast<Lanes*>(out[r] + o) = sums[r];
  }
  for (int r = 0; r < R; ++r)
    for (int64_t i = 0; i < channels_in; ++i)
      for (int64_t rest = o; rest < channels_out; ++rest) out[r][rest] += x[r][i] * matrix[i * channels_out + rest];
}

// The output rows first to last - 1: bias, and for each kernel element k the input row neighbour(row, k) times its matrix.
// The sums of a row have one order, whatever the number of threads. Rows that are not active(row) are 0.
template <class Neighbour, class Active>
void sum_rows(Neighbour neighbour, Active active, int64_t first, int64_t last, const float* features, const float* weight,
              const float* bias, int64_t volume, int64_t channels_in, int64_t channels_out, float* out) {
  for (int64_t row = first; row < last; ++row) {
    float* y = out + row * channels_out;
    if (active(row)) std::memcpy(y, bias, size_t(channels_out) * sizeof(float));
    else std::memset(y, 0, size_t(channels_out) * sizeof(float));
  }
  const float* x[kChunk];
  float* y[kChunk];
  for (int64_t k = 0; k < volume; ++k) {
    int64_t pairs = 0;
    for (int64_t row = first; row < last; ++row) {
      const int32_t from = active(row) ? neighbour(row, int32_t(k)) : -1;
      if (from < 0) continue;
      x[pairs] = features + from * channels_in;
      y[pairs++] = out + row * channels_out;
    }
    const float* matrix = weight + k * channels_in * channels_out;
    int64_t p = 0;
    for (; p + 6 <= pairs; p += 6) add_products<6>(x + p, matrix, channels_in, channels_out, y + p);
    for (; p < pairs; ++p) add_products<1>(x + p, matrix, channels_in, channels_out, y + p);
  }
}

}  // namespace ytk_catalogue
