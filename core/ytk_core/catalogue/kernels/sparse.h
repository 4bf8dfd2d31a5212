// Sparse 3-D convolution: which input row feeds which output row, and the sum over them.
//
// A sparse tensor is features [N, C] and indices [N, 4] (batch, z, y, x). A row with a negative number or one beyond the
// grid is padding: it takes no part, and its output is 0. Of several rows at one place the last one counts.
//
// Active places are one bit each. The rank of a bit (how many are set before it) numbers the places in the order of
// (batch, z, y, x): the same on every device and in every run, without a hash table.
namespace ytk_catalogue {

struct Grid {
  int32_t batch, depth, height, width;
};

struct Window {
  int32_t kernel[3], stride[3], padding[3], dilation[3];
};

// What the bits say, and the row of each of the set ones.
struct RowMap {
  const uint32_t* bits;
  const int32_t* before;  // set bits before each word
  const int32_t* rows;    // by rank
};

#ifdef __CUDACC__
YTK_BODY int32_t count_bits(uint32_t word) { return __popc(word); }
#else
YTK_BODY int32_t count_bits(uint32_t word) { return __builtin_popcount(word); }
#endif

YTK_BODY int64_t cell_at(const Grid& grid, int32_t b, int32_t z, int32_t y, int32_t x) {
  if (b < 0 || z < 0 || y < 0 || x < 0 || b >= grid.batch || z >= grid.depth || y >= grid.height || x >= grid.width)
    return -1;
  return ((int64_t(b) * grid.depth + z) * grid.height + y) * grid.width + x;
}

YTK_BODY int64_t cell_of(const Grid& grid, const int32_t* index) {
  return cell_at(grid, index[0], index[1], index[2], index[3]);
}

YTK_BODY int32_t rank_of(const uint32_t* bits, const int32_t* before, int64_t cell) {
  const uint32_t word = bits[cell >> 5], bit = 1u << (cell & 31);
  return (word & bit) == 0 ? -1 : before[cell >> 5] + count_bits(word & (bit - 1));
}

YTK_BODY int32_t row_at(const RowMap& map, int64_t cell) {
  const int32_t rank = cell < 0 ? -1 : rank_of(map.bits, map.before, cell);
  return rank < 0 ? -1 : map.rows[rank];
}

// Offsets of kernel element k along z, y, x.
YTK_BODY void element_of(const Window& window, int32_t k, int32_t* at) {
  at[2] = k % window.kernel[2];
  at[1] = k / window.kernel[2] % window.kernel[1];
  at[0] = k / window.kernel[2] / window.kernel[1];
}

// Submanifold convolution: the output is active where the input is, the kernel is centred.
YTK_BODY int32_t submanifold_neighbour(const RowMap& map, const Grid& grid, const Window& window, const int32_t* index,
                                       int32_t k) {
  if (cell_of(grid, index) < 0) return -1;
  int32_t at[3];
  element_of(window, k, at);
  int32_t from[3];
  for (int d = 0; d < 3; ++d) from[d] = index[d + 1] + (at[d] - window.kernel[d] / 2) * window.dilation[d];
  return row_at(map, cell_at(grid, index[0], from[0], from[1], from[2]));
}

// Strided convolution: out[o] takes in[o * stride - padding + k * dilation].
YTK_BODY int32_t strided_neighbour(const RowMap& map, const Grid& in, const Window& window, const int32_t* out_index,
                                   int32_t k) {
  if (out_index[0] < 0) return -1;
  int32_t at[3];
  element_of(window, k, at);
  int32_t from[3];
  for (int d = 0; d < 3; ++d)
    from[d] = out_index[d + 1] * window.stride[d] - window.padding[d] + at[d] * window.dilation[d];
  return row_at(map, cell_at(in, out_index[0], from[0], from[1], from[2]));
}

// The output place that takes the input place `index` through kernel element k; -1 if there is none.
YTK_BODY int64_t strided_target(const Grid& out, const Window& window, const int32_t* index, int32_t k) {
  int32_t at[3];
  element_of(window, k, at);
  int32_t to[3];
  for (int d = 0; d < 3; ++d) {
    const int32_t reach = index[d + 1] + window.padding[d] - at[d] * window.dilation[d];
    if (reach < 0 || reach % window.stride[d] != 0) return -1;
    to[d] = reach / window.stride[d];
  }
  return cell_at(out, index[0], to[0], to[1], to[2]);
}

// Inverse of a strided convolution: the fine place takes every coarse place that it fed, through the same element.
YTK_BODY int32_t inverse_neighbour(const RowMap& coarse, const Grid& coarse_grid, const Grid& fine, const Window& window,
                                   const int32_t* fine_index, int32_t k) {
  if (cell_of(fine, fine_index) < 0) return -1;
  return row_at(coarse, strided_target(coarse_grid, window, fine_index, k));
}

#ifndef __CUDACC__

inline int64_t words_of(const Grid& grid) {
  return (int64_t(grid.batch) * grid.depth * grid.height * grid.width + 31) / 32;
}

// Ranks are 32-bit, and so are extents: a grid of 2^31 places is refused.
inline bool make_grid(int64_t batch, const int64_t* shape, Grid* grid) {
  int64_t cells = batch;
  for (int d = 0; d < 3; ++d) {
    if (shape[d] < 1 || shape[d] > INT32_MAX) return false;
    cells = cells > INT32_MAX ? cells : cells * shape[d];
  }
  if (batch < 1 || cells > INT32_MAX) return false;
  *grid = {int32_t(batch), int32_t(shape[0]), int32_t(shape[1]), int32_t(shape[2])};
  return true;
}

inline bool read_grid(const ytk_context* ctx, const char* shape_name, Grid* grid) {
  int64_t batch, shape[3];
  return read_ints(ctx, "batch_size", &batch, 1) && read_ints(ctx, shape_name, shape, 3) &&
         make_grid(batch, shape, grid);
}

inline bool read_window(const ytk_context* ctx, bool strided, Window* window) {
  int64_t kernel[3], stride[3] = {1, 1, 1}, padding[3] = {0, 0, 0}, dilation[3];
  if (!read_ints(ctx, "kernel_size", kernel, 3) || !read_ints(ctx, "dilation", dilation, 3)) return false;
  if (strided && (!read_ints(ctx, "stride", stride, 3) || !read_ints(ctx, "padding", padding, 3))) return false;
  for (int d = 0; d < 3; ++d) {
    if (kernel[d] < 1 || kernel[d] > 255 || stride[d] < 1 || stride[d] > 255 || padding[d] < 0 || padding[d] > 65535 ||
        dilation[d] < 1 || dilation[d] > 255)
      return false;
    window->kernel[d] = int32_t(kernel[d]);
    window->stride[d] = int32_t(stride[d]);
    window->padding[d] = int32_t(padding[d]);
    window->dilation[d] = int32_t(dilation[d]);
  }
  return true;
}

inline int64_t volume_of(const Window& window) {
  return int64_t(window.kernel[0]) * window.kernel[1] * window.kernel[2];
}

// Extents of the output grid of a strided convolution.
inline bool strided_grid(const Grid& in, const Window& window, Grid* out) {
  const int32_t extents[3] = {in.depth, in.height, in.width};
  int64_t shape[3];
  for (int d = 0; d < 3; ++d) {
    const int64_t span = int64_t(extents[d]) + 2 * window.padding[d] - window.dilation[d] * (window.kernel[d] - 1) - 1;
    if (span < 0) return false;
    shape[d] = span / window.stride[d] + 1;
  }
  return make_grid(in.batch, shape, out);
}

// Cuts 64-byte aligned pieces off the workspace; with no workspace it only adds up what is needed.
class Workspace {
 public:
  Workspace(void* start, uint64_t bytes) : start_(static_cast<char*>(start)), bytes_(bytes) {}

  template <class T>
  T* take(int64_t count) {
    const uint64_t at = used_;
    used_ += (uint64_t(count) * sizeof(T) + 63) / 64 * 64;
    return start_ == nullptr || used_ > bytes_ ? nullptr : reinterpret_cast<T*>(start_ + at);
  }
  bool enough() const { return used_ <= bytes_; }
  int64_t used() const { return int64_t(used_); }

 private:
  char* start_;
  uint64_t bytes_, used_ = 0;
};

// The pieces that a row map needs.
struct MapSpace {
  uint32_t* bits;
  int32_t *before, *rows;
  RowMap map() const { return {bits, before, rows}; }
};

inline MapSpace take_map(Workspace& space, const Grid& grid, int64_t rows) {
  const int64_t words = words_of(grid);
  return {space.take<uint32_t>(words), space.take<int32_t>(words), space.take<int32_t>(rows)};
}

#endif

}  // namespace ytk_catalogue
