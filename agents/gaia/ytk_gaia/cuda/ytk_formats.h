// Host code of the judge: tensors between its linear memory and the layout that a variant of a kernel takes. Only kHWC8 so far.
#ifndef YTK_FORMATS_H
#define YTK_FORMATS_H
#include <cstdint>
#include <cstring>
#include <vector>

#include "ytk_kernel.h"

namespace ytk_formats {

inline uint64_t item_bytes(const ytk_tensor& tensor) {
  switch (tensor.dtype) {
    case YTK_INT64: case YTK_FLOAT64: return 8;
    case YTK_FLOAT16: case YTK_BFLOAT16: return 2;
    case YTK_INT8: case YTK_UINT8: case YTK_BOOL: return 1;
    default: return 4;
  }
}
inline uint64_t elements(const ytk_tensor& tensor) {
  uint64_t count = 1;
  for (int axis = 0; axis < tensor.rank; ++axis) count *= (uint64_t)tensor.dims[axis];
  return count;
}
// Elements with padding: channels (dim 1) are last, a multiple of eight.
inline uint64_t room(const ytk_tensor& tensor) {
  if (tensor.format == YTK_LINEAR || tensor.rank < 3) return elements(tensor);
  const uint64_t channels = (uint64_t)tensor.dims[1];
  return channels == 0 ? 0 : elements(tensor) / channels * ((channels + 7) / 8 * 8);
}
// Copies between linear memory and the tensor's layout; what is padded is zero, and is not copied back.
inline void copy(const ytk_tensor& tensor, char* linear, char* laid_out, bool back) {
  const uint64_t item = item_bytes(tensor), count = elements(tensor);
  if (tensor.format == YTK_LINEAR || tensor.rank < 3) {
    if (back) std::memcpy(linear, laid_out, count * item);
    else std::memcpy(laid_out, linear, count * item);
    return;
  }
  const uint64_t images = (uint64_t)tensor.dims[0], channels = (uint64_t)tensor.dims[1], padded = (channels + 7) / 8 * 8;
  const uint64_t pixels = images * channels ? count / (images * channels) : 0;
  if (!back) std::memset(laid_out, 0, room(tensor) * item);
  for (uint64_t n = 0; n < images; ++n)
    for (uint64_t c = 0; c < channels; ++c)
      for (uint64_t p = 0; p < pixels; ++p) {
        char* const a = linear + ((n * channels + c) * pixels + p) * item;
        char* const b = laid_out + ((n * pixels + p) * padded + c) * item;
        if (back) std::memcpy(a, b, item);
        else std::memcpy(b, a, item);
      }
}

}  // namespace ytk_formats
#endif  // YTK_FORMATS_H
