#include "core/gpu/kernel_operands.h"

#include <vector>

#include "gtest/gtest.h"

namespace gradsync {
namespace {

TEST(VectorSplitTest, EveryFloatIsInOneVectorOrSingleAndVectorsAreAligned) {
  for (int phase = kNoPhase; phase < kVectorFloats; ++phase) {
    for (size_t offset = 0; offset < 6; ++offset) {
      for (size_t n = 0; n < 20; ++n) {
        const VectorSplit split = SplitVectors(phase, offset, n);
        std::vector<int> seen(n);
        for (size_t i = 0; i < split.singles(n); ++i) ++seen.at(split.Single(i));
        for (size_t i = 0; i < split.vectors * kVectorFloats; ++i) ++seen.at(split.head + i);
        EXPECT_EQ(seen, std::vector<int>(n, 1)) << phase << " " << offset << " " << n;
        if (phase == kNoPhase) {
          EXPECT_EQ(split.vectors, 0u);
          continue;
        }
        EXPECT_LT(split.singles(n), 7u);
        if (split.vectors == 0) continue;
        EXPECT_EQ((static_cast<size_t>(phase) + offset + split.head) % kVectorFloats, 0u);
      }
    }
  }
}

TEST(VectorSplitTest, AddressesInDifferentPhasesHaveNoneInCommon) {
  alignas(16) const float floats[8] = {};
  EXPECT_EQ(VectorPhase(floats), 0);
  EXPECT_EQ(VectorPhase(floats + 7), 3);
  EXPECT_EQ(CommonPhase(VectorPhase(floats + 1), floats + 5), 1);
  EXPECT_EQ(CommonPhase(VectorPhase(floats + 1), floats + 2), kNoPhase);
  EXPECT_EQ(CommonPhase(kNoPhase, floats + 3), kNoPhase);
}

}  // namespace
}  // namespace gradsync
