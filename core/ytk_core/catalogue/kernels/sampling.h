// Bilinear samples of a plane.
namespace ytk_catalogue {

// The value at (y, x) between the pixels of plane [height, width], whose pixels are `stride` elements apart; 0 outside.
template <class T>
YTK_BODY float sample_zeros(const T* plane, int64_t stride, int32_t height, int32_t width, float y, float x) {
  // A coordinate that is no number fails every comparison, so this one asks what must hold.
  if (!(y > -1.0f && y < float(height) && x > -1.0f && x < float(width))) return 0.0f;
  const float y0 = floorf(y), x0 = floorf(x);
  const int32_t top = int32_t(y0), left = int32_t(x0);
  const float dy = y - y0, dx = x - x0;
  float sum = 0.0f;
  if (top >= 0 && left >= 0) sum += (1.0f - dy) * (1.0f - dx) * to_float(plane[(int64_t(top) * width + left) * stride]);
  if (top >= 0 && left + 1 < width)
    sum += (1.0f - dy) * dx * to_float(plane[(int64_t(top) * width + left + 1) * stride]);
  if (top + 1 < height && left >= 0)
    sum += dy * (1.0f - dx) * to_float(plane[((int64_t(top) + 1) * width + left) * stride]);
  if (top + 1 < height && left + 1 < width)
    sum += dy * dx * to_float(plane[((int64_t(top) + 1) * width + left + 1) * stride]);
  return sum;
}

#ifndef __CUDACC__

// Adds weight times the sample at (y, x) to sums, for `channels` planes that lie pixel by pixel.
inline void add_sample(const float* planes, int64_t stride, int32_t height, int32_t width, float y, float x,
                       float weight, int64_t channels, float* sums) {
  if (!(y > -1.0f && y < float(height) && x > -1.0f && x < float(width))) return;
  const float y0 = std::floor(y), x0 = std::floor(x);
  const int32_t top = int32_t(y0), left = int32_t(x0);
  const float shares[2][2] = {{1.0f - (y - y0), y - y0}, {1.0f - (x - x0), x - x0}};
  for (int32_t down = 0; down < 2; ++down)
    for (int32_t right = 0; right < 2; ++right) {
      const int32_t row = top + down, column = left + right;
      if (row < 0 || row >= height || column < 0 || column >= width) continue;
      const float share = weight * shares[0][down] * shares[1][right];
      const float* pixel = planes + (int64_t(row) * width + column) * stride;
      for (int64_t c = 0; c < channels; ++c) sums[c] += share * pixel[c];
    }
}

#endif

}  // namespace ytk_catalogue
