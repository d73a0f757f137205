#include "core/plan/ring_schedule.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"

namespace gradsync {
namespace {

// Sizes below n, equal to it, next to it, not multiples, and many stripes.
std::vector<int64_t> SizesFor(int n) {
  return {0, 1, n - 1, n, n + 1, 16 * n, 16 * n + 1, 16 * n - 1, 1000, 1024 * n, 12345};
}

TEST(RingScheduleTest, ATokenVisitsEveryRankOncePerPhaseAndEndsAtTheOwner) {
  for (int n = 1; n <= 17; ++n) {
    for (int chunk = 0; chunk < n; ++chunk) {
      int rank = Initiator(chunk, n);
      EXPECT_EQ(InitiatedChunk(rank, n), chunk);
      for (int hop = 0; hop < n; ++hop) {
        EXPECT_EQ(ReduceHop(chunk, rank, n), hop);
        EXPECT_EQ(SendsReduce(chunk, rank), hop < n - 1);
        if (SendsReduce(chunk, rank)) {
          EXPECT_EQ(ReduceSendChunk(rank, hop + 1, n), chunk);
        }
        if (hop < n - 1) rank = RingNext(rank, n);
      }
      EXPECT_EQ(rank, chunk);
      for (int hop = 0; hop < n; ++hop) {
        EXPECT_EQ(GatherHop(chunk, rank, n), hop);
        EXPECT_EQ(SendsGather(chunk, rank, n), hop < n - 1);
        if (SendsGather(chunk, rank, n)) {
          EXPECT_EQ(GatherSendChunk(rank, hop + 1, n), chunk);
        }
        rank = RingNext(rank, n);
      }
    }
  }
}

TEST(RingScheduleTest, TheTokenMeetsRanksInFoldOrder) {
  for (int n = 1; n <= 17; ++n) {
    for (int chunk = 0; chunk < n; ++chunk) {
      for (int position = 0; position < n; ++position) {
        EXPECT_EQ(ReduceHop(chunk, FoldRank(chunk, position, n), n), position);
      }
    }
  }
}

TEST(RingScheduleTest, EachRankSendsEachChunkOnceExceptOnePerPhase) {
  for (int n = 2; n <= 17; ++n) {
    for (int rank = 0; rank < n; ++rank) {
      std::vector<int> reduce;
      std::vector<int> gather;
      for (int hop = 1; hop < n; ++hop) {
        reduce.push_back(ReduceSendChunk(rank, hop, n));
        gather.push_back(GatherSendChunk(rank, hop, n));
      }
      EXPECT_EQ(reduce.front(), RingPrevious(rank, n));
      EXPECT_EQ(gather.front(), rank);
      for (int chunk = 0; chunk < n; ++chunk) {
        EXPECT_EQ(std::count(reduce.begin(), reduce.end(), chunk), chunk == rank ? 0 : 1);
        EXPECT_EQ(std::count(gather.begin(), gather.end(), chunk),
                  chunk == RingNext(rank, n) ? 0 : 1);
      }
    }
  }
}

TEST(RingScheduleTest, NextAndPreviousAreInverse) {
  for (int n = 1; n <= 17; ++n) {
    for (int rank = 0; rank < n; ++rank) {
      EXPECT_EQ(RingPrevious(RingNext(rank, n), n), rank);
      EXPECT_EQ(RingNext(RingPrevious(rank, n), n), rank);
    }
  }
}

TEST(RingScheduleTest, WhatARankSendsTheNextReceives) {
  for (int n = 1; n <= 17; ++n) {
    for (int64_t numel : SizesFor(n)) {
      const StripeLayout layout(numel, n, 64);
      for (int rank = 0; rank < n; ++rank) {
        const RingTraffic here = BucketTraffic(layout, rank);
        const RingTraffic next = BucketTraffic(layout, RingNext(rank, n));
        EXPECT_EQ(here.tx_bytes, next.rx_bytes) << "n " << n << " numel " << numel;
        EXPECT_EQ(here.tx_messages, next.rx_messages) << "n " << n << " numel " << numel;
      }
    }
  }
}

TEST(RingScheduleTest, AllRanksTogetherSendTwiceTheBucketToAllButOne) {
  for (int n = 1; n <= 17; ++n) {
    for (int64_t numel : SizesFor(n)) {
      const StripeLayout layout(numel, n, 64);
      int64_t sent = 0;
      for (int rank = 0; rank < n; ++rank) sent += BucketTraffic(layout, rank).tx_bytes;
      EXPECT_EQ(sent, 2 * (n - 1) * numel * 4) << "n " << n << " numel " << numel;
    }
  }
}

TEST(RingScheduleTest, EqualChunksCostEveryRankTheLowerBound) {
  for (int n = 1; n <= 17; ++n) {
    const StripeLayout layout(3 * 64 * n, n, 64);
    const int64_t bytes = layout.numel() * 4;
    for (int rank = 0; rank < n; ++rank) {
      const RingTraffic traffic = BucketTraffic(layout, rank);
      EXPECT_EQ(traffic.tx_bytes, 2 * (n - 1) * bytes / n);
      EXPECT_EQ(traffic.rx_bytes, traffic.tx_bytes);
      EXPECT_EQ(traffic.tx_messages, 2 * (n - 1) * layout.stripes());
    }
  }
}

TEST(RingScheduleTest, EmptyChunksAreNotMessages) {
  // 20 elements in chunks of 16: chunk 0 has 16, chunk 1 has 4, chunk 2 is empty.
  const StripeLayout layout(20, 3, 16);
  ASSERT_EQ(layout.slots(), 3);
  ASSERT_TRUE(layout.range(2).empty());
  EXPECT_EQ(BucketTraffic(layout, 0), (RingTraffic{16 + 64, 64 + 16 + 16, 2, 3}));
  EXPECT_EQ(BucketTraffic(layout, 1), (RingTraffic{64 + 64 + 16, 64 + 16, 3, 2}));
  EXPECT_EQ(BucketTraffic(layout, 2), (RingTraffic{64 + 16 + 16, 64 + 64 + 16, 3, 3}));
}

Plan TwoBuckets(int n) {
  const std::vector<TensorSpec> tensors = {{"a", {100}, {1}, 0}, {"b", {7}, {1}, 0}};
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  return *Plan::FromBuckets(tensors, {{0}, {1}}, optimizer, n, 64);
}

TEST(RingScheduleTest, AStepIsTheSumOfItsBuckets) {
  const Plan plan = TwoBuckets(3);
  for (int rank = 0; rank < 3; ++rank) {
    const RingTraffic first = BucketTraffic(plan.buckets()[0].layout, rank);
    const RingTraffic second = BucketTraffic(plan.buckets()[1].layout, rank);
    const RingTraffic step = StepTraffic(plan, rank);
    EXPECT_EQ(step.tx_bytes, first.tx_bytes + second.tx_bytes);
    EXPECT_EQ(step.rx_messages, first.rx_messages + second.rx_messages);
  }
}

TEST(RingScheduleTest, ABroadcastPassesEveryRankOnce) {
  const Plan plan = TwoBuckets(3);
  const int64_t bytes = plan.total_bytes();
  EXPECT_EQ(BroadcastTraffic(plan, 0).tx_bytes, bytes);
  EXPECT_EQ(BroadcastTraffic(plan, 0).rx_bytes, 0);
  EXPECT_EQ(BroadcastTraffic(plan, 1).tx_bytes, bytes);
  EXPECT_EQ(BroadcastTraffic(plan, 1).rx_bytes, bytes);
  EXPECT_EQ(BroadcastTraffic(plan, 2).tx_bytes, 0);
  EXPECT_EQ(BroadcastTraffic(plan, 2).rx_bytes, bytes);
  EXPECT_EQ(BroadcastTraffic(TwoBuckets(1), 0), RingTraffic());
}

}  // namespace
}  // namespace gradsync
