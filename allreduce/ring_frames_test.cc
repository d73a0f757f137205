#include "allreduce/ring_frames.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using proto::FrameHeader;

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
