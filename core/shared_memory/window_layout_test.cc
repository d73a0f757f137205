#include "core/shared_memory/window_layout.h"

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
    EXPECT_EQ(layout.progress_offset(bucket), 128 + bucket * WindowLayout::kProgressBytes);
  }
  EXPECT_EQ(layout.squares_offset(), 128 + 3 * WindowLayout::kProgressBytes);
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

TEST(WindowLayoutTest, BucketsTakeTurnsWhereThePlanHasSlots) {
  BucketSlots slots;
  slots.gradients = 1;
  slots.parameters = 2;
  const Plan plan = *MakePlan(3).WithSlots(slots);
  const WindowLayout layout(plan, 100, /*shard_elements=*/500);
  const int64_t grad = layout.grad_offset(0);
  EXPECT_EQ(layout.grad_offset(1), grad);
  EXPECT_EQ(layout.grad_offset(2), grad);
  EXPECT_EQ(layout.param_offset(2), layout.param_offset(0));
  // Each is as large as the largest that uses it.
  EXPECT_GE(layout.param_offset(0), grad + plan.buckets()[1].bytes());
  EXPECT_GE(layout.param_offset(1), layout.param_offset(0) + plan.buckets()[2].bytes());
  EXPECT_GE(layout.shard_offset(), layout.param_offset(1) + plan.buckets()[1].bytes());
  EXPECT_EQ(layout.bytes(), layout.shard_offset() + 4096);
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
