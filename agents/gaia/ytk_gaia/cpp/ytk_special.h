// Special functions of generated kernels, after ytk_loops.h; in a bundle only where its source calls one. All in double.
#ifndef YTK_SPECIAL_H
#define YTK_SPECIAL_H
#include <cmath>
#include <limits>

namespace ytk {
namespace special {
static const double infinity = std::numeric_limits<double>::infinity();
static const double not_a_number = std::numeric_limits<double>::quiet_NaN();
static const double pi = 3.14159265358979323846;

static inline double digamma(double x) {
  if (x == 0) return std::copysign(infinity, -x);
  if (x < 0) {
    if (x == std::floor(x)) return not_a_number;
    return digamma(1 - x) - pi / std::tan(pi * x);
  }
  double result = 0;
  while (x < 10) result -= 1 / x, x += 1;
  const double y = 1 / (x * x);
  const double series =
      y * (1.0 / 12 - y * (1.0 / 120 - y * (1.0 / 252 - y * (1.0 / 240 - y * (1.0 / 132 - y * (691.0 / 32760 - y / 12))))));
  return result + std::log(x) - 0.5 / x - series;
}
// Hurwitz: sum of (q + k)^-x, by Euler and Maclaurin.
static inline double zeta(double x, double q) {
  if (x == 1) return infinity;
  if (x < 1) return not_a_number;
  if (q <= 0) {
    if (q == std::floor(q)) return infinity;
    if (x != std::floor(x)) return not_a_number;
  }
  const int terms = 12;
  double sum = 0;
  for (int k = 0; k < terms; ++k) sum += std::pow(q + k, -x);
  const double a = q + terms;
  if (std::isinf(sum)) return sum;
  static const double bernoulli[] = {1.0 / 6, -1.0 / 30, 1.0 / 42, -1.0 / 30, 5.0 / 66, -691.0 / 2730, 7.0 / 6, -3617.0 / 510};
  sum += std::pow(a, 1 - x) / (x - 1) + 0.5 * std::pow(a, -x);
  double factor = x * std::pow(a, -x - 1), factorial = 2;
  for (int j = 0; j < 8; ++j) {
    const double term = bernoulli[j] / factorial * factor;
    sum += term;
    if (std::fabs(term) < 1e-17 * std::fabs(sum)) break;
    factor *= (x + 2 * j + 1) * (x + 2 * j + 2) / (a * a);
    factorial *= (2.0 * j + 3) * (2 * j + 4);
  }
  return sum;
}
static inline double polygamma(double order, double x) {
  if (order == 0) return digamma(x);
  const double sign = std::fmod(order, 2) == 0 ? -1 : 1;
  return sign * std::tgamma(order + 1) * zeta(order + 1, x);
}
static inline double erfcx(double x) {
  if (x < 25) return std::exp(x * x) * std::erfc(x);
  const double y = 1 / (x * x);
  return (1 - y * (0.5 - y * (0.75 - y * 1.875))) / (x * std::sqrt(pi));
}
static inline double erfinv(double x) {
  if (!(std::fabs(x) <= 1)) return not_a_number;
  if (std::fabs(x) == 1) return std::copysign(infinity, x);
  // Winitzki's approximation, then Newton steps on erf, or on erfc where erf has no digits left.
  const double w = std::log1p(-x * x), t = 2 / (pi * 0.147) + w / 2;
  double y = std::copysign(std::sqrt(std::sqrt(t * t - w / 0.147) - t), x);
  for (int step = 0; step < 3; ++step) {
    const double error = std::fabs(x) < 0.5 ? std::erf(y) - x : (x < 0 ? -1 : 1) * ((1 - std::fabs(x)) - std::erfc(std::fabs(y)));
    const double slope = error / (2 / std::sqrt(pi) * std::exp(-y * y));
    y -= slope / (1 + y * slope);
  }
  return y;
}
static inline double ndtr(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }
static inline double ndtri(double p) {
  if (!(p >= 0 && p <= 1)) return not_a_number;
  if (p == 0 || p == 1) return p == 0 ? -infinity : infinity;
  double x = std::sqrt(2.0) * erfinv(2 * p - 1);
  if (!std::isfinite(x)) x = -std::sqrt(-2 * std::log(p < 0.5 ? p : 1 - p)) * (p < 0.5 ? 1 : -1);
  for (int step = 0; step < 2; ++step) x -= (ndtr(x) - p) / (std::exp(-x * x / 2) / std::sqrt(2 * pi));
  return x;
}
static inline double log_ndtr(double x) {
  if (x < -1) return std::log(erfcx(-x / std::sqrt(2.0)) / 2) - x * x / 2;
  return std::log1p(-std::erfc(x / std::sqrt(2.0)) / 2);
}
// Scaled by exp(-|x|): the plain function overflows where this does not.
static inline double bessel_ie(double order, double x) {
  const double a = std::fabs(x);
  if (a < 600) return std::exp(-a) * std::cyl_bessel_i(order, a);
  const double m = 4 * order * order, y = 8 * a;
  return (1 - (m - 1) / y + (m - 1) * (m - 9) / (2 * y * y)) / std::sqrt(2 * pi * a);
}
static inline double bessel_ke(double order, double x) {
  if (x < 600) return std::exp(x) * std::cyl_bessel_k(order, x);
  const double m = 4 * order * order, y = 8 * x;
  return (1 + (m - 1) / y + (m - 1) * (m - 9) / (2 * y * y)) * std::sqrt(pi / (2 * x));
}
static inline double odd(double value, double x) { return x < 0 ? -value : value; }
static inline double from_positive(double x, double value_at_zero, double (*function)(double)) {
  return x == 0 ? value_at_zero : (x > 0 ? function(x) : not_a_number);
}
static inline double airy_ai(double x) {
  if (x == 0) return 0.35502805388781723926;
  const double a = std::fabs(x), z = 2.0 / 3 * a * std::sqrt(a), third = 1.0 / 3;
  if (x > 0) return z > 600 ? 0.0 : std::sqrt(a / 3) / pi * std::cyl_bessel_k(third, z);
  const double j = std::cyl_bessel_j(third, z), y = std::cyl_neumann(third, z);
  return std::sqrt(a) / 3 * (j * (1 + std::cos(pi * third)) - y * std::sin(pi * third));
}
// Regularised lower incomplete gamma: a series below a + 1, a continued fraction above.
static inline double igamma_series(double a, double x) {
  double term = 1 / a, sum = term;
  for (int k = 1; k < 2000 && std::fabs(term) > 1e-17 * std::fabs(sum); ++k) term *= x / (a + k), sum += term;
  return sum * std::exp(a * std::log(x) - x - std::lgamma(a));
}
static inline double igammac_fraction(double a, double x) {
  const double tiny = 1e-300;
  double b = x + 1 - a, c = 1 / tiny, d = 1 / b, h = d;
  for (int k = 1; k < 2000; ++k) {
    const double n = -k * (k - a);
    b += 2;
    d = n * d + b;
    c = b + n / c;
    d = 1 / (std::fabs(d) < tiny ? tiny : d);
    c = std::fabs(c) < tiny ? tiny : c;
    h *= d * c;
    if (std::fabs(d * c - 1) < 1e-16) break;
  }
  return h * std::exp(a * std::log(x) - x - std::lgamma(a));
}
static inline double igamma(double a, double x, bool upper) {
  if (!(a >= 0) || !(x >= 0) || (a == 0 && x == 0) || (std::isinf(a) && std::isinf(x))) return not_a_number;
  if (a == 0 || std::isinf(x)) return upper ? 0 : 1;
  if (x == 0 || std::isinf(a)) return upper ? 1 : 0;
  const bool series = x < a + 1;
  const double value = series ? igamma_series(a, x) : igammac_fraction(a, x);
  return series == upper ? 1 - value : value;
}
// All of p[k+1] = (slope(k) * x + shift(k)) * p[k] - weight(k) * p[k-1].
template <class F>
static inline double recurrence(double first, double second, int64_t n, F step) {
  if (n < 0) return 0;
  if (n == 0) return first;
  double before = first, now = second;
  for (int64_t k = 1; k < n && !std::isnan(now); ++k) {
    const double next = step((double)k, now, before);
    before = now, now = next;
  }
  return now;
}
static inline double chebyshev(double x, double second, int64_t n) {
  return recurrence(1, second, n, [x](double, double now, double before) { return 2 * x * now - before; });
}
}  // namespace special

#define YTK_SPECIAL1(name, expression)                    \
  template <class A>                                      \
  static inline real<A> op_##name(A a) {                  \
    const double x = (double)a;                           \
    return (real<A>)(expression);                         \
  }
