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
  // A query's head at a time: where its points lie is the same for all channels.
  const int64_t tasks = shape.batch * shape.queries * shape.heads, pixel = shape.heads * shape.channels;
#pragma omp parallel for num_threads(ctx->threads) schedule(static)
  for (int64_t task = 0; task < tasks; ++task) {
    const int64_t head = task % shape.heads, batch = task / shape.heads / shape.queries;
    float* y = data_of<float>(out[0]) + task * shape.channels;
    std::memset(y, 0, size_t(shape.channels) * sizeof(float));
    int64_t start = 0;
    for (int64_t level = 0; level < shape.levels; ++level) {
      const int32_t height = sizes[2 * level], width = sizes[2 * level + 1];
      const float* plane = data_of<float>(in[0]) + (batch * shape.length + start) * pixel + head * shape.channels;
      for (int64_t point = 0; point < shape.points; ++point) {
        const int64_t at = (task * shape.levels + level) * shape.points + point;
        const float weight = data_of<float>(in[3])[at];
        add_sample(plane, pixel, height, width, data_of<float>(in[2])[2 * at + 1] * float(height) - 0.5f,
                   data_of<float>(in[2])[2 * at] * float(width) - 0.5f, weight, shape.channels, y);
      }
      start += int64_t(height) * width;
    }
  }
  return YTK_OK;
}
