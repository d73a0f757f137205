#include "core/sync/buckets.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

Plan OneTensor(int64_t numel) {
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  return *Plan::FromBuckets({{"a", {numel}, {1}, 0}}, {{0}}, optimizer, /*world_size=*/1,
                            /*chunk_bytes=*/int64_t{1} << 40);
}

TEST(FlatBucketsTest, BucketsAreZeroAndAligned) {
  const auto buckets = AllocateBuckets(OneTensor(5));
  ASSERT_TRUE(buckets.ok()) << buckets.status();
  const std::vector<BucketMemory> memory = MemoryOf(*buckets);
  ASSERT_EQ(memory.size(), 1u);
  EXPECT_GE(memory[0].numel, 5);
  for (const float* flat : {memory[0].grad, memory[0].param}) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(flat) % 64, 0u);
    for (int64_t i = 0; i < memory[0].numel; ++i) EXPECT_EQ(flat[i], 0.0f);
  }
}

TEST(FlatBucketsTest, BucketsOfOneSlotHaveItsMemoryAndOthersNoneOfIt) {
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  BucketSlots slots;
  slots.gradients = 2;
  slots.parameters = 1;
  const Plan plan =
      *Plan::FromBuckets({{"a", {5}, {1}, 0}, {"b", {40}, {1}, 0}, {"c", {90}, {1}, 0}},
                         {{0}, {1}, {2}}, optimizer, 1, 0)
           ->WithSlots(slots);
  const auto buckets = AllocateBuckets(plan);
  ASSERT_TRUE(buckets.ok()) << buckets.status();
  const std::vector<BucketMemory> memory = MemoryOf(*buckets);
  EXPECT_EQ(memory[2].grad, memory[0].grad);
  EXPECT_GE(memory[1].grad, memory[0].grad + 96);  // the larger of both
  EXPECT_EQ(memory[0].param, memory[1].param);
  EXPECT_EQ(memory[0].param, memory[2].param);
  EXPECT_GE(memory[0].param, memory[1].grad + 48);
  EXPECT_EQ(memory[2].numel, 96);
}

// The result of an allocation that failed was written to.
TEST(FlatBucketsTest, MoreThanTheHostHasIsRefusedWithTheNumberOfBytes) {
  const int64_t numel = int64_t{1} << 45;  // more than a process can address
  const absl::Status status = AllocateBuckets(OneTensor(numel)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  const std::string bytes = absl::StrCat(2 * 4 * numel + 4096, " bytes");
  EXPECT_TRUE(absl::StrContains(status.message(), bytes)) << status;
}

}  // namespace
}  // namespace gradsync
