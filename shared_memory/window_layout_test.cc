#include "shared_memory/window_layout.h"

#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace gradsync {
namespace {

Plan MakePlan(int world_size) {
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  std::vector<TensorSpec> tensors = {
      {"a", {3}, {1}, 0}, {"b", {5000}, {1}, 0}, {"c", {2049}, {1}, 0}};
  return *Plan::FromBuckets(std::move(tensors), {{0}, {1}, {2}}, optimizer, world_size,
                            /*chunk_bytes=*/512);
}

TEST(WindowLayoutTest, PartsLieOneAfterAnotherAlignedAndApart) {
  const Plan plan = MakePlan(3);
  const WindowLayout layout(plan, 100);
  for (int bucket = 0; bucket < 3; ++bucket) {
    EXPECT_EQ(layout.progress_offset(bucket), 128 + bucket * 64);
  }
  EXPECT_EQ(layout.squares_offset(), 128 + 3 * 64);
  int64_t end = layout.squares_offset() + layout.squares() * 8;
  for (int bucket = 0; bucket < 3; ++bucket) {
    for (int64_t begin : {layout.grad_offset(bucket), layout.param_offset(bucket)}) {
      EXPECT_EQ(begin % 4096, 0);
      EXPECT_GE(begin, end);
      end = begin + plan.buckets()[bucket].bytes();
    }
  }
  EXPECT_GE(layout.bytes(), end);
}

TEST(WindowLayoutTest, EveryRankHasRoomForTheSquaresOfItsChunks) {
  for (int n : {1, 2, 5}) {
    const Plan plan = MakePlan(n);
    int64_t slots = 0;
    for (const BucketPlan& bucket : plan.buckets()) slots += bucket.layout.slots();
    EXPECT_EQ(WindowLayout(plan, 64).squares() * n, slots);
  }
}

}  // namespace
}  // namespace gradsync
