#include "allreduce/ring_tokens.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "allreduce/ring_frames.h"
#include "core/plan/ring_schedule.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using proto::FrameHeader;

// One bucket of six stripes of three chunks, and a second of one stripe.
class RingTokensTest : public testing::Test {
 protected:
  static Plan MakePlan() {
    const std::vector<TensorSpec> tensors = {{"a", {16 * 18}, {1}, 0}, {"b", {48}, {1}, 0}};
    OptimizerSpec optimizer;
    optimizer.groups.resize(1);
    return *Plan::FromBuckets(tensors, {{0}, {1}}, optimizer, 3, 64);
  }

  static StepOptions Step(int64_t number, double lr = 0.1) {
    StepOptions step;
    step.step = number;
    step.lr = lr;
    return step;
  }

  // A frame as rank 1 receives it.
  FrameHeader Reduce(int bucket, int slot, const StepOptions& step) {
    return RingHeader(FrameHeader::REDUCE, step, {bucket, slot}, ReduceHop(slot % 3, 1, 3));
  }
  FrameHeader Gather(int bucket, int slot, const StepOptions& step) {
    return RingHeader(FrameHeader::GATHER, step, {bucket, slot}, GatherHop(slot % 3, 1, 3));
  }

  absl::Status LaunchFirst(int64_t step) { return tokens_.Launch(Step(step), 0).status(); }

  static void ExpectError(const absl::Status& status, absl::StatusCode code,
                          const std::string& what) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), what)) << status;
  }

  static constexpr int kWindow = 2;
  const Plan plan_ = MakePlan();
  RingTokens tokens_{plan_, 1, kWindow, /*gather_overwrites_sum=*/true};
  Payload payload_;
};

TEST_F(RingTokensTest, InitiatesOwnChunksInOrderUpToTheWindow) {
  ASSERT_EQ(LaunchFirst(1), absl::OkStatus());
  // Rank 1 initiates chunk 0 of each stripe.
  EXPECT_EQ(tokens_.NextOwn(), (ChunkId{0, 0}));
  EXPECT_EQ(tokens_.NextOwn(), (ChunkId{0, 3}));
  EXPECT_EQ(tokens_.NextOwn(), absl::nullopt);
  EXPECT_TRUE(*tokens_.OnGather(Gather(0, 3, Step(1)), &payload_));
  EXPECT_EQ(tokens_.NextOwn(), (ChunkId{0, 6}));
  EXPECT_EQ(tokens_.NextOwn(), absl::nullopt);
  ASSERT_EQ(tokens_.OnCredit(RingHeader(FrameHeader::CREDIT, Step(1), {0, 0}, 1)),
            absl::OkStatus());
  EXPECT_EQ(tokens_.NextOwn(), (ChunkId{0, 9}));
}

TEST_F(RingTokensTest, OthersTokensDoNotCountInTheWindow) {
  ASSERT_EQ(LaunchFirst(1), absl::OkStatus());
  for (int slot : {1, 2, 4, 5}) EXPECT_TRUE(*tokens_.OnReduce(Reduce(0, slot, Step(1)), &payload_));
  EXPECT_TRUE(tokens_.NextOwn().has_value());
  EXPECT_TRUE(tokens_.NextOwn().has_value());
}

TEST_F(RingTokensTest, HoldsFramesThatComeBeforeTheLaunchAndGivesThemBackWithIt) {
  payload_.owner = std::make_shared<int>(7);
  EXPECT_FALSE(*tokens_.OnReduce(Reduce(0, 4, Step(1)), &payload_));
  EXPECT_EQ(payload_.owner, nullptr);
  EXPECT_FALSE(tokens_.TakeDue(0).has_value());
  ASSERT_EQ(LaunchFirst(1), absl::OkStatus());
  const absl::optional<WaitingFrame> held = tokens_.TakeDue(0);
  ASSERT_TRUE(held.has_value());
  EXPECT_EQ(held->header.slot(), 4u);
  EXPECT_NE(held->payload.owner, nullptr);
  EXPECT_FALSE(tokens_.TakeDue(0).has_value());
  ExpectError(tokens_.OnReduce(Reduce(0, 4, Step(1)), &payload_).status(),
              absl::StatusCode::kInvalidArgument, "twice");
}

TEST_F(RingTokensTest, HoldsNoMoreThanTheOthersWindowsAllow) {
  for (int slot : {1, 2, 4, 5})
    ASSERT_FALSE(*tokens_.OnReduce(Reduce(0, slot, Step(1)), &payload_));
  ExpectError(tokens_.OnReduce(Reduce(0, 7, Step(1)), &payload_).status(),
              absl::StatusCode::kInvalidArgument, "at most 4 frames ahead");
  ASSERT_EQ(LaunchFirst(1), absl::OkStatus());
  EXPECT_FALSE(*tokens_.OnReduce(Reduce(1, 1, Step(1)), &payload_));
}

