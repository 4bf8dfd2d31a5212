using namespace ytk_catalogue;

extern "C" int64_t ytk_workspace(const ytk_context* ctx, const ytk_tensor* in, int, const ytk_tensor*, int) {
  // The columns of one output place for each thread.
  return (in[0].dims[1] * in[2].dims[2] * in[2].dims[3] + 15) / 16 * 64 * std::max(1, ctx->threads);
}

extern "C" int ytk_launch(const ytk_context* ctx, const ytk_tensor* in, int, ytk_tensor* out, int) {
  DeformShape shape{};
  if (int status = read_deform(ctx, in, out, &shape)) return status;
  const int64_t places = shape.out_height * shape.out_width, volume = int64_t(shape.kernel[0]) * shape.kernel[1];
  const int64_t length = (shape.channels_in * volume + 15) / 16 * 16, per_group = shape.channels_in / shape.groups * volume;
  const int threads = std::max(1, ctx->threads);
  if (ctx->workspace_bytes < uint64_t(length) * sizeof(float) * threads) return YTK_WORKSPACE_TOO_SMALL;
  const float* weight = data_of<float>(in[2]);
  const float* bias = data_of<float>(in[3]);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t part = 0; part < threads; ++part) {
    float* columns = static_cast<float*>(ctx->workspace) + part * length;
    const int64_t all = shape.batch * places;
    for (int64_t k = all * part / threads; k < all * (part + 1) / threads; ++k) {
      const int64_t n = k / places, at = k % places;
      const float* image = data_of<float>(in[0]) + n * shape.channels_in * shape.height * shape.width;
      const float* offset = data_of<float>(in[1]) + n * 2 * shape.offset_groups * volume * places;
      const float* mask = shape.use_mask ? data_of<float>(in[4]) + n * shape.offset_groups * volume * places : nullptr;
      for (int64_t c = 0; c < shape.channels_in; ++c)
        for (int32_t e = 0; e < volume; ++e)
          columns[c * volume + e] = deform_column(image, offset, mask, shape, c, e, at);
      for (int64_t o = 0; o < shape.channels_out; ++o) {
        const float* own = columns + o / (shape.channels_out / shape.groups) * per_group;
        float sum = bias[o];
        for (int64_t i = 0; i < per_group; ++i) sum += own[i] * weight[o * per_group + i];
        data_of<float>(out[0])[(n * shape.channels_out + o) * places + at] = sum;
      }
    }
  }
  return YTK_OK;
}
