// Multi-scale deformable attention: Zhu et al., "Deformable DETR", equation 3.
namespace ytk_catalogue {

struct AttentionShape {
  int64_t batch, length, heads, channels, queries, levels, points;
};

// One element of out [batch, queries, heads * channels].
template <class T>
YTK_BODY float attended(const T* value, const int32_t* level_sizes, const float* locations, const T* weights,
                        const AttentionShape& shape, int64_t element) {
  const int64_t channel = element % shape.channels, head = element / shape.channels % shape.heads;
  const int64_t query = element / shape.channels / shape.heads;  // over the batch
  const int64_t batch = query / shape.queries, pixel = shape.heads * shape.channels;
  int64_t start = 0;
  float sum = 0.0f;
  for (int64_t level = 0; level < shape.levels; ++level) {
    const int32_t height = level_sizes[2 * level], width = level_sizes[2 * level + 1];
    const int64_t size = int64_t(height) * width;
    // Sizes that do not fit into value would read beyond it.
    if (height < 0 || width < 0 || start + size > shape.length) return not_a_number();
    const T* plane = value + (batch * shape.length + start) * pixel + head * shape.channels + channel;
    for (int64_t point = 0; point < shape.points; ++point) {
      const int64_t at = ((query * shape.heads + head) * shape.levels + level) * shape.points + point;
      const float x = locations[2 * at] * float(width) - 0.5f, y = locations[2 * at + 1] * float(height) - 0.5f;
      sum += to_float(weights[at]) * sample_zeros(plane, pixel, height, width, y, x);
    }
    start += size;
  }
  return sum;
}

#ifndef __CUDACC__

inline int read_attention(const ytk_tensor* in, AttentionShape* shape) {
  const int64_t *value = in[0].dims, *sizes = in[1].dims, *locations = in[2].dims, *weights = in[3].dims;
  *shape = {value[0], value[1], value[2], value[3], locations[1], sizes[0], locations[4]};
  const bool fits = sizes[1] == 2 && locations[0] == value[0] && locations[2] == value[2] && locations[3] == sizes[0] &&
                    locations[5] == 2 && weights[0] == value[0] && weights[1] == locations[1] &&
                    weights[2] == value[2] && weights[3] == sizes[0] && weights[4] == locations[4];
  return fits ? YTK_OK : YTK_BAD_SHAPE;
}

#endif
}  // namespace ytk_catalogue
