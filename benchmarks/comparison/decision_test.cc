#include "benchmarks/comparison/decision.h"

#include <cmath>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using Outcome = Decision::Outcome;

// Values of the tables in textbooks.
TEST(DecisionTest, QuantilesAreStudents) {
  EXPECT_NEAR(StudentQuantile(0.025, 1), 12.7062, 1e-4);
  EXPECT_NEAR(StudentQuantile(0.025, 2), 4.30265, 1e-5);
  EXPECT_NEAR(StudentQuantile(0.05, 9), 1.83311, 1e-5);
  EXPECT_NEAR(StudentQuantile(0.005, 30), 2.75000, 1e-4);
  EXPECT_NEAR(StudentQuantile(0.0025, 2), 14.0890, 1e-3);
}

TEST(DecisionTest, AClearLeadIsFasterAndTheOtherWayRoundSlower) {
  const Decision faster = Decide({1.29, 1.31, 1.30}, 1);
  EXPECT_EQ(faster.outcome, Outcome::kFaster);
  EXPECT_EQ(Describe(faster, "ps", "ring"), "ps was 30 % faster than ring");
  EXPECT_GT(faster.low, 1);
  const Decision slower = Decide({1 / 1.29, 1 / 1.31, 1 / 1.30}, 1);
  EXPECT_EQ(slower.outcome, Outcome::kSlower);
  EXPECT_EQ(Describe(slower, "ring", "ps"), "ps was 30 % faster than ring");
  EXPECT_NEAR(slower.low * faster.high, 1, 1e-12);
}

TEST(DecisionTest, ASmallSpreadAroundOneIsEqualWithinTheMargin) {
  const Decision equal = Decide({1.001, 0.999, 1.002, 0.998}, 3);
  EXPECT_EQ(equal.outcome, Outcome::kEqual);
  EXPECT_EQ(Describe(equal, "ring", "ps"), "ring and ps are equal within 2 %");
  // 1.9 % apart is within the margin, but may well be more.
  EXPECT_EQ(Decide({1.009, 1.029, 1.019, 0.999}, 1).outcome, Outcome::kNotDecided);
}

TEST(DecisionTest, RoundsThatDisagreeDecideNothingAndSayHowManyMoreMight) {
  const Decision open = Decide({1.1, 0.9, 1.05}, 1);
  EXPECT_EQ(open.outcome, Outcome::kNotDecided);
  EXPECT_GT(open.more_rounds, 10);
  EXPECT_THAT(Describe(open, "a", "b"),
              testing::MatchesRegex("not decided between a and b: at least [0-9]+ rounds more"));
  EXPECT_EQ(Describe(Decide({2.0}, 1), "a", "b"),
            "not decided between a and b: at least 1 round more");
  EXPECT_EQ(Describe(Decide({3.0, 0.3334}, 1), "a", "b"),
            "not decided between a and b: more than 1000 rounds more");
}

TEST(DecisionTest, OfManyDecisionsEachNeedsMore) {
  const std::vector<double> ratios = {1.02, 1.03, 1.025};
  EXPECT_EQ(Decide(ratios, 1).outcome, Outcome::kFaster);
  EXPECT_EQ(Decide(ratios, 20).outcome, Outcome::kNotDecided);
}

// Pages of ten decisions on equal contestants, of three rounds each.
TEST(DecisionTest, EqualContestantsAreSeldomCalledDifferent) {
  std::mt19937 random(17);
  std::normal_distribution<double> noise(0, 0.03);
  int wrong_pages = 0;
  constexpr int kPages = 2000;
  for (int page = 0; page < kPages; ++page) {
    bool wrong = false;
    for (int decision = 0; decision < 10; ++decision) {
      std::vector<double> ratios;
      for (int round = 0; round < 3; ++round) ratios.push_back(std::exp(noise(random)));
      const Outcome outcome = Decide(ratios, 10).outcome;
      wrong |= outcome == Outcome::kFaster || outcome == Outcome::kSlower;
    }
    wrong_pages += wrong;
  }
  EXPECT_LE(wrong_pages, 0.065 * kPages);  // 5 %, and three standard deviations of 2,000 pages
  EXPECT_GT(wrong_pages, 0);
}

}  // namespace
}  // namespace gradsync
