#ifndef __CUDACC__
using namespace ytk_catalogue;

namespace {

struct Pieces {
  MapSpace map;
  int32_t *sums, *total, *table;
};

Pieces take(Workspace& space, const Grid& grid, int64_t rows, int64_t volume) {
  return {take_map(space, grid, rows), space.take<int32_t>(scan_blocks(grid)), space.take<int32_t>(1),
          space.take<int32_t>(rows * volume)};
}

}  // namespace

extern "C" int64_t ytk_workspace(const ytk_context* ctx, const ytk_tensor* in, int, const ytk_tensor*, int) {
  Grid grid;
  Window window;
  if (!read_grid(ctx, "spatial_shape", &grid) || !read_window(ctx, false, &window)) return -YTK_BAD_ATTRIBUTE;
  Workspace space(nullptr, 0);
  take(space, grid, in[1].dims[0], volume_of(window));
  return space.used();
}

extern "C" int ytk_launch(const ytk_context* ctx, const ytk_tensor* in, int, ytk_tensor* out, int) {
  Grid grid;
  Window window;
  if (!read_grid(ctx, "spatial_shape", &grid) || !read_window(ctx, false, &window)) return YTK_BAD_ATTRIBUTE;
  const int64_t rows = in[0].dims[0], volume = volume_of(window);
  if (in[1].dims[0] != rows || in[0].dims[1] != in[2].dims[1] || in[2].dims[0] != volume ||
      in[3].dims[0] != in[2].dims[2])
    return YTK_BAD_SHAPE;
  Workspace workspace(ctx->workspace, ctx->workspace_bytes);
  const Pieces pieces = take(workspace, grid, rows, volume);
  if (!workspace.enough()) return YTK_WORKSPACE_TOO_SMALL;
  const int32_t* indices = data_of<int32_t>(in[1]);
  if (int status = build_map(ctx, grid, indices, rows, pieces.map, pieces.sums, pieces.total)) return status;
  if (int status = sparse_subm_table.launch(ctx, blocks_for(rows * volume), {kThreads}, 0, pieces.map.map(), grid,
                                            window, indices, rows, int32_t(volume), pieces.table))
    return status;
  return sum_rows(ctx, in[0], in[2], in[3], pieces.table, indices, grid, nullptr, out[0]);
}
#endif
