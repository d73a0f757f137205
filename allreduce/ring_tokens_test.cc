#include "allreduce/ring_tokens.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
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

// Two buckets of 20 elements, padded to 32, among 3 ranks: chunks 0 and 1 have 64 bytes, chunk 2 is
// empty.
Plan SmallPlan() {
  const std::vector<TensorSpec> tensors = {{"a", {20}, {1}, 0}, {"b", {20}, {1}, 0}};
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  return *Plan::FromBuckets(tensors, {{0}, {1}}, optimizer, 3, 64);
}

StepOptions Step(int64_t number) {
  StepOptions step;
  step.step = number;
  step.lr = 0.1;
  return step;
}

void ExpectRefused(int rank, const FrameHeader& header, size_t bytes, const std::string& why) {
  const absl::Status status = CheckRingFrame(SmallPlan(), rank, header, bytes);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << header.ShortDebugString();
  EXPECT_TRUE(absl::StrContains(status.message(), why))
      << status << ", expected to hear of: " << why;
}

TEST(RingFramesTest, TheBucketOfTwentyIsPaddedToThirtyTwo) {
  // The sizes that the other tests name: two chunks of 16, for padding is exchanged as well, and an
  // empty one.
  const Plan plan = SmallPlan();
  const StripeLayout& layout = plan.buckets()[0].layout;
  EXPECT_EQ(layout.numel(), 32);
  EXPECT_EQ(layout.range(1).size(), 16);
  EXPECT_TRUE(layout.range(2).empty());
}

TEST(RingFramesTest, FramesAtTheirHopAreAccepted) {
  const Plan plan = SmallPlan();
  EXPECT_EQ(CheckRingFrame(plan, 2, RingHeader(FrameHeader::REDUCE, Step(1), {0, 0}, 1), 64),
            absl::OkStatus());
  EXPECT_EQ(CheckRingFrame(plan, 0, RingHeader(FrameHeader::REDUCE, Step(1), {1, 0}, 2), 64),
            absl::OkStatus());
  EXPECT_EQ(CheckRingFrame(plan, 1, RingHeader(FrameHeader::GATHER, Step(1), {0, 0}, 1), 64),
            absl::OkStatus());
  EXPECT_EQ(CheckRingFrame(plan, 1, RingHeader(FrameHeader::CREDIT, Step(1), {0, 0}, 1), 0),
            absl::OkStatus());
  EXPECT_EQ(
      CheckRingFrame(plan, 1, RingHeader(FrameHeader::PARAMETERS, StepOptions(), {0, 1}, 1), 64),
      absl::OkStatus());
  EXPECT_EQ(CheckRingFrame(plan, 1, RingHeader(FrameHeader::SQUARES, Step(1), {0, 0}, 1), 16),
            absl::OkStatus());
}

TEST(RingFramesTest, OtherKindsAreRefused) {
  for (FrameHeader::Kind kind : {FrameHeader::KIND_UNSPECIFIED, FrameHeader::HELLO,
                                 FrameHeader::PUSH, FrameHeader::PULL, FrameHeader::STATE_END}) {
    ExpectRefused(2, RingHeader(kind, Step(1), {0, 0}, 1), 64, "not a frame of the ring");
  }
}

TEST(RingFramesTest, ChunksThatThePlanDoesNotHaveAreRefused) {
  ExpectRefused(2, RingHeader(FrameHeader::REDUCE, Step(1), {2, 0}, 1), 64,
                "expected a bucket below 2");
  ExpectRefused(2, RingHeader(FrameHeader::REDUCE, Step(1), {0, 3}, 1), 64,
                "expected a slot below 3");
  ExpectRefused(2, RingHeader(FrameHeader::REDUCE, Step(1), {-1, -1}, 1), 64,
                "expected a bucket below 2");
  ExpectRefused(1, RingHeader(FrameHeader::REDUCE, Step(1), {0, 2}, 2), 0, "is empty");
}

TEST(RingFramesTest, WrongHopsStepsAndSizesAreRefused) {
  ExpectRefused(2, RingHeader(FrameHeader::REDUCE, Step(1), {0, 0}, 2), 64,
                "expected hop 1, found 2");
  ExpectRefused(1, RingHeader(FrameHeader::REDUCE, Step(1), {0, 0}, 0), 64,
                "this rank receives none");
  ExpectRefused(0, RingHeader(FrameHeader::GATHER, Step(1), {0, 0}, 0), 64,
                "this rank receives none");
  ExpectRefused(2, RingHeader(FrameHeader::GATHER, Step(1), {0, 0}, -1), 64, "expected hop 2");
  ExpectRefused(2, RingHeader(FrameHeader::REDUCE, StepOptions(), {0, 0}, 1), 64,
                "a step of at least 1");
  ExpectRefused(2, RingHeader(FrameHeader::REDUCE, Step(-5), {0, 0}, 1), 64,
                "a step of at least 1");
  ExpectRefused(2, RingHeader(FrameHeader::REDUCE, Step(1), {0, 0}, 1), 60,
                "expected bytes of payload 64, found 60");
  ExpectRefused(2, RingHeader(FrameHeader::REDUCE, Step(1), {0, 0}, 1), 68,
                "expected bytes of payload 64, found 68");
}

TEST(RingFramesTest, NoticesNumbersAndParametersAreCheckedToo) {
  ExpectRefused(2, RingHeader(FrameHeader::CREDIT, Step(1), {0, 0}, 2), 0, "initiator");
  ExpectRefused(1, RingHeader(FrameHeader::CREDIT, Step(1), {0, 0}, 1), 4,
                "expected bytes of payload 0");
  ExpectRefused(0, RingHeader(FrameHeader::PARAMETERS, StepOptions(), {0, 0}, 0), 64, "hop");
  ExpectRefused(2, RingHeader(FrameHeader::PARAMETERS, StepOptions(), {0, 0}, 1), 64,
                "expected hop 2, found 1");
  ExpectRefused(1, RingHeader(FrameHeader::SQUARES, Step(1), {0, 7}, 1), 16, "a rank below 3");
  ExpectRefused(0, RingHeader(FrameHeader::SQUARES, Step(1), {0, 2}, 1), 0, "owned chunks");
  ExpectRefused(1, RingHeader(FrameHeader::SQUARES, Step(1), {0, 0}, 1), 8,
                "expected bytes of payload 16");
  ExpectRefused(0, RingHeader(FrameHeader::SQUARES, Step(1), {0, 0}, 0), 16,
                "this rank receives none");
}

TEST(RingFramesTest, AStepWithOtherOptionsIsAnother) {
  const FrameHeader header = RingHeader(FrameHeader::REDUCE, Step(3), {0, 0}, 1);
  EXPECT_TRUE(IsStep(header, Step(3)));
  EXPECT_FALSE(IsStep(header, Step(4)));
  StepOptions other = Step(3);
  other.max_norm = 1;
  EXPECT_FALSE(IsStep(header, other));
  other = Step(3);
  other.inverse_loss_scale = 0.5;
  EXPECT_FALSE(IsStep(header, other));
}

TEST(RingFramesTest, OwnersHaveTheirChunkOfEachStripe) {
  const Plan plan = SmallPlan();
  EXPECT_EQ(OwnedChunks(plan, 0), (std::vector<ChunkId>{{0, 0}, {1, 0}}));
  EXPECT_EQ(OwnedChunks(plan, 1), (std::vector<ChunkId>{{0, 1}, {1, 1}}));
  EXPECT_TRUE(OwnedChunks(plan, 2).empty());
}

}  // namespace
}  // namespace gradsync