TEST_F(RingTokensTest, RefusesWhatItHeldWithOtherOptions) {
  ASSERT_FALSE(*tokens_.OnReduce(Reduce(0, 4, Step(1, 0.2)), &payload_));
  ExpectError(LaunchFirst(1), absl::StatusCode::kFailedPrecondition, "lr 0.2");
}

TEST_F(RingTokensTest, RefusesFramesThatCannotComeNow) {
  const absl::StatusCode invalid = absl::StatusCode::kInvalidArgument;
  ExpectError(tokens_.OnGather(Gather(0, 2, Step(1)), &payload_).status(), invalid,
              "no exchange of this bucket");
  ExpectError(tokens_.OnCredit(RingHeader(FrameHeader::CREDIT, Step(1), {0, 0}, 1)), invalid,
              "no exchange");
  ASSERT_EQ(LaunchFirst(2), absl::OkStatus());
  ExpectError(tokens_.OnReduce(Reduce(0, 4, Step(1)), &payload_).status(),
              absl::StatusCode::kFailedPrecondition, "step 1");
  ExpectError(tokens_.OnReduce(Reduce(0, 4, Step(2, 0.3)), &payload_).status(),
              absl::StatusCode::kFailedPrecondition, "lr 0.3");
  ExpectError(tokens_.OnGather(Gather(0, 2, Step(2)), &payload_).status(), invalid,
              "before this rank's gradient");
  ExpectError(tokens_.OnCredit(RingHeader(FrameHeader::CREDIT, Step(2), {0, 0}, 1)), invalid,
              "not under way");
  ASSERT_TRUE(*tokens_.OnReduce(Reduce(0, 2, Step(2)), &payload_));
  ASSERT_TRUE(*tokens_.OnGather(Gather(0, 2, Step(2)), &payload_));
  ExpectError(tokens_.OnGather(Gather(0, 2, Step(2)), &payload_).status(), invalid, "twice");
  ExpectError(LaunchFirst(3), absl::StatusCode::kFailedPrecondition, "is not complete");
}

TEST_F(RingTokensTest, AGatherWaitsUntilTheSumIsReleased) {
  ASSERT_EQ(LaunchFirst(1), absl::OkStatus());
  ASSERT_TRUE(*tokens_.OnReduce(Reduce(0, 2, Step(1)), &payload_));
  tokens_.LendSum({0, 2});
  EXPECT_FALSE(*tokens_.OnGather(Gather(0, 2, Step(1)), &payload_));
  EXPECT_TRUE(tokens_.ReturnSum({0, 2}));
  EXPECT_TRUE(tokens_.TakeGather({0, 2}).has_value());
  EXPECT_FALSE(tokens_.TakeGather({0, 2}).has_value());
}

TEST_F(RingTokensTest, ResolvesWhenAllIsFinalAndNothingIsLent) {
  ASSERT_EQ(tokens_.Launch(Step(1), 1).status(), absl::OkStatus());
  tokens_.MarkFinal({1, 0});
  tokens_.MarkFinal({1, 1});
  tokens_.LendFinal({1, 1});
  EXPECT_FALSE(tokens_.TakeResolved(1).has_value());
  tokens_.MarkFinal({1, 2});
  EXPECT_FALSE(tokens_.TakeResolved(1).has_value());
  tokens_.ReturnFinal({1, 1});
  EXPECT_TRUE(tokens_.TakeResolved(1).has_value());
  EXPECT_FALSE(tokens_.TakeResolved(1).has_value());
}

TEST_F(RingTokensTest, FailingGivesBackEverythingAndForgetsLoans) {
  ASSERT_EQ(LaunchFirst(1), absl::OkStatus());
  ASSERT_TRUE(tokens_.NextOwn().has_value());
  tokens_.LendSum({0, 0});
  ASSERT_FALSE(*tokens_.OnReduce(Reduce(1, 1, Step(1)), &payload_));
  const RingTokens::Remains remains = tokens_.FailAll();
  EXPECT_EQ(remains.promises.size(), 1u);
  EXPECT_EQ(remains.frames.size(), 1u);
  EXPECT_FALSE(tokens_.ReturnSum({0, 0}));
  EXPECT_FALSE(tokens_.NextOwn().has_value());
  EXPECT_FALSE(tokens_.TakeResolved(0).has_value());
}

}  // namespace
}  // namespace gradsync
