// Sparse convolution on a GPU: the row map in a few launches, a table of neighbours, the sums. No atomic whose order
// matters: bits are or-ed, the last row of a place is a maximum, every output element is summed by one thread.
constexpr int kScanWords = 1024;  // words per block of the scan, four per thread

YTK_KERNEL(sparse_fill, int32_t* values, int64_t count, int32_t value);
YTK_KERNEL(sparse_mark, const int32_t* indices, int64_t rows, ytk_catalogue::Grid grid, uint32_t* bits);
YTK_KERNEL(sparse_mark_targets, const int32_t* indices, int64_t rows, ytk_catalogue::Grid in, ytk_catalogue::Grid out,
           ytk_catalogue::Window window, int32_t volume, uint32_t* bits);
YTK_KERNEL(sparse_scan_blocks, const uint32_t* bits, int64_t words, int32_t* sums);
YTK_KERNEL(sparse_scan_sums, int32_t* sums, int64_t blocks, int32_t* total);
YTK_KERNEL(sparse_scan_words, const uint32_t* bits, int64_t words, const int32_t* sums, int32_t* before);
YTK_KERNEL(sparse_rows, const int32_t* indices, int64_t count, ytk_catalogue::Grid grid, const uint32_t* bits,
           const int32_t* before, int32_t* rows);
YTK_KERNEL(sparse_places, const uint32_t* bits, const int32_t* before, int64_t words, ytk_catalogue::Grid grid,
           int32_t* places, int64_t capacity);
YTK_KERNEL(sparse_subm_table, ytk_catalogue::RowMap map, ytk_catalogue::Grid grid, ytk_catalogue::Window window,
           const int32_t* indices, int64_t rows, int32_t volume, int32_t* table);
YTK_KERNEL(sparse_strided_table, ytk_catalogue::RowMap map, ytk_catalogue::Grid in, ytk_catalogue::Window window,
           const int32_t* places, int64_t rows, int32_t volume, int32_t* table);
YTK_KERNEL(sparse_inverse_table, ytk_catalogue::RowMap map, ytk_catalogue::Grid coarse, ytk_catalogue::Grid fine,
           ytk_catalogue::Window window, const int32_t* indices, int64_t rows, int32_t volume, int32_t* table);
YTK_KERNEL(sparse_sum_f32, const float* features, const float* weight, const float* bias, const int32_t* table,
           const int32_t* indices, ytk_catalogue::Grid grid, int64_t rows, int32_t volume, int32_t channels_in,
           int32_t channels_out, const int32_t* active, float* out);
YTK_KERNEL(sparse_sum_f16, const ytk_half* features, const ytk_half* weight, const ytk_half* bias, const int32_t* table,
           const int32_t* indices, ytk_catalogue::Grid grid, int64_t rows, int32_t volume, int32_t channels_in,
           int32_t channels_out, const int32_t* active, ytk_half* out);

#ifdef __CUDACC__

namespace ytk_catalogue {

// Exclusive sums over the block; every thread gives one number, *total gets their sum.
YTK_BODY int32_t block_scan(int32_t value, int32_t* shared, int32_t* total) {
  const int thread = threadIdx.x;
  shared[thread] = value;
  __syncthreads();
  for (int step = 1; step < kThreads; step *= 2) {
    const int32_t other = thread >= step ? shared[thread - step] : 0;
    __syncthreads();
    shared[thread] += other;
    __syncthreads();
  }
  const int32_t result = shared[thread] - value;
  *total = shared[kThreads - 1];
  __syncthreads();
  return result;
}

template <class T>
YTK_BODY void sum_element(const T* features, const T* weight, const T* bias, const int32_t* table,
                          const int32_t* indices, const Grid& grid, int64_t rows, int32_t volume, int32_t channels_in,
                          int32_t channels_out, const int32_t* active, T* out) {
  const int64_t element = thread_index();
  if (element >= rows * channels_out) return;
  const int64_t row = element / channels_out, channel = element % channels_out;
  if (cell_of(grid, indices + row * 4) < 0) {
    put(out + element, 0.0f);
    return;
  }
  float sum = to_float(bias[channel]);
  for (int32_t k = 0; k < volume; ++k) {
    const int32_t from = table[row * volume + k];
    if (from < 0) continue;
    const T* x = features + int64_t(from) * channels_in;
    const T* line = weight + int64_t(k) * channels_in * channels_out + channel;
    for (int32_t i = 0; i < channels_in; ++i) sum += to_float(x[i]) * to_float(line[int64_t(i) * channels_out]);
  }
  // More active voxels than the output has rows: nothing of it may look like a result.
  if (active != nullptr && *active > rows) sum = not_a_number();
  put(out + element, sum);
}

}  // namespace ytk_catalogue

using ytk_catalogue::thread_index;

extern "C" __global__ void sparse_fill(int32_t* values, int64_t count, int32_t value) {
  if (thread_index() < count) values[thread_index()] = value;
}

