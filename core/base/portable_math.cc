// Double-double arithmetic: a value is the unevaluated sum of two doubles, the second at most half a
// unit in the last place of the first. Sums and products are made error-free after Knuth and Dekker
// ("A floating-point technique for extending the available precision", 1971). No operation here may
// be contracted to a fused one, which .bazelrc sees to.

#include "core/base/portable_math.h"

#include <cmath>

namespace gradsync {
namespace {

struct Pair {
  double high = 0;
  double low = 0;
};

// ln 2, and pi / 2 in three parts.
constexpr Pair kLn2 = {0x1.62e42fefa39efp-1, 0x1.abc9e3b39803fp-56};
constexpr double kHalfPi = 0x1.921fb54442d18p+0;
constexpr Pair kHalfPiRest = {0x1.1a62633145c07p-54, -0x1.f1976b7ed8fbcp-110};

// Terms of the series below, enough for 106 bits.
constexpr int kLogTerms = 22;
constexpr int kExpTerms = 26;
constexpr int kTrigTerms = 14;

// |a| >= |b|, or a is 0.
Pair QuickSum(double a, double b) {
  const double sum = a + b;
  return {sum, b - (sum - a)};
}

Pair Sum(double a, double b) {
  const double sum = a + b;
  const double part = sum - a;
  return {sum, (a - (sum - part)) + (b - part)};
}

Pair Product(double a, double b) {
  constexpr double kSplitter = 134217729;  // 2^27 + 1
  const double a_scaled = kSplitter * a, b_scaled = kSplitter * b;
  const double a_high = a_scaled - (a_scaled - a), b_high = b_scaled - (b_scaled - b);
  const double a_low = a - a_high, b_low = b - b_high;
  const double product = a * b;
  return {product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low};
}

Pair operator+(Pair a, Pair b) {
  const Pair high = Sum(a.high, b.high);
  const Pair low = Sum(a.low, b.low);
  const Pair partial = QuickSum(high.high, high.low + low.high);
  return QuickSum(partial.high, partial.low + low.low);
}

Pair operator-(Pair a) { return {-a.high, -a.low}; }

Pair operator*(Pair a, Pair b) {
  const Pair product = Product(a.high, b.high);
  return QuickSum(product.high, product.low + (a.high * b.low + a.low * b.high));
}

Pair operator/(Pair a, Pair b) {
  const double first = a.high / b.high;
  const Pair rest = a + -(b * Pair{first, 0});
  const double second = rest.high / b.high;
  const Pair rest_of_rest = rest + -(b * Pair{second, 0});
  return QuickSum(first, second) + Pair{rest_of_rest.high / b.high, 0};
}

double Round(Pair a) { return a.high + a.low; }

// Of a normal number above 0: with x = 2^k m and s = (m - 1) / (m + 1),
// ln x = k ln 2 + 2 (s + s^3 / 3 + s^5 / 5 + ...).
Pair Log(double x) {
  int k = 0;
  double m = std::frexp(x, &k);
  if (m < 0.70710678118654752) {
    m *= 2;
    --k;
  }
  const Pair s = Sum(m, -1) / Sum(m, 1);
  const Pair squared = s * s;
  Pair series;
  for (int term = kLogTerms; term >= 0; --term) {
    series = series * squared + Pair{1, 0} / Pair{2.0 * term + 1, 0};
  }
  return kLn2 * Pair{static_cast<double>(k), 0} + Pair{2, 0} * s * series;
}

// e^a = 2^k e^r with |r| <= ln 2 / 2.
double Exp(Pair a) {
  constexpr double kMost = 750;  // beyond, the result is 0 or infinite
  if (a.high > kMost) return HUGE_VAL;
  if (a.high < -kMost) return 0;
  const double k = std::nearbyint(a.high / kLn2.high);
  const Pair r = a + -(kLn2 * Pair{k, 0});
  Pair series = {1, 0};
  for (int term = kExpTerms; term >= 1; --term) {
    series = Pair{1, 0} + series * r / Pair{static_cast<double>(term), 0};
  }
  return std::ldexp(Round(series), static_cast<int>(k));
}

// The cosine (first = 0) or sine (first = 1) of |r| <= pi / 4.
Pair Series(Pair r, int first) {
  const Pair minus_squared = -(r * r);
  Pair series = {1, 0};
  for (int term = kTrigTerms; term >= 1; --term) {
    const double n = 2.0 * term + first;
    series = Pair{1, 0} + series * minus_squared / Pair{n * (n - 1), 0};
  }
  return first == 0 ? series : series * r;
}

double ByLogarithm(double base, double exponent) { return Exp(Log(base) * Pair{exponent, 0}); }

}  // namespace

double PortablePow(double base, int64_t exponent) {
  if (base == 0) return exponent == 0 ? 1 : 0;
  Pair result = {1, 0};
  Pair square = {base, 0};
  for (int64_t rest = exponent; rest > 0; rest >>= 1) {
    if ((rest & 1) != 0) result = result * square;
    if (rest == 1) break;
    square = square * square;
    // Far from these the error of a product cannot be represented.
    if (square.high < 0x1p-400 || square.high > 0x1p+400) {
      return ByLogarithm(base, static_cast<double>(exponent));
    }
  }
  return Round(result);
}

double PortablePow(double base, double exponent) {
  constexpr double kMostWhole = 1 << 30;
  if (exponent <= kMostWhole && exponent == std::floor(exponent)) {
    return PortablePow(base, static_cast<int64_t>(exponent));
  }
  return base == 0 ? 0 : ByLogarithm(base, exponent);
}

double PortableCos(double x) {
  x = std::fabs(x);
  // The nearest multiple of pi / 2 is taken off.
  const int quadrant = static_cast<int>(x / kHalfPi + 0.5);
  const Pair multiple = Pair{static_cast<double>(quadrant), 0};
  const Pair off = Product(kHalfPi, quadrant);
  const Pair r = Sum(x, -off.high) + Pair{-off.low, 0} + -(kHalfPiRest * multiple);
  switch (quadrant % 4) {
    case 0:
      return Round(Series(r, 0));
    case 1:
      return -Round(Series(r, 1));
    case 2:
      return -Round(Series(r, 0));
    default:
      return Round(Series(r, 1));
  }
}

}  // namespace gradsync
