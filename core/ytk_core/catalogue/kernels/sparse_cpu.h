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

// One output row: bias, and for each kernel element the input row times its [channels_in, channels_out] matrix. A row
// that takes part in nothing is 0 if `active` is false.
template <class Neighbour>
void sum_row(Neighbour neighbour, bool active, const float* features, const float* weight, const float* bias,
             int64_t volume, int64_t channels_in, int64_t channels_out, float* out) {
  if (!active) {
    std::memset(out, 0, size_t(channels_out) * sizeof(float));
    return;
  }
  std::memcpy(out, bias, size_t(channels_out) * sizeof(float));
  for (int64_t k = 0; k < volume; ++k) {
    const int32_t row = neighbour(int32_t(k));
    if (row < 0) continue;
    const float* x = features + row * channels_in;
    const float* matrix = weight + k * channels_in * channels_out;
    for (int64_t i = 0; i < channels_in; ++i) {
      const float value = x[i];
      const float* line = matrix + i * channels_out;
      for (int64_t o = 0; o < channels_out; ++o) out[o] += value * line[o];
    }
  }
}

}  // namespace ytk_catalogue
