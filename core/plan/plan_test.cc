#include "core/plan/plan.h"

#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "core/plan/codec.h"
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

TEST(PlanTest, ChunksForNetworksAreThoseOfAllGradientsTogether) {
  PlanOptions options = TwoWorkers();
  options.chunk_bytes = kNetworkChunks;
  const std::vector<TensorSpec> tensors = {{"a", {1'000'000}, {1}, 0}, {"b", {2'000'000}, {1}, 0}};
  const absl::StatusOr<Plan> plan = Plan::Create(tensors, {0, 1}, Sgd(), options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->chunk_bytes(), NetworkChunkBytes(12'000'000, 2));
  // Those who are told the number have the same plan.
  options.chunk_bytes = plan->chunk_bytes();
  EXPECT_EQ(Plan::Create(tensors, {0, 1}, Sgd(), options)->fingerprint(), plan->fingerprint());
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

// Which chunk, and so which order of addition, each element of each tensor has, by its name.
std::map<std::string, std::vector<int>> ChunksOf(const Plan& plan) {
  std::map<std::string, std::vector<int>> chunks;
  for (const BucketPlan& bucket : plan.buckets()) {
    std::vector<int> chunk_of;
    for (int slot = 0; slot < bucket.layout.slots(); ++slot) {
      EXPECT_EQ(bucket.layout.range(slot).begin, static_cast<int64_t>(chunk_of.size()));
      chunk_of.resize(bucket.layout.range(slot).end, bucket.layout.chunk_of(slot));
    }
    EXPECT_EQ(static_cast<int64_t>(chunk_of.size()), bucket.numel);
    for (const PlacedTensor& placed : bucket.tensors) {
      const TensorSpec& tensor = plan.tensors()[placed.tensor];
      const auto begin = chunk_of.begin() + placed.offset;
      chunks[tensor.name].assign(begin, begin + tensor.numel());
    }
  }
  return chunks;
}

// Tensors of uneven sizes, in buckets of some of them.
Plan ManyTensors(int world_size, int64_t chunk_bytes) {
  std::vector<TensorSpec> tensors;
  std::vector<int> order;
  for (int i = 0; i < 23; ++i) {
    tensors.push_back({"t" + std::to_string(i), {1 + (i * 379) % 1000}, {1}, i % 2});
    order.insert(order.begin(), i);
  }
  PlanOptions options;
  options.world_size = world_size;
  options.bucket_bytes = 12000;
  options.first_bucket_bytes = 2000;
  options.chunk_bytes = chunk_bytes;
  return *Plan::Create(tensors, order, Sgd(), options);
}

TEST(PlanPartTest, StagesTogetherHaveEveryElementInTheWholePlansChunk) {
  for (int n : {1, 2, 3, 5}) {
    for (int64_t chunk_bytes : {0, 64, 192, 1024}) {
      const Plan whole = ManyTensors(n, chunk_bytes);
      const auto expected = ChunksOf(whole);
      for (const std::vector<int>& starts :
           {std::vector<int>{0, 23}, {0, 1, 23}, {0, 7, 12, 23}, {0, 11, 12, 13, 22, 23}}) {
        std::map<std::string, std::vector<int>> found;
        for (size_t s = 0; s + 1 < starts.size(); ++s) {
          std::vector<int> members;
          for (int i = starts[s]; i < starts[s + 1]; ++i) members.push_back(i);
          const Plan part = whole.Part(members).value();
          ASSERT_EQ(part.tensors().size(), members.size());
          EXPECT_TRUE(part.is_part());
          for (const BucketPlan& bucket : part.buckets()) {
            EXPECT_LT(bucket.layout.lead(), n * bucket.layout.chunk_elements());
            EXPECT_LE(bucket.layout.lead() + bucket.numel,
                      bucket.layout.slots() * bucket.layout.chunk_elements());
          }
          found.merge(ChunksOf(part));
        }
        EXPECT_EQ(found, expected) << "n = " << n << ", chunks of " << chunk_bytes;
      }
    }
  }
}

TEST(PlanPartTest, MembersThatDoNotFollowOneAnotherHaveBucketsOfTheirOwn) {
  const Plan whole = *Plan::Create(Three(), {0, 1, 2}, Sgd(), TwoWorkers());
  const Plan part = whole.Part({0, 2}).value();
  ASSERT_EQ(part.buckets().size(), 2u);
  EXPECT_EQ(part.buckets()[0].numel, 112);
  EXPECT_EQ(part.buckets()[1].numel, 16);
  EXPECT_NE(part.fingerprint(), whole.Part({0, 1}).value().fingerprint());
  EXPECT_FALSE(whole.is_part());
}

TEST(PlanPartTest, RefusesMembersThatAreNoneAndCodecs) {
  const Plan whole = *Plan::Create(Three(), {0, 1, 2}, Sgd(), TwoWorkers());
  EXPECT_TRUE(absl::StrContains(whole.Part({3}).status().message(), "indices below 3"));
  EXPECT_TRUE(absl::StrContains(whole.Part({-1}).status().message(), "indices below 3"));
  EXPECT_TRUE(absl::StrContains(whole.Part({1, 1}).status().message(), "each once"));
  PlanOptions compressed = TwoWorkers();
  compressed.codec = *ParseCodec("fp16");
  const Plan narrow = *Plan::Create(Three(), {0, 1, 2}, Sgd(), compressed);
  EXPECT_TRUE(absl::StrContains(narrow.Part({0}).status().message(), "without compression"));
}

}  // namespace
}  // namespace gradsync
