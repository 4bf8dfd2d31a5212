using namespace ytk_catalogue;

extern "C" int64_t ytk_workspace(const ytk_context* ctx, const ytk_tensor* in, int, const ytk_tensor*, int) {
  Grid grid;
  if (!read_grid(ctx, "spatial_shape", &grid)) return -YTK_BAD_ATTRIBUTE;
  Workspace space(nullptr, 0);
  take_map(space, grid, in[1].dims[0]);
  return space.used();
}

extern "C" int ytk_launch(const ytk_context* ctx, const ytk_tensor* in, int, ytk_tensor* out, int) {
  Grid grid;
  Window window;
  if (!read_grid(ctx, "spatial_shape", &grid) || !read_window(ctx, false, &window)) return YTK_BAD_ATTRIBUTE;
  const int64_t rows = in[0].dims[0], volume = volume_of(window), ci = in[2].dims[1], co = in[2].dims[2];
  if (in[1].dims[0] != rows || in[0].dims[1] != ci || in[2].dims[0] != volume || in[3].dims[0] != co)
    return YTK_BAD_SHAPE;
  Workspace workspace(ctx->workspace, ctx->workspace_bytes);
  const MapSpace space = take_map(workspace, grid, rows);
  if (!workspace.enough()) return YTK_WORKSPACE_TOO_SMALL;
  const int32_t* indices = data_of<int32_t>(in[1]);
  build_map(space, grid, indices, rows);
  const RowMap map = space.map();
  float* y = data_of<float>(out[0]);
#pragma omp parallel for num_threads(ctx->threads) schedule(dynamic)
  for (int64_t first = 0; first < rows; first += kChunk)
    sum_rows([&](int64_t row, int32_t k) { return submanifold_neighbour(map, grid, window, indices + row * 4, k); },
             [&](int64_t row) { return cell_of(grid, indices + row * 4) >= 0; }, first, std::min(rows, first + kChunk),
             data_of<float>(in[0]), data_of<float>(in[2]), data_of<float>(in[3]), volume, ci, co, y);
  return YTK_OK;
}
