#include "benchmarks/exchange/rounded_input.h"

#include <vector>

#include "benchmarks/exchange/exact_input.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

TEST(RoundedInputTest, RoundedMeansAreExactWhereSixteenBitsAreEnough) {
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

TEST(RoundedInputTest, ElsewhereRingsRoundAtEachHopInTheOrderOfTheFold) {
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
