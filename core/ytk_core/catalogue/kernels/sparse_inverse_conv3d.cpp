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

}  // namespace

extern "C" int64_t ytk_workspace(const ytk_context* ctx, const ytk_tensor* in, int, const ytk_tensor*, int) {
  Plan plan;
  if (!read_plan(ctx, &plan)) return -YTK_BAD_ATTRIBUTE;
  Workspace space(nullptr, 0);
  take_map(space, plan.coarse, in[1].dims[0]);
  return space.used();
}

extern "C" int ytk_launch(const ytk_context* ctx, const ytk_tensor* in, int, ytk_tensor* out, int) {
  Plan plan;
  if (!read_plan(ctx, &plan)) return YTK_BAD_ATTRIBUTE;
  const Window& window = plan.window;
  const int64_t coarse_rows = in[0].dims[0], rows = in[2].dims[0], volume = volume_of(window);
  const int64_t ci = in[3].dims[1], co = in[3].dims[2];
  if (in[1].dims[0] != coarse_rows || in[0].dims[1] != ci || in[3].dims[0] != volume || in[4].dims[0] != co)
    return YTK_BAD_SHAPE;
  Workspace workspace(ctx->workspace, ctx->workspace_bytes);
  const MapSpace space = take_map(workspace, plan.coarse, coarse_rows);
  if (!workspace.enough()) return YTK_WORKSPACE_TOO_SMALL;
  build_map(space, plan.coarse, data_of<int32_t>(in[1]), coarse_rows);
  const RowMap map = space.map();
  const int32_t* indices = data_of<int32_t>(in[2]);
  float* y = data_of<float>(out[0]);
#pragma omp parallel for num_threads(ctx->threads) schedule(dynamic)
  for (int64_t first = 0; first < rows; first += kChunk)
    sum_rows([&](int64_t row, int32_t k) {
               return inverse_neighbour(map, plan.coarse, plan.fine, window, indices + row * 4, k);
             },
             [&](int64_t row) { return cell_of(plan.fine, indices + row * 4) >= 0; }, first,
             std::min(rows, first + kChunk), data_of<float>(in[0]), data_of<float>(in[3]), data_of<float>(in[4]), volume,
             ci, co, y);
  return YTK_OK;
}
