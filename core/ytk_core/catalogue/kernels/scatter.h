// Rows of features onto a dense grid: the place of a row, and what a place holds.
//
// `owner` has, for each place, the row that fills it: of several rows at one place the last one, as in a loop of
// assignments; -1 where there is none.
namespace ytk_catalogue {

template <class T>
YTK_BODY T scattered(const T* features, const int32_t* owner, int64_t channels, int64_t cells, int64_t element) {
  // out [batch, channels, cells], owner [batch, cells]
  const int64_t cell = element % cells, channel = element / cells % channels, batch = element / cells / channels;
  const int32_t row = owner[batch * cells + cell];
  return row < 0 ? T(0.0f) : features[row * channels + channel];
}

#ifndef __CUDACC__

// The same for all of out, plane by plane: few places are filled, so a plane is cleared and the rows are put into it.
inline void write_planes(const Grid& grid, const float* features, const int32_t* indices, const int32_t* owner,
                         int64_t rows, int64_t channels, int threads, float* out) {
  const int64_t cells = int64_t(grid.depth) * grid.height * grid.width, planes = grid.batch * channels;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t plane = 0; plane < planes; ++plane) {
    float* y = out + plane * cells;
    std::memset(y, 0, size_t(cells) * sizeof(float));
    const int64_t first = plane / channels * cells;
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t cell = cell_of(grid, indices + row * 4);
      if (cell >= first && cell < first + cells && owner[cell] == row)
        y[cell - first] = features[row * channels + plane % channels];
    }
  }
}

#endif

}  // namespace ytk_catalogue
