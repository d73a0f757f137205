#include "core/base/random.h"

#include <cstdint>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace gradsync {
namespace {

TEST(RandomStreamTest, ValuesNeverChangeBetweenBuilds) {
  // SplitMix64's published sequence for seed 1234567 starts with this value.
  EXPECT_EQ(MixBits(1234567 + 0x9e3779b97f4a7c15u), 6457827717110365317u);
  RandomStream stream(1, 2, 3, 4);
  const uint64_t first = stream.Next();
  EXPECT_EQ(RandomStream(1, 2, 3, 4).Next(), first);
}

TEST(RandomStreamTest, NeighbouringNamesGiveDifferentStreams) {
  std::set<uint64_t> seen;
  int streams = 0;
  for (uint64_t purpose = 0; purpose < 4; ++purpose) {
    for (uint64_t seed = 0; seed < 4; ++seed) {
      for (uint64_t a = 0; a < 4; ++a) {
        for (uint64_t b = 0; b < 4; ++b) {
          seen.insert(RandomStream(purpose, seed, a, b).Next());
          ++streams;
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), streams);
}

TEST(RandomStreamTest, BelowIsUniformAndStaysInRange) {
  for (uint64_t bound : {1, 2, 3, 9, 10, 1000}) {
    RandomStream stream(7, bound);
    std::vector<int> count(bound, 0);
    const int draws = 2000 * static_cast<int>(bound);
    for (int i = 0; i < draws; ++i) {
      const uint64_t value = stream.Below(bound);
      ASSERT_LT(value, bound);
      ++count[value];
    }
    for (uint64_t v = 0; v < bound; ++v) {
      // 2000 expected, standard deviation below 45: six of them on each side.
      EXPECT_NEAR(count[v], 2000, 270) << v << " of " << bound;
    }
  }
}

TEST(RandomStreamTest, BelowCoversBoundsThatDoNotDivideTheRange) {
  RandomStream stream(8, 0);
  const uint64_t bound = (uint64_t{1} << 63) + 1;  // Rejects almost half of all draws.
  for (int i = 0; i < 1000; ++i) EXPECT_LT(stream.Below(bound), bound);
}

}  // namespace
}  // namespace gradsync
