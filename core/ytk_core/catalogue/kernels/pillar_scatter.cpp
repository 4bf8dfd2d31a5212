using namespace ytk_catalogue;

extern "C" int64_t ytk_workspace(const ytk_context* ctx, const ytk_tensor*, int, const ytk_tensor*, int) {
  Grid grid;
  if (!read_pillar_grid(ctx, &grid)) return -YTK_BAD_ATTRIBUTE;
  return words_of(grid) * 32 * int64_t(sizeof(int32_t));
}

extern "C" int ytk_launch(const ytk_context* ctx, const ytk_tensor* in, int, ytk_tensor* out, int) {
  Grid grid;
  if (!read_pillar_grid(ctx, &grid)) return YTK_BAD_ATTRIBUTE;
  const int64_t rows = in[0].dims[0], channels = in[0].dims[1], places = words_of(grid) * 32;
  if (in[1].dims[0] != rows || in[1].dims[1] != 4) return YTK_BAD_SHAPE;
  if (ctx->workspace_bytes < uint64_t(places) * sizeof(int32_t)) return YTK_WORKSPACE_TOO_SMALL;
  int32_t* owner = static_cast<int32_t*>(ctx->workspace);
  std::fill(owner, owner + places, -1);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t cell = cell_of(grid, data_of<int32_t>(in[1]) + row * 4);
    if (cell >= 0) owner[cell] = int32_t(row);
  }
  write_planes(grid, data_of<float>(in[0]), data_of<int32_t>(in[1]), owner, rows, channels, ctx->threads,
               data_of<float>(out[0]));
  return YTK_OK;
}
