#ifndef __CUDACC__
using namespace ytk_catalogue;

extern "C" int64_t ytk_workspace(const ytk_context* ctx, const ytk_tensor*, int, const ytk_tensor*, int) {
  Grid grid;
  if (!read_pillar_grid(ctx, &grid)) return -YTK_BAD_ATTRIBUTE;
  return words_of(grid) * 32 * int64_t(sizeof(int32_t));
}

extern "C" int ytk_launch(const ytk_context* ctx, const ytk_tensor* in, int, ytk_tensor* out, int) {
  Grid grid;
  if (!read_pillar_grid(ctx, &grid)) return YTK_BAD_ATTRIBUTE;
  if (in[1].dims[0] != in[0].dims[0] || in[1].dims[1] != 4) return YTK_BAD_SHAPE;
  if (ctx->workspace_bytes < uint64_t(words_of(grid)) * 32 * sizeof(int32_t)) return YTK_WORKSPACE_TOO_SMALL;
  return scatter(ctx, grid, in[0], in[1], static_cast<int32_t*>(ctx->workspace), out[0]);
}
#endif
