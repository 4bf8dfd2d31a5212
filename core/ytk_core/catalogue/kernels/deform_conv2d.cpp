using namespace ytk_catalogue;

namespace {

// R sums of products of a row of weights with the columns, for sixteen places at once; the order is that of the columns.
template <int R>
void multiply(const float* columns, const float* weight, int64_t length, const float* bias, float* const* out,
              int64_t places) {
  Lanes sums[R];
  for (int r = 0; r < R; ++r) sums[r] = Lanes{} + bias[r];
  for (int64_t i = 0; i < length; ++i) {
    const Lanes column = *reinterpret_cast<const Lanes*>(columns + i * kLanes);
    for (int r = 0; r < R; ++r) sums[r] += weight[r * length + i] * column;
  }
  for (int r = 0; r < R; ++r) std::memcpy(out[r], &sums[r], size_t(places) * sizeof(float));
}

int64_t column_floats(const ytk_tensor* in) { return in[0].dims[1] * in[2].dims[2] * in[2].dims[3] * kLanes; }

}  // namespace

extern "C" int64_t ytk_workspace(const ytk_context* ctx, const ytk_tensor* in, int, const ytk_tensor*, int) {
  // The columns of sixteen output places for each thread.
  return column_floats(in) * int64_t(sizeof(float)) * std::max(1, ctx->threads);
}

extern "C" int ytk_launch(const ytk_context* ctx, const ytk_tensor* in, int, ytk_tensor* out, int) {
  DeformShape shape{};
  if (int status = read_deform(ctx, in, out, &shape)) return status;
  const int64_t places = shape.out_height * shape.out_width, volume = int64_t(shape.kernel[0]) * shape.kernel[1];
  const int64_t per_group = shape.channels_in / shape.groups * volume, outs = shape.channels_out / shape.groups;
  const int64_t blocks = (places + kLanes - 1) / kLanes, all = shape.batch * blocks;
  const int threads = std::max(1, ctx->threads);
  if (ctx->workspace_bytes < uint64_t(column_floats(in)) * sizeof(float) * threads) return YTK_WORKSPACE_TOO_SMALL;
  const float *weight = data_of<float>(in[2]), *bias = data_of<float>(in[3]);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t part = 0; part < threads; ++part) {
    float* columns = static_cast<float*>(ctx->workspace) + part * column_floats(in);
    for (int64_t block = all * part / threads; block < all * (part + 1) / threads; ++block) {
      const int64_t n = block / blocks, first = block % blocks * kLanes, here = std::min(kLanes, places - first);
      const float* image = data_of<float>(in[0]) + n * shape.channels_in * shape.height * shape.width;
      const float* offset = data_of<float>(in[1]) + n * 2 * shape.offset_groups * volume * places;
      const float* mask = shape.use_mask ? data_of<float>(in[4]) + n * shape.offset_groups * volume * places : nullptr;
      for (int64_t c = 0; c < shape.channels_in; ++c)
        for (int32_t e = 0; e < volume; ++e)
          for (int64_t lane = 0; lane < kLanes; ++lane)
            columns[(c * volume + e) * kLanes + lane] =
                lane < here ? deform_column(image, offset, mask, shape, c, e, first + lane) : 0.0f;
      float* y = data_of<float>(out[0]) + n * shape.channels_out * places + first;
      for (int64_t group = 0; group < shape.groups; ++group) {
        const float* own = columns + group * per_group * kLanes;
        int64_t o = group * outs;
        const int64_t last = o + outs;
        for (; o + 4 <= last; o += 4) {
          float* const rows[] = {y + o * places, y + (o + 1) * places, y + (o + 2) * places, y + (o + 3) * places};
          multiply<4>(own, weight + o * per_group, per_group, bias + o, rows, here);
        }
        for (; o < last; ++o) {
          float* const rows[] = {y + o * places};
          multiply<1>(own, weight + o * per_group, per_group, bias + o, rows, here);
        }
      }
    }
  }
  return YTK_OK;
}
