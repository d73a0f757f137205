#include "benchmarks/exact_input.h"

#include <algorithm>
#include <cmath>
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

TEST(ExactInputTest, RoundedMeansAreExactWhereSixteenBitsAreEnough) {
  // Sums of two need at most 8 bits for bf16, sums of eight 11 bits for fp16.
  for (bool at_each_hop : {false, true}) {
    std::vector<float> exact(1000), rounded(1000);
    FillMean(2, 3, 17, absl::MakeSpan(exact));
    FillRoundedMean(2, 1, 3, 17, {Codec::Kind::kBf16, 0}, at_each_hop, absl::MakeSpan(rounded));
    EXPECT_EQ(rounded, exact);
    FillMean(8, 3, 17, absl::MakeSpan(exact));
    FillRoundedMean(8, 5, 3, 17, {Codec::Kind::kFp16, 0}, at_each_hop, absl::MakeSpan(rounded));
    EXPECT_EQ(rounded, exact);
  }
}

TEST(ExactInputTest, ElsewhereRingsRoundAtEachHopInTheOrderOfTheFold) {
  const Codec bf16 = {Codec::Kind::kBf16, 0};
  std::vector<float> once(4000), hops(4000), other(4000);
  FillRoundedMean(6, 2, 3, 0, bf16, false, absl::MakeSpan(once));
  FillRoundedMean(6, 2, 3, 0, bf16, true, absl::MakeSpan(hops));
  FillRoundedMean(6, 3, 3, 0, bf16, true, absl::MakeSpan(other));
  EXPECT_GT(CountWrong(once, hops), 100);
  EXPECT_GT(CountWrong(other, hops), 100);
  std::vector<float> of_another_order(4000);
  FillRoundedMean(6, 3, 3, 0, bf16, false, absl::MakeSpan(of_another_order));
  EXPECT_EQ(CountWrong(once, of_another_order), 0);
}

}  // namespace
}  // namespace gradsync