extern "C" __global__ void sparse_mark(const int32_t* indices, int64_t rows, ytk_catalogue::Grid grid, uint32_t* bits) {
  const int64_t row = thread_index();
  const int64_t cell = row < rows ? ytk_catalogue::cell_of(grid, indices + row * 4) : -1;
  if (cell >= 0) atomicOr(bits + (cell >> 5), 1u << (cell & 31));
}

extern "C" __global__ void sparse_mark_targets(const int32_t* indices, int64_t rows, ytk_catalogue::Grid in,
                                               ytk_catalogue::Grid out, ytk_catalogue::Window window, int32_t volume,
                                               uint32_t* bits) {
  const int64_t element = thread_index();
  if (element >= rows * volume) return;
  const int32_t* index = indices + element / volume * 4;
  if (ytk_catalogue::cell_of(in, index) < 0) return;
  const int64_t cell = ytk_catalogue::strided_target(out, window, index, int32_t(element % volume));
  if (cell >= 0) atomicOr(bits + (cell >> 5), 1u << (cell & 31));
}

extern "C" __global__ void sparse_scan_blocks(const uint32_t* bits, int64_t words, int32_t* sums) {
  __shared__ int32_t shared[ytk_catalogue::kThreads];
  int32_t own = 0, total;
  for (int k = 0; k < kScanWords / ytk_catalogue::kThreads; ++k) {
    const int64_t word = blockIdx.x * int64_t(kScanWords) + threadIdx.x * (kScanWords / ytk_catalogue::kThreads) + k;
    own += word < words ? ytk_catalogue::count_bits(bits[word]) : 0;
  }
  ytk_catalogue::block_scan(own, shared, &total);
  if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

// One block: the sums become the number of bits before each block.
extern "C" __global__ void sparse_scan_sums(int32_t* sums, int64_t blocks, int32_t* total) {
  __shared__ int32_t shared[ytk_catalogue::kThreads];
  int32_t carry = 0;
  for (int64_t start = 0; start < blocks; start += ytk_catalogue::kThreads) {
    const int64_t at = start + threadIdx.x;
    int32_t all;
    const int32_t before = ytk_catalogue::block_scan(at < blocks ? sums[at] : 0, shared, &all);
    if (at < blocks) sums[at] = carry + before;
    carry += all;
  }
  if (threadIdx.x == 0) *total = carry;
}

extern "C" __global__ void sparse_scan_words(const uint32_t* bits, int64_t words, const int32_t* sums, int32_t* before) {
  __shared__ int32_t shared[ytk_catalogue::kThreads];
  constexpr int kOwn = kScanWords / ytk_catalogue::kThreads;
  const int64_t first = blockIdx.x * int64_t(kScanWords) + threadIdx.x * kOwn;
  int32_t counts[kOwn], own = 0, total;
  for (int k = 0; k < kOwn; ++k) {
    counts[k] = first + k < words ? ytk_catalogue::count_bits(bits[first + k]) : 0;
    own += counts[k];
  }
  int32_t rank = sums[blockIdx.x] + ytk_catalogue::block_scan(own, shared, &total);
  for (int k = 0; k < kOwn; ++k) {
    if (first + k < words) before[first + k] = rank;
    rank += counts[k];
  }
}

extern "C" __global__ void sparse_rows(const int32_t* indices, int64_t count, ytk_catalogue::Grid grid,
                                       const uint32_t* bits, const int32_t* before, int32_t* rows) {
  const int64_t row = thread_index();
  const int64_t cell = row < count ? ytk_catalogue::cell_of(grid, indices + row * 4) : -1;
  if (cell >= 0) atomicMax(rows + ytk_catalogue::rank_of(bits, before, cell), int32_t(row));
}

extern "C" __global__ void sparse_places(const uint32_t* bits, const int32_t* before, int64_t words,
                                         ytk_catalogue::Grid grid, int32_t* places, int64_t capacity) {
  const int64_t w = thread_index();
  if (w >= words) return;
  int64_t rank = before[w];
  for (uint32_t word = bits[w]; word != 0 && rank < capacity; word &= word - 1, ++rank) {
    const int64_t cell = w * 32 + (__ffs(word) - 1);
    places[rank * 4 + 3] = int32_t(cell % grid.width);
    places[rank * 4 + 2] = int32_t(cell / grid.width % grid.height);
    places[rank * 4 + 1] = int32_t(cell / grid.width / grid.height % grid.depth);
    places[rank * 4] = int32_t(cell / grid.width / grid.height / grid.depth);
  }
}

extern "C" __global__ void sparse_subm_table(ytk_catalogue::RowMap map, ytk_catalogue::Grid grid,
                                             ytk_catalogue::Window window, const int32_t* indices, int64_t rows,
                                             int32_t volume, int32_t* table) {
  const int64_t e = thread_index();
  if (e < rows * volume)
    table[e] = ytk_catalogue::submanifold_neighbour(map, grid, window, indices + e / volume * 4, int32_t(e % volume));
}

extern "C" __global__ void sparse_strided_table(ytk_catalogue::RowMap map, ytk_catalogue::Grid in,
                                                ytk_catalogue::Window window, const int32_t* places, int64_t rows,
                                                int32_t volume, int32_t* table) {
  const int64_t e = thread_index();
  if (e < rows * volume)
    table[e] = ytk_catalogue::strided_neighbour(map, in, window, places + e / volume * 4, int32_t(e % volume));
}

extern "C" __global__ void sparse_inverse_table(ytk_catalogue::RowMap map, ytk_catalogue::Grid coarse,
                                                ytk_catalogue::Grid fine, ytk_catalogue::Window window,
                                                const int32_t* indices, int64_t rows, int32_t volume, int32_t* table) {
  const int64_t e = thread_index();
  if (e < rows * volume)
    table[e] = ytk_catalogue::inverse_neighbour(map, coarse, fine, window, indices + e / volume * 4, int32_t(e % volume));
}

extern "C" __global__ void sparse_sum_f32(const float* features, const float* weight, const float* bias,
                                          const int32_t* table, const int32_t* indices, ytk_catalogue::Grid grid,
                                          int64_t rows, int32_t volume, int32_t channels_in, int32_t channels_out,
                                          const int32_t* active, float* out) {
  ytk_catalogue::sum_element(features, weight, bias, table, indices, grid, rows, volume, channels_in, channels_out,
                             active, out);
}

extern "C" __global__ void sparse_sum_f16(const ytk_half* features, const ytk_half* weight, const ytk_half* bias,
                                          const int32_t* table, const int32_t* indices, ytk_catalogue::Grid grid,
                                          int64_t rows, int32_t volume, int32_t channels_in, int32_t channels_out,
                                          const int32_t* active, ytk_half* out) {
  ytk_catalogue::sum_element(features, weight, bias, table, indices, grid, rows, volume, channels_in, channels_out,
                             active, out);
}

#else

namespace ytk_catalogue {

inline int64_t scan_blocks(const Grid& grid) { return std::max<int64_t>(1, (words_of(grid) + kScanWords - 1) / kScanWords); }

// Sets `before` of the bits and *total; `sums` has a place for each block of the scan.
inline int rank_bits(const ytk_context* ctx, const Grid& grid, const MapSpace& space, int32_t* sums, int32_t* total) {
  const int64_t words = words_of(grid), blocks = scan_blocks(grid);
  if (int status = sparse_scan_blocks.launch(ctx, {uint32_t(blocks)}, {kThreads}, 0, space.bits, words, sums))
    return status;
  if (int status = sparse_scan_sums.launch(ctx, {1}, {kThreads}, 0, sums, blocks, total)) return status;
  return sparse_scan_words.launch(ctx, {uint32_t(blocks)}, {kThreads}, 0, space.bits, words, sums, space.before);
}

inline int fill(const ytk_context* ctx, void* values, int64_t count, int32_t value) {
  return sparse_fill.launch(ctx, blocks_for(count), {kThreads}, 0, static_cast<int32_t*>(values), count, value);
}

// Builds the row map of `rows` indices; `total` is a place of one number that nobody reads.
inline int build_map(const ytk_context* ctx, const Grid& grid, const int32_t* indices, int64_t rows,
                     const MapSpace& space, int32_t* sums, int32_t* total) {
  if (int status = fill(ctx, space.bits, words_of(grid), 0)) return status;
  if (int status = fill(ctx, space.rows, rows, -1)) return status;
  if (int status = sparse_mark.launch(ctx, blocks_for(rows), {kThreads}, 0, indices, rows, grid, space.bits))
    return status;
  if (int status = rank_bits(ctx, grid, space, sums, total)) return status;
  return sparse_rows.launch(ctx, blocks_for(rows), {kThreads}, 0, indices, rows, grid, space.bits, space.before,
                            space.rows);
}

// Sums every output row from the table of neighbours. `active`: null, or how many rows the output should have had.
inline int sum_rows(const ytk_context* ctx, const ytk_tensor& features, const ytk_tensor& weight, const ytk_tensor& bias,
                    const int32_t* table, const int32_t* indices, const Grid& grid, const int32_t* active,
                    ytk_tensor& out) {
  const int64_t rows = out.dims[0];
  const int32_t volume = int32_t(weight.dims[0]), ci = int32_t(weight.dims[1]), co = int32_t(weight.dims[2]);
  const ytk::Extent3 blocks = blocks_for(rows * co);
  if (is_half(out))
    return sparse_sum_f16.launch(ctx, blocks, {kThreads}, 0, data_of<ytk_half>(features), data_of<ytk_half>(weight),
                                 data_of<ytk_half>(bias), table, indices, grid, rows, volume, ci, co, active,
                                 data_of<ytk_half>(out));
  return sparse_sum_f32.launch(ctx, blocks, {kThreads}, 0, data_of<float>(features), data_of<float>(weight),
                               data_of<float>(bias), table, indices, grid, rows, volume, ci, co, active,
                               data_of<float>(out));
}

}  // namespace ytk_catalogue

#endif
