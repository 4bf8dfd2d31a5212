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

}  // namespace

extern "C" int64_t ytk_workspace(const ytk_context* ctx, const ytk_tensor* in, int, const ytk_tensor*, int) {
  Plan plan;
  if (!read_plan(ctx, &plan)) return -YTK_BAD_ATTRIBUTE;
  Workspace space(nullptr, 0);
  take_map(space, plan.in, in[1].dims[0]);
  take_map(space, plan.out, 0);
  return space.used();
}

extern "C" int ytk_launch(const ytk_context* ctx, const ytk_tensor* in, int, ytk_tensor* out, int) {
  Plan plan;
  if (!read_plan(ctx, &plan)) return YTK_BAD_ATTRIBUTE;
  const Window& window = plan.window;
  const int64_t rows = in[0].dims[0], volume = volume_of(window), ci = in[2].dims[1], co = in[2].dims[2];
  const int64_t capacity = out[0].dims[0];
  if (in[1].dims[0] != rows || in[0].dims[1] != ci || in[2].dims[0] != volume || in[3].dims[0] != co)
    return YTK_BAD_SHAPE;
  Workspace workspace(ctx->workspace, ctx->workspace_bytes);
  const MapSpace from = take_map(workspace, plan.in, rows), to = take_map(workspace, plan.out, 0);
  if (!workspace.enough()) return YTK_WORKSPACE_TOO_SMALL;
  const int32_t* indices = data_of<int32_t>(in[1]);
  build_map(from, plan.in, indices, rows);
  const RowMap map = from.map();

  const int64_t words = words_of(plan.out);
  std::memset(to.bits, 0, size_t(words) * sizeof(uint32_t));
  for (int64_t row = 0; row < rows; ++row) {
    const int32_t* index = indices + row * 4;
    if (cell_of(plan.in, index) < 0) continue;
    for (int64_t k = 0; k < volume; ++k) {
      const int64_t cell = strided_target(plan.out, window, index, int32_t(k));
      if (cell >= 0) to.bits[cell >> 5] |= 1u << (cell & 31);
    }
  }
  const int32_t active = rank_bits(to.bits, to.before, words);
  *data_of<int32_t>(out[2]) = active;
  if (active > capacity) return YTK_OVERFLOW;

  int32_t* places = data_of<int32_t>(out[1]);
  int64_t rank = 0;
  for (int64_t w = 0; w < words; ++w)
    for (uint32_t word = to.bits[w]; word != 0; word &= word - 1, ++rank) {
      const int64_t cell = w * 32 + __builtin_ctz(word);
      places[rank * 4 + 3] = int32_t(cell % plan.out.width);
      places[rank * 4 + 2] = int32_t(cell / plan.out.width % plan.out.height);
      places[rank * 4 + 1] = int32_t(cell / plan.out.width / plan.out.height % plan.out.depth);
      places[rank * 4] = int32_t(cell / plan.out.width / plan.out.height / plan.out.depth);
    }
  std::fill(places + rank * 4, places + capacity * 4, -1);
  float* y = data_of<float>(out[0]);
#pragma omp parallel for num_threads(ctx->threads) schedule(dynamic)
  for (int64_t first = 0; first < capacity; first += kChunk)
    sum_rows([&](int64_t row, int32_t k) { return strided_neighbour(map, plan.in, window, places + row * 4, k); },
             [&](int64_t row) { return row < active; }, first, std::min(capacity, first + kChunk),
             data_of<float>(in[0]), data_of<float>(in[2]), data_of<float>(in[3]), volume, ci, co, y);
  return YTK_OK;
}
