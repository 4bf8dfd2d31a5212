#ifndef __CUDACC__
using namespace ytk_catalogue;

namespace {

struct Plan {
  Grid fine, coarse;
  Window window;
};

bool read_plan(const ytk_context* ctx, Plan* plan) {
  return read_grid(ctx, "spatial_shape", &plan->fine) && read_window(ctx, true, &plan->window) &&
         strided_grid(plan->fine, plan->window, &plan->coarse);
}

struct Pieces {
  MapSpace map;
  int32_t *sums, *total, *table;
};

Pieces take(Workspace& space, const Plan& plan, int64_t coarse_rows, int64_t rows) {
  return {take_map(space, plan.coarse, coarse_rows), space.take<int32_t>(scan_blocks(plan.coarse)),
          space.take<int32_t>(1), space.take<int32_t>(rows * volume_of(plan.window))};
}

}  // namespace

extern "C" int64_t ytk_workspace(const ytk_context* ctx, const ytk_tensor* in, int, const ytk_tensor*, int) {
  Plan plan;
  if (!read_plan(ctx, &plan)) return -YTK_BAD_ATTRIBUTE;
  Workspace space(nullptr, 0);
  take(space, plan, in[1].dims[0], in[2].dims[0]);
  return space.used();
}

extern "C" int ytk_launch(const ytk_context* ctx, const ytk_tensor* in, int, ytk_tensor* out, int) {
  Plan plan;
  if (!read_plan(ctx, &plan)) return YTK_BAD_ATTRIBUTE;
  const int64_t coarse_rows = in[0].dims[0], rows = in[2].dims[0], volume = volume_of(plan.window);
  if (in[1].dims[0] != coarse_rows || in[0].dims[1] != in[3].dims[1] || in[3].dims[0] != volume ||
      in[4].dims[0] != in[3].dims[2])
    return YTK_BAD_SHAPE;
  Workspace workspace(ctx->workspace, ctx->workspace_bytes);
  const Pieces pieces = take(workspace, plan, coarse_rows, rows);
  if (!workspace.enough()) return YTK_WORKSPACE_TOO_SMALL;
  if (int status = build_map(ctx, plan.coarse, data_of<int32_t>(in[1]), coarse_rows, pieces.map, pieces.sums,
                             pieces.total))
    return status;
  const int32_t* indices = data_of<int32_t>(in[2]);
  if (int status = sparse_inverse_table.launch(ctx, blocks_for(rows * volume), {kThreads}, 0, pieces.map.map(),
                                               plan.coarse, plan.fine, plan.window, indices, rows, int32_t(volume),
                                               pieces.table))
    return status;
  return sum_rows(ctx, in[0], in[3], in[4], pieces.table, indices, plan.fine, nullptr, out[0]);
}
#endif