#define YTK_SPECIAL2(name, expression)                    \
  template <class A, class B>                             \
  static inline real<common<A, B>> op_##name(A a, B b) {  \
    const double x = (double)a, y = (double)b;            \
    return (real<common<A, B>>)(expression);              \
  }
#define YTK_POLYNOMIAL(name, expression)                  \
  template <class A, class B>                             \
  static inline real<common<A, B>> op_##name(A a, B b) {  \
    const double x = (double)a;                           \
    const int64_t n = (int64_t)b;                         \
    return (real<common<A, B>>)(expression);              \
  }
YTK_SPECIAL1(digamma, special::digamma(x))
YTK_SPECIAL1(erfcx, special::erfcx(x))
YTK_SPECIAL1(erfinv, special::erfinv(x))
YTK_SPECIAL1(ndtr, special::ndtr(x))
YTK_SPECIAL1(ndtri, special::ndtri(x))
YTK_SPECIAL1(log_ndtr, special::log_ndtr(x))
YTK_SPECIAL1(airy_ai, special::airy_ai(x))
YTK_SPECIAL1(bessel_j0, std::cyl_bessel_j(0, std::fabs(x)))
YTK_SPECIAL1(bessel_j1, special::odd(std::cyl_bessel_j(1, std::fabs(x)), x))
YTK_SPECIAL1(bessel_y0, special::from_positive(x, -special::infinity, [](double v) { return std::cyl_neumann(0, v); }))
YTK_SPECIAL1(bessel_y1, special::from_positive(x, -special::infinity, [](double v) { return std::cyl_neumann(1, v); }))
YTK_SPECIAL1(i0e, special::bessel_ie(0, x))
YTK_SPECIAL1(i1e, special::odd(special::bessel_ie(1, x), x))
YTK_SPECIAL1(i0, special::bessel_ie(0, x) * std::exp(std::fabs(x)))
YTK_SPECIAL1(i1, special::odd(special::bessel_ie(1, x), x) * std::exp(std::fabs(x)))
YTK_SPECIAL1(modified_bessel_i0, special::bessel_ie(0, x) * std::exp(std::fabs(x)))
YTK_SPECIAL1(modified_bessel_i1, special::odd(special::bessel_ie(1, x), x) * std::exp(std::fabs(x)))
YTK_SPECIAL1(scaled_modified_bessel_k0, special::from_positive(x, special::infinity, [](double v) { return special::bessel_ke(0, v); }))
YTK_SPECIAL1(scaled_modified_bessel_k1, special::from_positive(x, special::infinity, [](double v) { return special::bessel_ke(1, v); }))
YTK_SPECIAL1(modified_bessel_k0, op_scaled_modified_bessel_k0(x) * std::exp(-x))
YTK_SPECIAL1(modified_bessel_k1, op_scaled_modified_bessel_k1(x) * std::exp(-x))
YTK_SPECIAL1(spherical_bessel_j0, x == 0 ? 1.0 : (std::isinf(x) ? 0.0 : std::sin(x) / x))
YTK_SPECIAL2(zeta, special::zeta(x, y))
YTK_SPECIAL2(polygamma, special::polygamma(x, y))
YTK_SPECIAL2(igamma, special::igamma(x, y, false))
YTK_SPECIAL2(igammac, special::igamma(x, y, true))
YTK_SPECIAL2(gammainc, special::igamma(x, y, false))
YTK_SPECIAL2(gammaincc, special::igamma(x, y, true))
YTK_POLYNOMIAL(chebyshev_polynomial_t, special::chebyshev(x, x, n))
YTK_POLYNOMIAL(chebyshev_polynomial_u, special::chebyshev(x, 2 * x, n))
YTK_POLYNOMIAL(chebyshev_polynomial_v, special::chebyshev(x, 2 * x - 1, n))
YTK_POLYNOMIAL(chebyshev_polynomial_w, special::chebyshev(x, 2 * x + 1, n))
YTK_POLYNOMIAL(shifted_chebyshev_polynomial_t, special::chebyshev(2 * x - 1, 2 * x - 1, n))
YTK_POLYNOMIAL(shifted_chebyshev_polynomial_u, special::chebyshev(2 * x - 1, 2 * (2 * x - 1), n))
YTK_POLYNOMIAL(shifted_chebyshev_polynomial_v, special::chebyshev(2 * x - 1, 2 * (2 * x - 1) - 1, n))
YTK_POLYNOMIAL(shifted_chebyshev_polynomial_w, special::chebyshev(2 * x - 1, 2 * (2 * x - 1) + 1, n))
YTK_POLYNOMIAL(hermite_polynomial_h, special::recurrence(1, 2 * x, n, [x](double k, double p, double q) { return 2 * x * p - 2 * k * q; }))
YTK_POLYNOMIAL(hermite_polynomial_he, special::recurrence(1, x, n, [x](double k, double p, double q) { return x * p - k * q; }))
YTK_POLYNOMIAL(laguerre_polynomial_l, special::recurrence(1, 1 - x, n, [x](double k, double p, double q) { return ((2 * k + 1 - x) * p - k * q) / (k + 1); }))
YTK_POLYNOMIAL(legendre_polynomial_p, special::recurrence(1, x, n, [x](double k, double p, double q) { return ((2 * k + 1) * x * p - k * q) / (k + 1); }))
#undef YTK_SPECIAL1
#undef YTK_SPECIAL2
#undef YTK_POLYNOMIAL
}  // namespace ytk
#endif  // YTK_SPECIAL_H
