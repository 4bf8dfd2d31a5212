// The part of the C++ standard library that ytk_loops.h uses, for a device compiler that has none (NVRTC): one set of scalar
// operations then serves CPUs and GPUs. Where a host compiler reads the text (launcher, emulation), its own library is taken.
#ifndef YTK_DEVICE_STD_H
#define YTK_DEVICE_STD_H
#ifdef YTK_EMULATION
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#define YTK_DOUBLE_CONSTANT(name, value) static const double name = std::numeric_limits<double>::value();
#else
// A variable of device code needs a constant expression, which infinities and NaNs are not to this compiler.
#define YTK_DOUBLE_CONSTANT(name, value)                                        \
  struct type_of_##name {                                                       \
    operator double() const { return std::numeric_limits<double>::value(); }    \
  };                                                                            \
  static constexpr type_of_##name name{};
#ifndef INT64_MIN
#define INT64_MIN (-9223372036854775807LL - 1)
#endif
#ifndef NAN
#define NAN (__int_as_float(0x7fc00000))
#endif
#ifndef INFINITY
#define INFINITY (__int_as_float(0x7f800000))
#endif
// What is not called.
#pragma nv_diag_suppress 177
namespace std {
// ---- types
template <bool B, class T, class F> struct conditional { using type = T; };
template <class T, class F> struct conditional<false, T, F> { using type = F; };
template <bool B, class T, class F> using conditional_t = typename conditional<B, T, F>::type;
template <class A, class B> struct is_same { static constexpr bool value = false; };
template <class A> struct is_same<A, A> { static constexpr bool value = true; };
template <class T> struct remove_const { using type = T; };
template <class T> struct remove_const<const T> { using type = T; };
template <class T> T&& declval() noexcept;
template <class T> struct remove_all { using type = T; };
template <class T> struct remove_all<T&> { using type = typename remove_const<T>::type; };
template <class T> struct remove_all<T&&> { using type = typename remove_const<T>::type; };
template <class A, class B> struct common_type { using type = typename remove_all<decltype(false ? declval<A>() : declval<B>())>::type; };
template <class A, class B> using common_type_t = typename common_type<A, B>::type;
template <class T> struct is_floating_point { static constexpr bool value = is_same<T, float>::value || is_same<T, double>::value; };
template <class T> struct make_unsigned { using type = T; };
template <class T> using make_unsigned_t = typename make_unsigned<T>::type;
template <class T> struct is_integral { static constexpr bool value = false; };
#define YTK_INTEGRAL(T, U)                                                        \
  template <> struct is_integral<T> { static constexpr bool value = true; };      \
  template <> struct make_unsigned<T> { using type = U; };
YTK_INTEGRAL(bool, bool)
YTK_INTEGRAL(char, unsigned char)
YTK_INTEGRAL(signed char, unsigned char)
YTK_INTEGRAL(unsigned char, unsigned char)
YTK_INTEGRAL(short, unsigned short)
YTK_INTEGRAL(unsigned short, unsigned short)
YTK_INTEGRAL(int, unsigned)
YTK_INTEGRAL(unsigned, unsigned)
YTK_INTEGRAL(long, unsigned long)
YTK_INTEGRAL(unsigned long, unsigned long)
YTK_INTEGRAL(long long, unsigned long long)
YTK_INTEGRAL(unsigned long long, unsigned long long)
#undef YTK_INTEGRAL
template <class T> struct numeric_limits {
  static constexpr bool has_infinity = false, is_signed = T(-1) < T(0);
  static constexpr T infinity() { return T(0); }
  static constexpr T quiet_NaN() { return T(0); }
  static constexpr T lowest() { return is_signed ? T((unsigned long long)1 << (8 * sizeof(T) - 1)) : T(0); }
  static constexpr T(max)() { return is_signed ? T(~((unsigned long long)-1 << (8 * sizeof(T) - 1))) : T(-1); }
};
template <> struct numeric_limits<bool> {
  static constexpr bool has_infinity = false;
  static constexpr bool infinity() { return false; }
  static constexpr bool lowest() { return false; }
  static constexpr bool(max)() { return true; }
};
template <> struct numeric_limits<float> {
  static constexpr bool has_infinity = true;
  static float infinity() { return __int_as_float(0x7f800000); }
  static float quiet_NaN() { return __int_as_float(0x7fc00000); }
  static constexpr float lowest() { return -3.402823466e+38f; }
  static constexpr float(max)() { return 3.402823466e+38f; }
};
template <> struct numeric_limits<double> {
  static constexpr bool has_infinity = true;
  static double infinity() { return __longlong_as_double(0x7ff0000000000000LL); }
  static double quiet_NaN() { return __longlong_as_double(0x7ff8000000000000LL); }
  static constexpr double lowest() { return -1.7976931348623157e+308; }
  static constexpr double(max)() { return 1.7976931348623157e+308; }
};
// ---- functions
#define YTK_MATH1(name)                                \
  inline float name(float x) { return ::name##f(x); }  \
  inline double name(double x) { return ::name(x); }   \
  template <class T> inline double name(T x) { return ::name((double)x); }
YTK_MATH1(exp)
YTK_MATH1(exp2)
YTK_MATH1(expm1)
YTK_MATH1(log)
YTK_MATH1(log1p)
YTK_MATH1(log2)
YTK_MATH1(log10)
YTK_MATH1(sqrt)
YTK_MATH1(sin)
YTK_MATH1(cos)
YTK_MATH1(tan)
YTK_MATH1(asin)
YTK_MATH1(acos)
YTK_MATH1(atan)
YTK_MATH1(sinh)
YTK_MATH1(cosh)
YTK_MATH1(tanh)
YTK_MATH1(asinh)
YTK_MATH1(acosh)
YTK_MATH1(atanh)
YTK_MATH1(erf)
YTK_MATH1(erfc)
YTK_MATH1(lgamma)
YTK_MATH1(tgamma)
YTK_MATH1(nearbyint)
YTK_MATH1(floor)
YTK_MATH1(ceil)
YTK_MATH1(trunc)
YTK_MATH1(fabs)
YTK_MATH1(round)
#undef YTK_MATH1
#define YTK_MATH2(name)                                                        \
  inline float name(float x, float y) { return ::name##f(x, y); }              \
  inline double name(double x, double y) { return ::name(x, y); }              \
  template <class A, class B> inline double name(A x, B y) { return ::name((double)x, (double)y); }
YTK_MATH2(pow)
YTK_MATH2(fmod)
YTK_MATH2(atan2)
YTK_MATH2(hypot)
YTK_MATH2(copysign)
YTK_MATH2(nextafter)
#undef YTK_MATH2
inline float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
inline double fma(double a, double b, double c) { return ::fma(a, b, c); }
template <class A, class B, class C> inline double fma(A a, B b, C c) { return ::fma((double)a, (double)b, (double)c); }
inline float ldexp(float x, int e) { return ::ldexpf(x, e); }
inline double ldexp(double x, int e) { return ::ldexp(x, e); }
inline float frexp(float x, int* e) { return ::frexpf(x, e); }
inline double frexp(double x, int* e) { return ::frexp(x, e); }
inline bool isinf(double x) { return ::fabs(x) == __longlong_as_double(0x7ff0000000000000LL); }
inline bool isnan(double x) { return x != x; }
inline bool isfinite(double x) { return ::fabs(x) < __longlong_as_double(0x7ff0000000000000LL); }
inline bool signbit(double x) { return __double_as_longlong(x) < 0; }
inline double cyl_bessel_j(double order, double x) { return order == 0 ? ::j0(x) : ::j1(x); }
inline double cyl_neumann(double order, double x) { return order == 0 ? ::y0(x) : ::y1(x); }
// K by its integral (DLMF 10.32.9): the integrand falls faster than any exponential, so the trapezoidal rule converges as fast.
inline double cyl_bessel_k(double order, double x) {
  const double step = 1.0 / 16;
  double sum = 0.5 * ::exp(-x);
  for (int k = 1; k < 4096; ++k) {
    const double t = k * step, term = ::exp(-x * ::cosh(t)) * ::cosh(order * t);
    sum += term;
    if (term <= 1e-18 * sum) break;
  }
  return sum * step;
}
inline double cyl_bessel_i(double order, double x) { return order == 0 ? ::cyl_bessel_i0(x) : ::cyl_bessel_i1(x); }
// In index expressions.
inline int abs(int x) { return x < 0 ? -x : x; }
inline long abs(long x) { return x < 0 ? -x : x; }
inline long long abs(long long x) { return x < 0 ? -x : x; }
inline float abs(float x) { return ::fabsf(x); }
inline double abs(double x) { return ::fabs(x); }
template <class T> inline const T&(min)(const T& a, const T& b) { return b < a ? b : a; }
template <class T> inline const T&(max)(const T& a, const T& b) { return a < b ? b : a; }
template <class T, int N> inline T(max)(const T (&all)[N]) {
  T found = all[0];
  for (int k = 1; k < N; ++k) found = found < all[k] ? all[k] : found;
  return found;
}
template <class T, int N> inline T(min)(const T (&all)[N]) {
  T found = all[0];
  for (int k = 1; k < N; ++k) found = all[k] < found ? all[k] : found;
  return found;
}
inline long lrint(double x) { return ::lrint(x); }
template <class T> inline void swap(T& a, T& b) {
  const T kept = a;
  a = b;
  b = kept;
}
// Heap sort: in place, without recursion. For one thread; ytk_blocks.h has the sort of a whole block.
template <class T, class Less>
inline void sort(T* first, T* last, Less less) {
  const long long count = last - first;
  const auto sift = [&](long long root, long long end) {
    while (2 * root + 1 < end) {
      long long child = 2 * root + 1;
      if (child + 1 < end && less(first[child], first[child + 1])) ++child;
      if (!less(first[root], first[child])) return;
      swap(first[root], first[child]);
      root = child;
    }
  };
  for (long long root = count / 2; root-- > 0;) sift(root, count);
  for (long long end = count; end-- > 1;) {
    swap(first[0], first[end]);
    sift(0, end);
  }
}
}  // namespace std
namespace std {
using ::memcpy;
}
#endif  // YTK_EMULATION
#endif  // YTK_DEVICE_STD_H
