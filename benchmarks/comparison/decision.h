// What rounds of two contestants that ran in turns decide: one was faster, both are equal within a
// margin, or neither is shown.

#ifndef GRADSYNC_BENCHMARKS_COMPARISON_DECISION_H_
#define GRADSYNC_BENCHMARKS_COMPARISON_DECISION_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace gradsync {

// Pure functions, thread-safe.

// Two contestants whose ratio lies within 1 / (1 + kEqualMargin) and 1 + kEqualMargin are equal.
constexpr double kEqualMargin = 0.02;

// All decisions of a page together are wrong in at most so many cases.
constexpr double kErrorRate = 0.05;

// Rounds that nobody will run are not asked for.
constexpr int kMostRounds = 1000;

struct Decision {
  enum class Outcome { kFaster, kSlower, kEqual, kNotDecided };

  Outcome outcome = Outcome::kNotDecided;
  double ratio = 0;  // geometric mean over rounds; 0 without any
  // The interval that kFaster and kSlower go by: 1 is outside of it. Both 0 with fewer than two
  // rounds.
  double low = 0;
  double high = 0;
  // kNotDecided: with so many rounds more this ratio at this spread would be decided, so at least as
  // many are needed. 0: more than kMostRounds.
  int more_rounds = 0;
};

// Of `ratios` by round, the first contestant's speed over the second's, each above 0, as one of
// `decisions` (at least 1) that are read together.
//
// The logarithms of ratios are taken for a sample of a normal distribution. Faster or slower: a
// two-sided t test; equal: two one-sided t tests (Schuirmann, 1987) of the margin; each at kErrorRate
// / decisions (Bonferroni). What is both, a small difference that is sure, is a difference.
Decision Decide(const std::vector<double>& ratios, int decisions);

// "ring was 50 % faster than ps", "ring and ps are equal within 2 %", or "not decided between ring
// and ps: at least 4 rounds more". `ratios` are of the first, whose name comes first unless it was
// slower.
std::string Describe(const Decision& decision, absl::string_view first, absl::string_view second);

// The value that a variable with Student's t distribution is above with probability `tail`, 0 to 0.5
// exclusive. `degrees` of freedom: at least 1.
double StudentQuantile(double tail, int degrees);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_COMPARISON_DECISION_H_
