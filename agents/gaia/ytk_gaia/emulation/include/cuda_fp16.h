// __half for the emulation: IEEE half in memory, float while it is computed with. The conversions are exact, or round to nearest.
#ifndef YTK_EMULATED_FP16_H
#define YTK_EMULATED_FP16_H
#include <cstdint>
#include <cstring>

struct __half {
  uint16_t bits;
  __half() = default;
  __half(float x) { *this = narrow(x); }
  operator float() const { return widen(*this); }
  static float widen(__half h) {
    const uint32_t sign = (uint32_t)(h.bits & 0x8000u) << 16, magnitude = h.bits & 0x7fffu;
    uint32_t word = magnitude << 13;
    float finite;
    std::memcpy(&finite, &word, 4);
    finite *= 0x1p+112f;
    std::memcpy(&word, &finite, 4);
    if (magnitude >= 0x7c00u) word = magnitude << 13 | 0x7f800000u;
    word |= sign;
    std::memcpy(&finite, &word, 4);
    return finite;
  }
  static __half narrow(float x) {
    uint32_t word;
    std::memcpy(&word, &x, 4);
    const uint32_t sign = (word >> 16) & 0x8000u, magnitude = word & 0x7fffffffu;
    __half h;
    if (magnitude > 0x7f800000u) h.bits = (uint16_t)(sign | 0x7e00u);
    else if (magnitude >= 0x477ff000u) h.bits = (uint16_t)(sign | 0x7c00u);
    else if (magnitude < 0x38800000u) {
      float shifted;
      std::memcpy(&shifted, &magnitude, 4);
      shifted += 0.5f;
      uint32_t rounded;
      std::memcpy(&rounded, &shifted, 4);
      h.bits = (uint16_t)(sign | (rounded - 0x3f000000u));
    } else h.bits = (uint16_t)(sign | ((magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13));
    return h;
  }
};
typedef __half half;
inline float __half2float(__half h) { return __half::widen(h); }
inline __half __float2half(float x) { return __half::narrow(x); }
inline __half __float2half_rn(float x) { return __half::narrow(x); }
#endif  // YTK_EMULATED_FP16_H
