// RoIAlign: He et al., "Mask R-CNN", section 3, with the half-pixel correction of Detectron2 where `aligned` is set.
namespace ytk_catalogue {

struct RoiShape {
  int64_t batch, channels, height, width, out_height, out_width;
  float scale;
  int32_t sampling_ratio, aligned;
};

constexpr float kMostSamples = 4096.0f;  // along a bin: a box that is no number must not run for ever

// Bilinear with pixels repeated for one pixel beyond the border, 0 farther out.
template <class T>
YTK_BODY float sample_edges(const T* plane, int32_t height, int32_t width, float y, float x) {
  if (!(y >= -1.0f && y <= float(height) && x >= -1.0f && x <= float(width))) return 0.0f;
  y = fmaxf(y, 0.0f);
  x = fmaxf(x, 0.0f);
  int32_t top = int32_t(y), left = int32_t(x), bottom = top + 1, right = left + 1;
  if (top >= height - 1) {
    top = bottom = height - 1;
    y = float(top);
  }
  if (left >= width - 1) {
    left = right = width - 1;
    x = float(left);
  }
  const float dy = y - float(top), dx = x - float(left);
  return (1.0f - dy) * (1.0f - dx) * to_float(plane[int64_t(top) * width + left]) +
         (1.0f - dy) * dx * to_float(plane[int64_t(top) * width + right]) +
         dy * (1.0f - dx) * to_float(plane[int64_t(bottom) * width + left]) +
         dy * dx * to_float(plane[int64_t(bottom) * width + right]);
}

// One element of out [rois, channels, out_height, out_width]. A roi of an image that there is not gives 0.
template <class T>
YTK_BODY float aligned_bin(const T* features, const float* rois, const RoiShape& shape, int64_t element) {
  const int64_t column = element % shape.out_width, row = element / shape.out_width % shape.out_height;
  const int64_t channel = element / shape.out_width / shape.out_height % shape.channels;
  const float* roi = rois + element / shape.out_width / shape.out_height / shape.channels * 5;
  if (!(roi[0] >= 0.0f && roi[0] < float(shape.batch))) return 0.0f;
  const float shift = shape.aligned ? 0.5f : 0.0f;
  const float x0 = roi[1] * shape.scale - shift, y0 = roi[2] * shape.scale - shift;
  float width = roi[3] * shape.scale - shift - x0, height = roi[4] * shape.scale - shift - y0;
  if (!shape.aligned) {
    width = fmaxf(width, 1.0f);
    height = fmaxf(height, 1.0f);
  }
  const float bin_height = height / float(shape.out_height), bin_width = width / float(shape.out_width);
  const float rows = shape.sampling_ratio > 0 ? float(shape.sampling_ratio) : ceilf(bin_height);
  const float columns = shape.sampling_ratio > 0 ? float(shape.sampling_ratio) : ceilf(bin_width);
  const int32_t samples_y = int32_t(fminf(fmaxf(rows, 0.0f), kMostSamples));
  const int32_t samples_x = int32_t(fminf(fmaxf(columns, 0.0f), kMostSamples));
  const T* plane = features + (int64_t(roi[0]) * shape.channels + channel) * shape.height * shape.width;
  float sum = 0.0f;
  for (int32_t i = 0; i < samples_y; ++i) {
    const float y = y0 + float(row) * bin_height + (float(i) + 0.5f) * bin_height / float(samples_y);
    for (int32_t j = 0; j < samples_x; ++j) {
      const float x = x0 + float(column) * bin_width + (float(j) + 0.5f) * bin_width / float(samples_x);
      sum += sample_edges(plane, int32_t(shape.height), int32_t(shape.width), y, x);
    }
  }
  return sum / fmaxf(float(samples_y) * float(samples_x), 1.0f);
}

#ifndef __CUDACC__

inline int read_rois(const ytk_context* ctx, const ytk_tensor* in, const ytk_tensor* out, RoiShape* shape) {
  int64_t ratio, aligned;
  if (!read_ints(ctx, "sampling_ratio", &ratio, 1) || !read_ints(ctx, "aligned", &aligned, 1) ||
      !read_float(ctx, "spatial_scale", &shape->scale) || ratio > int64_t(kMostSamples))
    return YTK_BAD_ATTRIBUTE;
  if (in[1].dims[1] != 5) return YTK_BAD_SHAPE;
  shape->batch = in[0].dims[0], shape->channels = in[0].dims[1];
  shape->height = in[0].dims[2], shape->width = in[0].dims[3];
  shape->out_height = out[0].dims[2], shape->out_width = out[0].dims[3];
  shape->sampling_ratio = int32_t(std::max<int64_t>(ratio, 0)), shape->aligned = aligned != 0;
  return YTK_OK;
}

#endif
}  // namespace ytk_catalogue
