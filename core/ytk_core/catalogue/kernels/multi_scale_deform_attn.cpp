using namespace ytk_catalogue;

extern "C" int ytk_launch(const ytk_context* ctx, const ytk_tensor* in, int, ytk_tensor* out, int) {
  AttentionShape shape{};
  if (int status = read_attention(in, &shape)) return status;
  const int32_t* sizes = data_of<int32_t>(in[1]);
  int64_t total = 0;
  for (int64_t level = 0; level < shape.levels; ++level) {
    if (sizes[2 * level] < 0 || sizes[2 * level + 1] < 0) return YTK_BAD_SHAPE;
    total += int64_t(sizes[2 * level]) * sizes[2 * level + 1];
  }
  if (total != shape.length) return YTK_BAD_SHAPE;
  const int64_t count = elements(out[0]);
#pragma omp parallel for num_threads(ctx->threads) schedule(static)
  for (int64_t element = 0; element < count; ++element)
    data_of<float>(out[0])[element] = attended(data_of<float>(in[0]), sizes, data_of<float>(in[2]),
                                               data_of<float>(in[3]), shape, element);
  return YTK_OK;
}
