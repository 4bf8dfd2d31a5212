// What the kernels of the catalogue share. Both compilers read it; device code and launcher see their part of it.
#ifdef __CUDACC__
#define YTK_BODY __device__ inline
#else
#include <algorithm>
#include <cmath>
#include <cstring>
#define YTK_BODY inline
#endif

namespace ytk_catalogue {

YTK_BODY float to_float(float value) { return value; }
YTK_BODY void put(float* place, float value) { *place = value; }
#ifdef __CUDACC__
YTK_BODY float to_float(ytk_half value) { return __half2float(value); }
YTK_BODY void put(ytk_half* place, float value) { *place = __float2half(value); }
YTK_BODY float not_a_number() { return __int_as_float(0x7fc00000); }
#else
YTK_BODY float not_a_number() { return std::nanf(""); }

// The integers of a node's attribute; false where the node has not exactly `count` of them.
inline bool read_ints(const ytk_context* ctx, const char* name, int64_t* values, int count) {
  for (int k = 0; k < ctx->attr_count; ++k) {
    const ytk_attr& attr = ctx->attrs[k];
    if (std::strcmp(attr.name, name) != 0) continue;
    if (attr.type != YTK_ATTR_INTS || attr.count != count) return false;
    std::copy(attr.ints, attr.ints + count, values);
    return true;
  }
  return false;
}

// The float of a node's attribute.
inline bool read_float(const ytk_context* ctx, const char* name, float* value) {
  for (int k = 0; k < ctx->attr_count; ++k) {
    const ytk_attr& attr = ctx->attrs[k];
    if (std::strcmp(attr.name, name) != 0) continue;
    if (attr.type != YTK_ATTR_FLOATS || attr.count != 1) return false;
    *value = static_cast<float>(attr.floats[0]);
    return true;
  }
  return false;
}

inline int64_t elements(const ytk_tensor& tensor) {
  int64_t count = 1;
  for (int d = 0; d < tensor.rank; ++d) count *= tensor.dims[d];
  return count;
}

template <class T>
const T* data_of(const ytk_tensor& tensor) {
  return static_cast<const T*>(tensor.data);
}

template <class T>
T* data_of(ytk_tensor& tensor) {
  return static_cast<T*>(tensor.data);
}

// Sixteen floats at any address; compilers lower it to what the CPU has.
typedef float Lanes __attribute__((vector_size(64), aligned(4)));
constexpr int64_t kLanes = 16;

#endif

}  // namespace ytk_catalogue
