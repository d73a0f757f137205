#include "benchmarks/comparison/decision.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "benchmarks/records/terminal.h"

namespace gradsync {
namespace {

// The continued fraction of the incomplete beta function, by Lentz's method. Source: NIST Digital
// Library of Mathematical Functions, 8.17.22.
double BetaFraction(double x, double a, double b) {
  constexpr double kTiny = 1e-300;
  constexpr double kPrecise = 1e-15;
  constexpr int kMostTerms = 10000;
  const auto not_zero = [](double value) { return std::abs(value) < kTiny ? kTiny : value; };
  double c = 1;
  double d = 1 / not_zero(1 - (a + b) * x / (a + 1));
  double fraction = d;
  for (int m = 1; m < kMostTerms; ++m) {
    const double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
    d = 1 / not_zero(1 + even * d);
    c = not_zero(1 + even / c);
    fraction *= d * c;
    const double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
    d = 1 / not_zero(1 + odd * d);
    c = not_zero(1 + odd / c);
    fraction *= d * c;
    if (std::abs(d * c - 1) < kPrecise) break;
  }
  return fraction;
}

// The regularised incomplete beta function I_x(a, b).
double IncompleteBeta(double x, double a, double b) {
  if (x <= 0 || x >= 1) return x <= 0 ? 0 : 1;
  const double front = std::exp(std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) +
                                a * std::log(x) + b * std::log1p(-x));
  // The fraction converges fast below the mean.
  if (x < (a + 1) / (a + b + 2)) return front * BetaFraction(x, a, b) / a;
  return 1 - front * BetaFraction(1 - x, b, a) / b;
}

// Of t >= 0.
double StudentTail(double t, int degrees) {
  return IncompleteBeta(degrees / (degrees + t * t), degrees / 2.0, 0.5) / 2;
}

// A ratio's logarithm after some rounds.
struct Estimate {
  double mean = 0;
  double deviation = 0;  // of a round
  int rounds = 0;

  // How far from the mean the true value is at most, but for `tail` on each side.
  double Reach(double tail) const {
    return StudentQuantile(tail, rounds - 1) * deviation / std::sqrt(rounds);
  }
};

Decision::Outcome OutcomeOf(const Estimate& estimate, double error) {
  if (std::abs(estimate.mean) > estimate.Reach(error / 2)) {
    return estimate.mean > 0 ? Decision::Outcome::kFaster : Decision::Outcome::kSlower;
  }
  const bool equal = std::abs(estimate.mean) + estimate.Reach(error) < std::log1p(kEqualMargin);
  return equal ? Decision::Outcome::kEqual : Decision::Outcome::kNotDecided;
}

std::string Lead(double ratio) {
  if (ratio >= 2) return absl::StrFormat("%.1f times as fast as ", ratio);
  const double percent = 100 * (ratio - 1);
  return absl::StrFormat("%.*f %% faster than ", percent < 0.95 ? 1 : 0, percent);
}

}  // namespace

double StudentQuantile(double tail, int degrees) {
  double low = 0;
  double high = 1;
  while (StudentTail(high, degrees) > tail) high *= 2;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (StudentTail(middle, degrees) > tail ? low : high) = middle;
  }
  return high;
}

Decision Decide(const std::vector<double>& ratios, int decisions) {
  Decision decision;
  if (ratios.empty()) return decision;
  Estimate estimate;
  estimate.rounds = static_cast<int>(ratios.size());
  for (double ratio : ratios) estimate.mean += std::log(ratio) / estimate.rounds;
  decision.ratio = std::exp(estimate.mean);
  if (estimate.rounds < 2) {
    decision.more_rounds = 1;
    return decision;
  }
  double squares = 0;
  for (double ratio : ratios) squares += std::pow(std::log(ratio) - estimate.mean, 2);
  estimate.deviation = std::sqrt(squares / (estimate.rounds - 1));
  const double error = kErrorRate / std::max(1, decisions);
  const double reach = estimate.Reach(error / 2);
  decision.low = std::exp(estimate.mean - reach);
  decision.high = std::exp(estimate.mean + reach);
  decision.outcome = OutcomeOf(estimate, error);
  if (decision.outcome != Decision::Outcome::kNotDecided) return decision;
  const int measured = estimate.rounds;
  while (++estimate.rounds <= measured + kMostRounds) {
    if (OutcomeOf(estimate, error) == Decision::Outcome::kNotDecided) continue;
    decision.more_rounds = estimate.rounds - measured;
    break;
  }
  return decision;
}

std::string Describe(const Decision& decision, absl::string_view first, absl::string_view second) {
  switch (decision.outcome) {
    case Decision::Outcome::kFaster:
      return absl::StrCat(first, " was ", Lead(decision.ratio), second);
    case Decision::Outcome::kSlower:
      return absl::StrCat(second, " was ", Lead(1 / decision.ratio), first);
    case Decision::Outcome::kEqual:
      return absl::StrFormat("%s and %s are equal within %.0f %%", first, second,
                             100 * kEqualMargin);
    case Decision::Outcome::kNotDecided:
      break;
  }
  return absl::StrCat("not decided between ", first, " and ", second, ": ",
                      decision.more_rounds > 0
                          ? absl::StrCat("at least ", Count(decision.more_rounds, "round"), " more")
                          : absl::StrCat("more than ", kMostRounds, " rounds more"));
}

}  // namespace gradsync
