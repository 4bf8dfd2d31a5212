#ifndef __CUDACC__
using namespace ytk_catalogue;

namespace {

struct Plan {
  Grid in, out;
  Window window;
};

bool read_plan(const ytk_context* ctx, Plan* plan) {
  return read_grid(ctx, "spatial_shape", &plan->in) && read_window(ctx, true, &plan->window) &&
         strided_grid(plan->in, plan->window, &plan->out);
}

struct Pieces {
  MapSpace from, to;
  int32_t *sums, *total, *table;
};

Pieces take(Workspace& space, const Plan& plan, int64_t rows, int64_t capacity) {
  const int64_t blocks = std::max(scan_blocks(plan.in), scan_blocks(plan.out));
  return {take_map(space, plan.in, rows), take_map(space, plan.out, 0), space.take<int32_t>(blocks),
          space.take<int32_t>(1), space.take<int32_t>(capacity * volume_of(plan.window))};
}

}  // namespace

extern "C" int64_t ytk_workspace(const ytk_context* ctx, const ytk_tensor* in, int, const ytk_tensor* out, int) {
  Plan plan;
  if (!read_plan(ctx, &plan)) return -YTK_BAD_ATTRIBUTE;
  Workspace space(nullptr, 0);
  take(space, plan, in[1].dims[0], out[0].dims[0]);
  return space.used();
}

extern "C" int ytk_launch(const ytk_context* ctx, const ytk_tensor* in, int, ytk_tensor* out, int) {
  Plan plan;
  if (!read_plan(ctx, &plan)) return YTK_BAD_ATTRIBUTE;
  const int64_t rows = in[0].dims[0], volume = volume_of(plan.window), capacity = out[0].dims[0];
  if (in[1].dims[0] != rows || in[0].dims[1] != in[2].dims[1] || in[2].dims[0] != volume ||
      in[3].dims[0] != in[2].dims[2])
    return YTK_BAD_SHAPE;
  Workspace workspace(ctx->workspace, ctx->workspace_bytes);
  const Pieces pieces = take(workspace, plan, rows, capacity);
  if (!workspace.enough()) return YTK_WORKSPACE_TOO_SMALL;
  const int32_t* indices = data_of<int32_t>(in[1]);
  if (int status = build_map(ctx, plan.in, indices, rows, pieces.from, pieces.sums, pieces.total)) return status;
  if (int status = fill(ctx, pieces.to.bits, words_of(plan.out), 0)) return status;
  if (int status = sparse_mark_targets.launch(ctx, blocks_for(rows * volume), {kThreads}, 0, indices, rows, plan.in,
                                              plan.out, plan.window, int32_t(volume), pieces.to.bits))
    return status;
  int32_t* active = data_of<int32_t>(out[2]);
  if (int status = rank_bits(ctx, plan.out, pieces.to, pieces.sums, active)) return status;
  int32_t* places = data_of<int32_t>(out[1]);
  if (int status = fill(ctx, places, capacity * 4, -1)) return status;
  const int64_t words = words_of(plan.out);
  if (int status = sparse_places.launch(ctx, blocks_for(words), {kThreads}, 0, pieces.to.bits, pieces.to.before, words,
                                        plan.out, places, capacity))
    return status;
  if (int status = sparse_strided_table.launch(ctx, blocks_for(capacity * volume), {kThreads}, 0, pieces.from.map(),
                                               plan.in, plan.window, places, capacity, int32_t(volume), pieces.table))
    return status;
  return sum_rows(ctx, in[0], in[2], in[3], pieces.table, places, plan.out, active, out[0]);
}
#endif
