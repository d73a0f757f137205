#include "benchmarks/exchange/exact_input.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace gradsync {
namespace {

std::vector<float> Contribution(int rank, int64_t step, int64_t first, size_t n) {
  std::vector<float> out(n);
  FillContribution(rank, step, first, absl::MakeSpan(out));
  return out;
}

std::vector<float> Mean(int world_size, int64_t step, int64_t first, size_t n) {
  std::vector<float> out(n);
  FillMean(world_size, step, first, absl::MakeSpan(out));
  return out;
}

TEST(ExactInputTest, TheMeanIsTheSameInEveryOrder) {
  std::mt19937 random(1);
  for (int n : {1, 2, 3, 5, 8, 64}) {
    std::vector<int> order(n);
    for (int rank = 0; rank < n; ++rank) order[rank] = rank;
    for (int trial = 0; trial < 5; ++trial) {
      std::shuffle(order.begin(), order.end(), random);
      std::vector<float> sum(1000);
      for (int rank : order) {
        const std::vector<float> part = Contribution(rank, 3, 12345, 1000);
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
      }
      for (float& x : sum) x *= 1.0f / static_cast<float>(n);
      EXPECT_EQ(CountWrong(sum, Mean(n, 3, 12345, 1000)), 0) << n;
    }
  }
}

TEST(ExactInputTest, ValuesAreWholeNumbersOfOneByte) {
  for (float x : Contribution(5, 7, 0, 100000)) {
    EXPECT_EQ(x, std::trunc(x));
    EXPECT_GE(x, -128);
    EXPECT_LE(x, 127);
  }
}

TEST(ExactInputTest, ValuesAreAFunctionOfTheElementsIndex) {
  const std::vector<float> whole = Contribution(1, 2, 0, 1000);
  EXPECT_EQ(Contribution(1, 2, 300, 700), std::vector<float>(whole.begin() + 300, whole.end()));
  const std::vector<float> mean = Mean(3, 2, 0, 1000);
  EXPECT_EQ(Mean(3, 2, 300, 700), std::vector<float>(mean.begin() + 300, mean.end()));
}

// 16 elements are the smallest distance by which chunks can be misplaced.
TEST(ExactInputTest, MostElementsChangeWithTheirPlaceTheRankAndTheStep) {
  constexpr size_t kCount = 4096;
  const std::vector<float> mean = Mean(2, 1, 0, kCount);
  for (int64_t shift = 16; shift <= (1 << 20); shift *= 2) {
    EXPECT_GT(CountWrong(mean, Mean(2, 1, shift, kCount)), kCount * 9 / 10) << shift;
  }
  for (int64_t step = 2; step < 100; ++step) {
    EXPECT_GT(CountWrong(mean, Mean(2, step, 0, kCount)), kCount * 9 / 10) << step;
  }
  for (int rank = 1; rank < 64; ++rank) {
    EXPECT_GT(CountWrong(Contribution(0, 1, 0, kCount), Contribution(rank, 1, 0, kCount)),
              kCount * 9 / 10)
        << rank;
  }
}

TEST(ExactInputTest, NanIsWrongAndZeroIsZero) {
  const std::vector<float> expected = {0, 1, 2};
  EXPECT_EQ(CountWrong(std::vector<float>{-0.0f, 1, 2}, expected), 0);
  EXPECT_EQ(CountWrong(std::vector<float>{NAN, 1, 3}, expected), 2);
}

TEST(ExactInputTest, ToleranceForgivesRoundingAndNoMore) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> expected = {1, 2, 3};
  EXPECT_EQ(CountWrong({1, 2.25f, nan}, expected, 0.25f), 1);
  EXPECT_EQ(CountWrong({1, 2.25f, 3}, expected, 0.125f), 1);
  EXPECT_EQ(CountWrong({1, 2.25f, 3}, expected), 1);
}

}  // namespace
}  // namespace gradsync
