// Scalar runtime of the loop kernels that Gaia generates. Self-contained: no libtorch, no allocation, no global state.
// It is copied into each kernel bundle; a bundle never needs it from anywhere else.
#ifndef YTK_LOOPS_H
#define YTK_LOOPS_H
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#ifdef _OPENMP
#include <omp.h>
#endif

#define YTK_INLINE static inline __attribute__((always_inline))
#define YTK_NAN (std::numeric_limits<double>::quiet_NaN())
#define YTK_INFINITY (std::numeric_limits<double>::infinity())

namespace ytk {

// ---- halves: 16 bits in memory, float in registers ------------------------------------------------------------------
struct half {
  uint16_t bits;
};
struct bfloat16 {
  uint16_t bits;
};

template <class T, class F>
YTK_INLINE T bitcast(F from) {
  static_assert(sizeof(T) == sizeof(F), "bit casts keep the size");
  T to;
  std::memcpy(&to, &from, sizeof(T));
  return to;
}

// Plain integer arithmetic, so that every compiler and target gives the same bits. The multiplications scale exactly.
YTK_INLINE float widen(half h) {
  const uint32_t sign = (uint32_t)(h.bits & 0x8000u) << 16, magnitude = h.bits & 0x7fffu;
  const uint32_t shifted = magnitude << 13;
  const float finite = bitcast<float>(shifted) * 0x1p+112f;
  const float result = magnitude >= 0x7c00u ? bitcast<float>(shifted | 0x7f800000u) : finite;
  return bitcast<float>(bitcast<uint32_t>(result) | sign);
}
YTK_INLINE float widen(bfloat16 h) { return bitcast<float>((uint32_t)h.bits << 16); }

// To nearest, ties to even; overflow to infinity; NaN stays NaN.
YTK_INLINE half narrow_half(float x) {
  const uint32_t bits = bitcast<uint32_t>(x), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return half{(uint16_t)(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u) return half{(uint16_t)(sign | 0x7c00u)};
  if (magnitude < 0x38800000u) {  // subnormal half: adding 0.5 leaves the rounded value in the low mantissa bits
    const float shifted = bitcast<float>(magnitude) + 0.5f;
    return half{(uint16_t)(sign | (bitcast<uint32_t>(shifted) - 0x3f000000u))};
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u;
  return half{(uint16_t)(sign | (rounded >> 13))};
}
YTK_INLINE bfloat16 narrow_bfloat16(float x) {
  const uint32_t bits = bitcast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return bfloat16{(uint16_t)((bits >> 16) | 0x40u)};
  return bfloat16{(uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

// ---- memory ---------------------------------------------------------------------------------------------------------
template <class T>
YTK_INLINE T load(const T& from) {
  return from;
}
YTK_INLINE float load(const half& from) { return widen(from); }
YTK_INLINE float load(const bfloat16& from) { return widen(from); }
// A bool from outside may hold any byte; reading one that is neither 0 nor 1 would be undefined.
YTK_INLINE bool load(const bool& from) {
  uint8_t byte;
  std::memcpy(&byte, &from, 1);
  return byte != 0;
}
template <class T, class V>
YTK_INLINE void store(T& to, V value) {
  to = (T)value;
}
template <class V>
YTK_INLINE void store(half& to, V value) {
  to = narrow_half((float)value);
}
template <class V>
YTK_INLINE void store(bfloat16& to, V value) {
  to = narrow_bfloat16((float)value);
}

// ---- indices --------------------------------------------------------------------------------------------------------
YTK_INLINE int64_t floor_divide(int64_t a, int64_t b) {
  const int64_t q = a / b, r = a % b;
  return q - ((r != 0) & ((r < 0) != (b < 0)));
}
YTK_INLINE int64_t floor_modulo(int64_t a, int64_t b) {
  const int64_t r = a % b;
  return (r != 0 && ((r < 0) != (b < 0))) ? r + b : r;
}
YTK_INLINE int64_t index_from_zero_in(int64_t i, int64_t size) { return i < 0 ? 0 : (i >= size ? size - 1 : i); }
YTK_INLINE int64_t index_in(int64_t i, int64_t size) { return index_from_zero_in(i < 0 ? i + size : i, size); }

// ---- types ----------------------------------------------------------------------------------------------------------
template <class A, class B>
using common = std::common_type_t<A, B>;  // of one type with itself: that type, no promotion to int
template <class T>
using real = std::conditional_t<std::is_same<T, double>::value, double, float>;
template <class T>
constexpr bool is_int = std::is_integral<T>::value && !std::is_same<T, bool>::value;

template <class T, class A>
YTK_INLINE T cast(A a) {
  return (T)a;
}
template <class T>
YTK_INLINE float round_to(float a);
template <>
inline float round_to<half>(float a) {
  return widen(narrow_half(a));
}
template <>
inline float round_to<bfloat16>(float a) {
  return widen(narrow_bfloat16(a));
}
template <class T>
YTK_INLINE T lowest() {
  return std::numeric_limits<T>::has_infinity ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::lowest();
}
template <class T>
YTK_INLINE T highest() {
  return std::numeric_limits<T>::has_infinity ? std::numeric_limits<T>::infinity() : (std::numeric_limits<T>::max)();
}

// ---- functions of one real ------------------------------------------------------------------------------------------
#define YTK_REAL1(name, expression)                 \
  template <class A>                                \
  YTK_INLINE real<A> name(A a) {                    \
    using R [[maybe_unused]] = real<A>;             \
    const R x = (R)a;                               \
    return (R)(expression);                         \
  }
YTK_REAL1(op_exp, std::exp(x))
YTK_REAL1(op_exp2, std::exp2(x))
YTK_REAL1(op_expm1, std::expm1(x))
YTK_REAL1(op_log, std::log(x))
YTK_REAL1(op_log1p, std::log1p(x))
YTK_REAL1(op_log2, std::log2(x))
YTK_REAL1(op_log10, std::log10(x))
YTK_REAL1(op_sqrt, std::sqrt(x))
YTK_REAL1(op_rsqrt, (R)1 / std::sqrt(x))
YTK_REAL1(op_reciprocal, (R)1 / x)
YTK_REAL1(op_sin, std::sin(x))
YTK_REAL1(op_cos, std::cos(x))
YTK_REAL1(op_tan, std::tan(x))
YTK_REAL1(op_asin, std::asin(x))
YTK_REAL1(op_acos, std::acos(x))
YTK_REAL1(op_atan, std::atan(x))
YTK_REAL1(op_sinh, std::sinh(x))
YTK_REAL1(op_cosh, std::cosh(x))
YTK_REAL1(op_tanh, std::tanh(x))
YTK_REAL1(op_asinh, std::asinh(x))
YTK_REAL1(op_acosh, std::acosh(x))
YTK_REAL1(op_atanh, std::atanh(x))
YTK_REAL1(op_erf, std::erf(x))
YTK_REAL1(op_erfc, std::erfc(x))
YTK_REAL1(op_lgamma, std::lgamma(x))
YTK_REAL1(op_sigmoid, (R)1 / ((R)1 + std::exp(-x)))
YTK_REAL1(op_round, std::nearbyint(x))
YTK_REAL1(op_floor, std::floor(x))
YTK_REAL1(op_ceil, std::ceil(x))
YTK_REAL1(op_trunc, std::trunc(x))
#undef YTK_REAL1

// ---- the same without a call, for vector lanes ----------------------------------------------------------------------
// A libm call ends vectorisation. These are polynomials (least-squares fits, coefficients rounded to float) with selects
// instead of branches, within 2 ulp of the exact value over all floats unless stated (the logistic function: within 3, where exp(-x) is
// finite); NaN and infinities as libm has them. Doubles go to libm.
YTK_INLINE float vec_exp(float x) {
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, which is then in the low bits
  const float rounded = x * 1.44269504f + magic, n = rounded - magic;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  const float r2 = r * r;  // short chains of operations: a long one waits for itself
  const float high = 0.0013942164368927479f * r2 + (0.008363775908946991f * r + 0.041666362434625626f);
  const float p = ((high * r2 + (0.16666573286056519f * r + 0.5f)) * r2 + r) + 1.0f;
  // In two steps: 2^n alone would overflow or vanish where the result does not.
  const uint32_t whole = bitcast<uint32_t>(rounded) - 0x4b400000u, half_n = (uint32_t)((int32_t)whole >> 1);
  const float first = bitcast<float>((half_n + 127u) << 23), second = bitcast<float>((whole - half_n + 127u) << 23);
  // Selects at the end, not a clamped argument: of a clamp compilers make paths of their own, with a dozen more operations.
  // A NaN fails both comparisons and is in r.
  const float scaled = p * first * second, large = x > 89.0f ? (float)YTK_INFINITY : scaled;
  return x < -104.0f ? 0.0f : large;
}
YTK_INLINE float vec_tanh(float x) {
  const float a = std::fabs(x), s = x * x;
  float p = 0.0022986698895692825f;
  p = p * s + -0.00834971759468317f;
  p = p * s + 0.021770883351564407f;
  p = p * s + -0.05395952984690666f;
  p = p * s + 0.13333304226398468f;
  p = p * s + -0.3333333432674408f;
  const float near = x + x * (s * p);
  const float far = std::copysign(1.0f - 2.0f / (vec_exp(a + a) + 1.0f), x);
  return a < 0.625f ? near : (x == x ? far : x);
}
YTK_INLINE float vec_sigmoid(float x) { return 1.0f / (1.0f + vec_exp(-x)); }
// A rational function of degree 11 over 10 below 3.95: within 6 ulp (3.7e-7), a third of the work of two branches within 2 ulp.
// One select of the result, not a clamped argument: of the clamp compilers make paths of their own, with six more operations.
// A NaN fails the comparison and comes out of the quotient.
YTK_INLINE float vec_erf(float x) {
  const float s = x * x;
  float p = 2.025994945142884e-06f;
  p = p * s + 0.0002846821735147387f;
  p = p * s + 0.0038078222423791885f;
  p = p * s + 0.05287439003586769f;
  p = p * s + 0.1915421187877655f;
  p = p * s + 1.1283791065216064f;
  float q = 3.783241845667362e-05f;
  q = q * s + 0.0011706477962434292f;
  q = q * s + 0.015054401941597462f;
  q = q * s + 0.11455626040697098f;
  q = q * s + 0.5030824542045593f;
  q = q * s + 1.0f;
  const float inside = x * p / q;
  return s >= 15.6025f ? std::copysign(1.0f, x) : inside;
}
#define YTK_VECTOR1(name)                       \
  YTK_INLINE double vec_##name(double x) {      \
    return op_##name(x);                        \
  }                                             \
  template <class A>                            \
  YTK_INLINE float vec_##name(A x) {            \
    return vec_##name((float)x);                \
  }
YTK_VECTOR1(exp)
YTK_VECTOR1(tanh)
YTK_VECTOR1(sigmoid)
YTK_VECTOR1(erf)
#undef YTK_VECTOR1

// ---- functions of one value of any type -----------------------------------------------------------------------------
template <class A>
YTK_INLINE A op_abs(A a) {
  if constexpr (std::is_floating_point<A>::value) return std::fabs(a);
  else return a < A(0) ? (A)(0 - (std::make_unsigned_t<A>)a) : a;
}
YTK_INLINE bool op_abs(bool a) { return a; }
template <class A>
YTK_INLINE A op_neg(A a) {
  if constexpr (is_int<A>) return (A)(0 - (std::make_unsigned_t<A>)a);
  else return (A)(-a);
}
template <class A>
YTK_INLINE A op_relu(A a) {
  return a > A(0) ? a : (a != a ? a : A(0));
}
template <class A>
YTK_INLINE A op_identity(A a) {
  return a;
}
template <class A>
YTK_INLINE A op_sign(A a) {
  return (A)((a > A(0)) - (a < A(0)));
}
template <class A>
YTK_INLINE bool op_isnan(A a) {
  return a != a;
}
template <class A>
YTK_INLINE bool op_isinf(A a) {
  return std::isinf((double)a);
}
template <class A>
YTK_INLINE bool op_signbit(A a) {
  return std::signbit((double)a);
}
template <class A>
YTK_INLINE bool op_logical_not(A a) {
  return !a;
}
template <class A>
YTK_INLINE A op_bitwise_not(A a) {
  return (A)~a;
}
YTK_INLINE bool op_bitwise_not(bool a) { return !a; }

// ---- arithmetic: integers wrap around as torch's do; signed overflow would be undefined ----------------------------
#define YTK_ARITHMETIC(name, sign, on_bool)                                      \
  template <class A, class B>                                                    \
  YTK_INLINE common<A, B> name(A a, B b) {                                       \
    using T = common<A, B>;                                                      \
    if constexpr (std::is_same<T, bool>::value) {                                \
      return on_bool;                                                            \
    } else if constexpr (is_int<T>) {                                            \
      using U = std::common_type_t<std::make_unsigned_t<T>, unsigned>;           \
      return (T)((U)(T)a sign(U)(T) b);                                          \
    } else {                                                                     \
      return (T)a sign(T) b;                                                     \
    }                                                                            \
  }
YTK_ARITHMETIC(op_add, +, (a || b))
YTK_ARITHMETIC(op_sub, -, (a != b))
YTK_ARITHMETIC(op_mul, *, (a && b))
#undef YTK_ARITHMETIC
template <class A>
YTK_INLINE A op_square(A a) {
  return op_mul(a, a);
}
template <class A, class B>
YTK_INLINE auto op_mul_rn(A a, B b) {
  return op_mul(a, b);
}
template <class A, class B, class C>
YTK_INLINE auto op_fma(A a, B b, C c) {
  return (common<common<A, B>, C>)std::fma(a, b, c);
}
template <class A, class B>
YTK_INLINE auto op_truediv(A a, B b) {
  using R = real<common<A, B>>;
  return (R)a / (R)b;
}
template <class A, class B>
YTK_INLINE auto op_div_rn(A a, B b) {
  return op_truediv(a, b);
}
template <class A, class B>
YTK_INLINE auto op_int_truediv(A a, B b) {
  return op_truediv(a, b);
}
template <class A, class B>
YTK_INLINE auto op_truncdiv(A a, B b) {
  using T = common<A, B>;
  if constexpr (std::is_integral<T>::value) return b == B(0) ? T(0) : (T)((T)a / (T)b);
  else return (T)std::trunc((T)a / (T)b);
}
template <class A, class B>
YTK_INLINE auto op_floordiv(A a, B b) {
  using T = common<A, B>;
  if constexpr (std::is_integral<T>::value) {
    if (b == B(0)) return T(0);
    const T q = (T)((T)a / (T)b), r = (T)((T)a % (T)b);
    return (T)(r != 0 && ((r < 0) != ((T)b < 0)) ? q - 1 : q);
  } else {
    return (T)std::floor((T)a / (T)b);
  }
}
template <class A, class B>
YTK_INLINE auto op_fmod(A a, B b) {
  using T = common<A, B>;
  if constexpr (std::is_integral<T>::value) return b == B(0) ? T(0) : (T)((T)a % (T)b);
  else return (T)std::fmod((T)a, (T)b);
}
template <class A, class B>
YTK_INLINE auto op_mod(A a, B b) {
  return op_fmod(a, b);
}
template <class A, class B>
YTK_INLINE auto op_remainder(A a, B b) {
  using T = common<A, B>;
  const T r = op_fmod(a, b);
  return (T)((r != 0 && ((r < 0) != ((T)b < 0))) ? r + (T)b : r);
}
template <class A, class B>
YTK_INLINE auto op_pow(A a, B b) {
  using T = common<A, B>;
  if constexpr (std::is_integral<T>::value) {
    T x = (T)a, result = 1;
    int64_t e = (int64_t)b;
    if (e < 0) return (T)(x == T(1) ? 1 : (x == T(-1) ? ((e & 1) ? -1 : 1) : 0));
    for (; e; e >>= 1) {
      if (e & 1) result = op_mul(result, x);
      x = op_mul(x, x);
    }
    return result;
  } else {
    return (T)std::pow((T)a, (T)b);
  }
}
#define YTK_REAL2(name, function)             \
  template <class A, class B>                 \
  YTK_INLINE auto name(A a, B b) {            \
    using R = real<common<A, B>>;             \
    return (R)function((R)a, (R)b);           \
  }
YTK_REAL2(op_atan2, std::atan2)
YTK_REAL2(op_hypot, std::hypot)
YTK_REAL2(op_copysign, std::copysign)
YTK_REAL2(op_nextafter, std::nextafter)
#undef YTK_REAL2
template <class A, class B>
YTK_INLINE A op_ldexp(A a, B b) {
  return (A)std::ldexp(a, (int)b);
}

// ---- comparison, choice, bits ---------------------------------------------------------------------------------------
#define YTK_COMPARE(name, sign)                                   \
  template <class A, class B>                                     \
  YTK_INLINE bool name(A a, B b) {                                \
    return (common<A, B>)a sign(common<A, B>) b;                  \
  }
YTK_COMPARE(op_eq, ==)
YTK_COMPARE(op_ne, !=)
YTK_COMPARE(op_lt, <)
YTK_COMPARE(op_gt, >)
YTK_COMPARE(op_le, <=)
YTK_COMPARE(op_ge, >=)
#undef YTK_COMPARE
// A NaN on either side wins, as in torch.
template <class A, class B>
YTK_INLINE auto op_minimum(A a, B b) {
  using T = common<A, B>;
  const T x = (T)a, y = (T)b;
  return (T)((x != x || x < y) ? x : y);
}
template <class A, class B>
YTK_INLINE auto op_maximum(A a, B b) {
  using T = common<A, B>;
  const T x = (T)a, y = (T)b;
  return (T)((x != x || x > y) ? x : y);
}
template <class M, class A, class B>
YTK_INLINE common<A, B> op_where(M mask, A a, B b) {
  return mask ? (common<A, B>)a : (common<A, B>)b;
}
#define YTK_LOGICAL(name, expression)  \
  template <class A, class B>          \
  YTK_INLINE bool name(A a, B b) {     \
    return expression;                 \
  }
YTK_LOGICAL(op_logical_and, (a && b))
YTK_LOGICAL(op_logical_or, (a || b))
YTK_LOGICAL(op_logical_xor, ((bool)a != (bool)b))
#undef YTK_LOGICAL
#define YTK_BITS(name, sign)                                    \
  template <class A, class B>                                   \
  YTK_INLINE common<A, B> name(A a, B b) {                      \
    return (common<A, B>)(a sign b);                            \
  }
YTK_BITS(op_bitwise_and, &)
YTK_BITS(op_bitwise_or, |)
YTK_BITS(op_bitwise_xor, ^)
YTK_BITS(op_and_, &)
YTK_BITS(op_or_, |)
YTK_BITS(op_xor, ^)
#undef YTK_BITS
template <class A, class B>
YTK_INLINE A op_bitwise_left_shift(A a, B b) {
  if (b < B(0) || (int64_t)b >= (int64_t)(8 * sizeof(A))) return A(0);
  return (A)((std::make_unsigned_t<A>)a << b);
}
template <class A, class B>
YTK_INLINE A op_bitwise_right_shift(A a, B b) {
  const int64_t bits = 8 * (int64_t)sizeof(A);
  return (A)(a >> ((b < B(0) || (int64_t)b >= bits) ? bits - 1 : (int64_t)b));
}

// ---- reductions, sorts ----------------------------------------------------------------------------------------------
template <class T>
YTK_INLINE bool better_max(T candidate, T best) {
  return candidate > best || (candidate != candidate && best == best);
}
template <class T>
YTK_INLINE bool better_min(T candidate, T best) {
  return candidate < best || (candidate != candidate && best == best);
}
template <class T, class V>
YTK_INLINE void welford(T& mean, T& squares, T& weight, V value) {
  weight += 1;
  const T delta = (T)value - mean;
  mean += delta / weight;
  squares += delta * ((T)value - mean);
}
template <class K, class I>
struct sort_pair {
  K key;
  I index;
};
// NaN counts as the largest key; equal keys keep their order, which makes an unstable in-place sort a stable one.
template <bool descending, class P>
static inline void sort_pairs(P* first, int64_t count) {
  std::sort(first, first + count, [](const P& x, const P& y) {
    const bool x_nan = x.key != x.key, y_nan = y.key != y.key;
    if (x_nan != y_nan) return descending ? x_nan : y_nan;
    if (!x_nan && x.key != y.key) return descending ? y.key < x.key : x.key < y.key;
    return x.index < y.index;
  });
}

YTK_INLINE int thread_number() {
#ifdef _OPENMP
  return omp_get_thread_num();
#else
  return 0;
#endif
}

}  // namespace ytk
#endif  // YTK_LOOPS_H
