#include "plan/plan.h"

#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

OptimizerSpec Sgd() {
  OptimizerSpec spec;
  spec.groups.resize(2);
  return spec;
}

std::vector<TensorSpec> Three() {
  return {{"w", {10, 10}, {10, 1}, 0}, {"b", {10}, {1}, 1}, {"scalar", {}, {}, 0}};
}

PlanOptions TwoWorkers() {
  PlanOptions options;
  options.world_size = 2;
  return options;
}

TEST(PlanTest, TensorsAreAlignedTo64BytesInReadyOrder) {
  const Plan plan = *Plan::Create(Three(), {2, 1, 0}, Sgd(), TwoWorkers());
  ASSERT_EQ(plan.buckets().size(), 1u);
  const BucketPlan& bucket = plan.buckets()[0];
  EXPECT_EQ(bucket.tensors[0].tensor, 2);
  EXPECT_EQ(bucket.tensors[1].offset, 16);
  EXPECT_EQ(bucket.tensors[2].offset, 32);
  EXPECT_EQ(bucket.numel, 32 + 112);
}

TEST(PlanTest, TheFirstBucketIsClosedEarlyAndALargeTensorStandsAlone) {
  std::vector<TensorSpec> tensors;
  std::vector<int> order;
  for (int64_t numel : {16, 16, 16, 1000, 16, 16}) {
    order.push_back(static_cast<int>(tensors.size()));
    tensors.push_back({"t" + std::to_string(tensors.size()), {numel}, {1}, 0});
  }
  PlanOptions options = TwoWorkers();
  options.first_bucket_bytes = 100;
  options.bucket_bytes = 200;
  const Plan plan = *Plan::Create(tensors, order, Sgd(), options);
  std::vector<size_t> counts;
  for (const BucketPlan& bucket : plan.buckets()) counts.push_back(bucket.tensors.size());
  EXPECT_EQ(counts, (std::vector<size_t>{1, 2, 1, 2}));
}

TEST(PlanTest, GroupRangesSkipPaddingAndFollowTheCut) {
  const Plan plan = *Plan::Create(Three(), {0, 1, 2}, Sgd(), TwoWorkers());
  const std::vector<GroupRange> ranges = plan.GroupRanges(0, {90, 120});
  ASSERT_EQ(ranges.size(), 2u);
  EXPECT_EQ(ranges[0].range, (ElementRange{90, 100}));
  EXPECT_EQ(ranges[0].group, 0);
  EXPECT_EQ(ranges[1].range, (ElementRange{112, 120}));
  EXPECT_EQ(ranges[1].group, 1);
}

TEST(PlanTest, FingerprintSeesWhateverDecidesBits) {
  const Plan plan = *Plan::Create(Three(), {0, 1, 2}, Sgd(), TwoWorkers());
  EXPECT_EQ(plan.fingerprint(),
            Plan::Create(Three(), {0, 1, 2}, Sgd(), TwoWorkers())->fingerprint());
  EXPECT_NE(plan.fingerprint(),
            Plan::Create(Three(), {1, 0, 2}, Sgd(), TwoWorkers())->fingerprint());
  OptimizerSpec momentum = Sgd();
  momentum.groups[1].momentum = 0.9;
  EXPECT_NE(plan.fingerprint(),
            Plan::Create(Three(), {0, 1, 2}, momentum, TwoWorkers())->fingerprint());
  std::vector<TensorSpec> transposed = Three();
  transposed[0].strides = {1, 10};
  EXPECT_NE(plan.fingerprint(),
            Plan::Create(transposed, {0, 1, 2}, Sgd(), TwoWorkers())->fingerprint());
  PlanOptions chunked = TwoWorkers();
  chunked.chunk_bytes = 64;
  EXPECT_NE(plan.fingerprint(), Plan::Create(Three(), {0, 1, 2}, Sgd(), chunked)->fingerprint());
  PlanOptions three = TwoWorkers();
  three.world_size = 3;
  EXPECT_NE(plan.fingerprint(), Plan::Create(Three(), {0, 1, 2}, Sgd(), three)->fingerprint());
}

TEST(PlanTest, FirstDifferenceShowsBothLines) {
  OptimizerSpec momentum = Sgd();
  momentum.groups[1].momentum = 0.9;
  const std::string difference =
      FirstDifference(Plan::Create(Three(), {0, 1, 2}, Sgd(), TwoWorkers())->Describe(),
                      Plan::Create(Three(), {0, 1, 2}, momentum, TwoWorkers())->Describe());
  EXPECT_TRUE(absl::StrContains(difference, "group 1")) << difference;
  EXPECT_TRUE(absl::StrContains(difference, "momentum 0.9")) << difference;
  EXPECT_EQ(FirstDifference("a\nb", "a\nb"), "");
  EXPECT_EQ(FirstDifference("a", "a\nb"), "\"(nothing)\" against \"b\"");
}

TEST(PlanTest, BadInputIsRefusedByName) {
  const auto error = [](std::vector<TensorSpec> tensors, std::vector<int> order) {
    return std::string(
        Plan::Create(std::move(tensors), order, Sgd(), TwoWorkers()).status().message());
  };
  EXPECT_TRUE(absl::StrContains(error(Three(), {0, 1}), "each of 3 once"));
  EXPECT_TRUE(absl::StrContains(error(Three(), {0, 1, 1}), "each of 3 once"));
  EXPECT_TRUE(absl::StrContains(error(Three(), {0, 1, 7}), "each of 3 once"));
  std::vector<TensorSpec> twice = Three();
  twice[1].name = "w";
  EXPECT_TRUE(absl::StrContains(error(twice, {0, 1, 2}), "\"w\""));
  std::vector<TensorSpec> sparse = Three();
  sparse[0].strides = {20, 1};
  EXPECT_TRUE(absl::StrContains(error(sparse, {0, 1, 2}), "dense strides"));
  std::vector<TensorSpec> grouped = Three();
  grouped[0].group = 2;
  EXPECT_TRUE(absl::StrContains(error(grouped, {0, 1, 2}), "group 2"));
  PlanOptions odd = TwoWorkers();
  odd.chunk_bytes = 100;
  EXPECT_FALSE(Plan::Create(Three(), {0, 1, 2}, Sgd(), odd).ok());
  EXPECT_FALSE(Plan::FromBuckets(Three(), {{0, 1}, {2, 2}}, Sgd(), 2, 0).ok());
  EXPECT_FALSE(Plan::FromBuckets(Three(), {{0, 1, 2}}, Sgd(), 0, 0).ok());
}

}  // namespace
}  // namespace gradsync
