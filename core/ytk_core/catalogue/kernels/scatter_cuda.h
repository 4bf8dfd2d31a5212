// Scattering on a GPU: the last row of each place is a maximum, then every output element is written once.
YTK_KERNEL(scatter_clear, int32_t* owner, int64_t count);
YTK_KERNEL(scatter_own, const int32_t* indices, int64_t rows, ytk_catalogue::Grid grid, int32_t* owner);
YTK_KERNEL(scatter_write_f32, const float* features, const int32_t* owner, int64_t channels, int64_t cells, int64_t count,
           float* out);
YTK_KERNEL(scatter_write_f16, const ytk_half* features, const int32_t* owner, int64_t channels, int64_t cells,
           int64_t count, ytk_half* out);

#ifdef __CUDACC__

extern "C" __global__ void scatter_clear(int32_t* owner, int64_t count) {
  const int64_t k = ytk_catalogue::thread_index();
  if (k < count) owner[k] = -1;
}

extern "C" __global__ void scatter_own(const int32_t* indices, int64_t rows, ytk_catalogue::Grid grid, int32_t* owner) {
  const int64_t row = ytk_catalogue::thread_index();
  const int64_t cell = row < rows ? ytk_catalogue::cell_of(grid, indices + row * 4) : -1;
  if (cell >= 0) atomicMax(owner + cell, int32_t(row));
}

extern "C" __global__ void scatter_write_f32(const float* features, const int32_t* owner, int64_t channels,
                                             int64_t cells, int64_t count, float* out) {
  const int64_t k = ytk_catalogue::thread_index();
  if (k < count) out[k] = ytk_catalogue::scattered(features, owner, channels, cells, k);
}

extern "C" __global__ void scatter_write_f16(const ytk_half* features, const int32_t* owner, int64_t channels,
                                             int64_t cells, int64_t count, ytk_half* out) {
  const int64_t k = ytk_catalogue::thread_index();
  if (k < count) out[k] = ytk_catalogue::scattered(features, owner, channels, cells, k);
}

#else

namespace ytk_catalogue {

// features [rows, channels] and indices [rows, 4] onto out [batch, channels, cells]; owner has a place for each cell.
inline int scatter(const ytk_context* ctx, const Grid& grid, const ytk_tensor& features, const ytk_tensor& indices,
                   int32_t* owner, ytk_tensor& out) {
  const int64_t rows = features.dims[0], channels = features.dims[1], count = elements(out);
  const int64_t cells = int64_t(grid.depth) * grid.height * grid.width, places = cells * grid.batch;
  if (int status = scatter_clear.launch(ctx, blocks_for(places), {kThreads}, 0, owner, places)) return status;
  if (int status = scatter_own.launch(ctx, blocks_for(rows), {kThreads}, 0, data_of<int32_t>(indices), rows, grid, owner))
    return status;
  if (is_half(out))
    return scatter_write_f16.launch(ctx, blocks_for(count), {kThreads}, 0, data_of<ytk_half>(features), owner, channels,
                                    cells, count, data_of<ytk_half>(out));
  return scatter_write_f32.launch(ctx, blocks_for(count), {kThreads}, 0, data_of<float>(features), owner, channels,
                                  cells, count, data_of<float>(out));
}

}  // namespace ytk_catalogue

#endif
