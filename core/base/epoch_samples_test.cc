#include "core/base/epoch_samples.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int64_t> IndicesOf(const SamplerOptions& options, int64_t epoch) {
  EXPECT_EQ(CheckSampler(options), absl::OkStatus());
  return SamplesOfEpoch(options, epoch);
}

SamplerOptions Options(int64_t size, int rank, int world_size) {
  SamplerOptions options;
  options.dataset_size = size;
  options.rank = rank;
  options.world_size = world_size;
  return options;
}

TEST(EpochSamplesTest, WithoutShuffleRankTakesEveryNthAndPadsByWrappingAround) {
  SamplerOptions options = Options(7, 0, 3);
  options.shuffle = false;
  EXPECT_THAT(IndicesOf(options, 0), ElementsAre(0, 3, 6));
  options.rank = 1;
  EXPECT_THAT(IndicesOf(options, 0), ElementsAre(1, 4, 0));
  options.rank = 2;
  EXPECT_THAT(IndicesOf(options, 9), ElementsAre(2, 5, 1));
}

TEST(EpochSamplesTest, DropLastLeavesTheTailOut) {
  SamplerOptions options = Options(8, 2, 3);
  options.shuffle = false;
  options.drop_last = true;
  EXPECT_THAT(IndicesOf(options, 0), ElementsAre(2, 5));
}

TEST(EpochSamplesTest, MoreRanksThanSamplesWrapsRepeatedly) {
  for (int rank = 0; rank < 7; ++rank) {
    SamplerOptions options = Options(3, rank, 7);
    options.shuffle = false;
    EXPECT_THAT(IndicesOf(options, 0), ElementsAre(rank % 3));
  }
}

TEST(EpochSamplesTest, RanksTogetherSeeEverySampleAndPaddingAtMostOnceMore) {
  for (int64_t size : {1, 5, 16, 17, 100}) {
    for (int n : {1, 2, 3, 5, 8}) {
      for (bool drop_last : {false, true}) {
        if (drop_last && size < n) continue;
        std::map<int64_t, int> seen;
        int64_t total = 0;
        for (int rank = 0; rank < n; ++rank) {
          SamplerOptions options = Options(size, rank, n);
          options.drop_last = drop_last;
          for (int64_t index : IndicesOf(options, 4)) {
            ASSERT_GE(index, 0);
            ASSERT_LT(index, size);
            ++seen[index];
            ++total;
          }
        }
        EXPECT_EQ(total % n, 0);
        EXPECT_EQ(total / n, drop_last ? size / n : (size + n - 1) / n);
        EXPECT_EQ(seen.size(), std::min(size, total)) << size << " over " << n;
        int most = 0, least = std::numeric_limits<int>::max();
        for (const auto& [index, count] : seen) {
          most = std::max(most, count);
          least = std::min(least, count);
        }
        EXPECT_LE(most - least, 1);
      }
    }
  }
}

TEST(EpochSamplesTest, OrderDependsOnSeedAndEpochOnly) {
  SamplerOptions options = Options(1000, 1, 2);
  options.seed = 3;
  const std::vector<int64_t> order = IndicesOf(options, 5);
  EXPECT_EQ(IndicesOf(options, 5), order);
  EXPECT_NE(IndicesOf(options, 6), order);
  options.seed = 4;
  EXPECT_NE(IndicesOf(options, 5), order);
}

TEST(EpochSamplesTest, EveryPositionIsEquallyLikely) {
  constexpr int kSize = 6, kEpochs = 6000;
  int count[kSize][kSize] = {};
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    const std::vector<int64_t> order = IndicesOf(Options(kSize, 0, 1), epoch);
    for (int p = 0; p < kSize; ++p) ++count[p][order[p]];
  }
  for (auto& row : count) {
    for (int c : row) EXPECT_NEAR(c, kEpochs / kSize, 6 * 29);  // Standard deviation 29.
  }
}

TEST(EpochSamplesTest, OrderNeverChangesBetweenBuilds) {
  EXPECT_THAT(IndicesOf(Options(10, 0, 1), 0), ElementsAre(6, 9, 0, 1, 3, 7, 4, 8, 5, 2));
}

// torch.randperm(10) with seeds 0 and 7; sampler_python_test compares with PyTorch itself.
TEST(EpochSamplesTest, PytorchsOrderIsThatOfRandperm) {
  SamplerOptions options = Options(10, 0, 1);
  options.order = SampleOrder::kPytorch;
  EXPECT_THAT(IndicesOf(options, 0), ElementsAre(4, 1, 7, 5, 3, 9, 0, 8, 6, 2));
  options.seed = 3;
  EXPECT_THAT(IndicesOf(options, 4), ElementsAre(5, 0, 3, 4, 1, 7, 9, 6, 8, 2));
  options.shuffle = false;
  EXPECT_THAT(IndicesOf(options, 4), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
}

TEST(EpochSamplesTest, PytorchsOrderIsRefusedWhereItsReleasesDiffer) {
  SamplerOptions options = Options(214748364, 0, 1);
  EXPECT_TRUE(CheckSampler(options).ok());
  options.order = SampleOrder::kPytorch;
  EXPECT_THAT(CheckSampler(options).message(), HasSubstr("214748364"));
  --options.dataset_size;
  EXPECT_TRUE(CheckSampler(options).ok());
}

TEST(EpochSamplesTest, BadOptionsAreRejectedWithBothNumbers) {
  EXPECT_THAT(CheckSampler(Options(0, 0, 1)).message(), HasSubstr("found 0"));
  for (int rank : {-1, 2, 3}) {
    const absl::Status status = CheckSampler(Options(10, rank, 2));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("with world_size 2"));
  }
  EXPECT_FALSE(CheckSampler(Options(10, 0, 0)).ok());
  SamplerOptions starving = Options(3, 0, 4);
  starving.drop_last = true;
  EXPECT_EQ(CheckSampler(starving).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gradsync
