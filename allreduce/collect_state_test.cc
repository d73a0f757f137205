#include "allreduce/collect_state.h"

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/group/key_value_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kRanks = 2;

Deadline Soon() { return Deadline::In(absl::Seconds(60)); }

Plan FourElements() {
  OptimizerSpec momentum;
  momentum.groups.resize(1);
  momentum.groups[0].momentum = 0.9;
  return *Plan::FromBuckets({{"a", {4}, {1}, 0}}, {{0}}, momentum, kRanks, /*chunk_bytes=*/64);
}

// Rank r owns elements 2r and 2r+1.
std::vector<ElementRange> RangesOf(int, int rank) { return {{2 * rank, 2 * rank + 2}}; }

StateBytes Both(float first) {
  const float values[] = {first, first + 1};
  StateBytes bytes;
  bytes.BeginRange(/*has_state=*/true);
  bytes.AppendSlot(values, 2);
  return bytes;
}

// What all ranks have of `exported`, by rank.
std::vector<absl::StatusOr<OptimizerState>> Collect(
    const std::function<absl::StatusOr<StateBytes>(int rank)>& exported) {
  const std::shared_ptr<KeyValueStore> store = NewInMemoryStore();
  std::vector<absl::StatusOr<OptimizerState>> states(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      WorkerGroup group;
      group.rank = rank;
      group.world_size = kRanks;
      group.run_id = "collect_state";
      group.store = store;
      SideChannel side_channel(group, "state");
      states[rank] = CollectState(FourElements(), {[&](int) { return exported(rank); }, RangesOf},
                                  /*steps=*/3, side_channel, Soon());
    });
  }
  for (std::thread& thread : threads) thread.join();
  return states;
}

TEST(CollectStateTest, EveryRankHasTheStateOfAll) {
  for (const auto& state : Collect([](int rank) { return Both(10.0f * (rank + 1)); })) {
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ(state->step, 3);
    EXPECT_THAT(state->slots.at("a").at("momentum_buffer"), ElementsAre(10, 11, 20, 21));
  }
}

TEST(CollectStateTest, RangesWithoutStateAreZerosBesideOthersAndNothingByThemselves) {
  const auto none = [] {
    StateBytes bytes;
    bytes.BeginRange(/*has_state=*/false);
    return bytes;
  };
  for (const auto& state : Collect([&](int rank) { return rank == 0 ? none() : Both(5); })) {
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_THAT(state->slots.at("a").at("momentum_buffer"), ElementsAre(0, 0, 5, 6));
  }
  for (const auto& state : Collect([&](int) { return none(); })) {
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_TRUE(state->slots.empty());
  }
}

TEST(CollectStateTest, APartOfAnotherLengthIsLostDataByBucketAndRank) {
  const auto longer = [] {
    StateBytes bytes = Both(5);
    bytes.BeginRange(/*has_state=*/false);
    return bytes;
  };
  for (const auto& state : Collect([&](int rank) { return rank == 1 ? longer() : Both(5); })) {
    EXPECT_TRUE(absl::IsDataLoss(state.status())) << state.status();
    EXPECT_THAT(state.status().message(),
                HasSubstr("optimizer state of bucket 0 from rank 1: 1 bytes too many"));
  }
  const auto shorter = [] {
    const float value = 1;
    StateBytes bytes;
    bytes.BeginRange(/*has_state=*/true);
    bytes.AppendSlot(&value, 1);
    return bytes;
  };
  for (const auto& state : Collect([&](int rank) { return rank == 0 ? shorter() : Both(5); })) {
    EXPECT_TRUE(absl::IsDataLoss(state.status())) << state.status();
    EXPECT_THAT(state.status().message(), HasSubstr("bucket 0 from rank 0: ends early"));
  }
}

}  // namespace
}  // namespace gradsync
