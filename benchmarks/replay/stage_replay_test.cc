// A slice's replay on a clock of its own, whose meetings take as long as the test says.
#include "benchmarks/replay/stage_replay.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ops/zeros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

class HandClock : public ReplayClock {
 public:
  double Now() override { return now_; }
  void SleepUntil(double us) override { now_ = std::max(now_, us); }
  void Pass(double us) { now_ += us; }

 private:
  double now_ = 1000;
};

// The first of two slices.
class TimedSlices : public SliceLink {
 public:
  TimedSlices(HandClock* clock, double meeting_us) : clock_(*clock), meeting_us_(meeting_us) {}

  int slice() const override { return 0; }
  int slices() const override { return 2; }
  absl::Status Connect(const std::string&, Deadline) override { return absl::OkStatus(); }
  absl::StatusOr<at::Tensor> Sum(const at::Tensor& own, Deadline) override {
    Meet("sum", own);
    return own;
  }
  absl::StatusOr<at::Tensor> SumPart(const at::Tensor& own, Deadline) override {
    Meet("part", own);
    return own[0];
  }
  absl::StatusOr<std::vector<at::Tensor>> Gather(const at::Tensor& own, Deadline) override {
    Meet("gather", own);
    return std::vector<at::Tensor>{own, own};
  }
  absl::Status Finish(Deadline) override { return absl::OkStatus(); }
  int64_t bytes_sent() const override { return 0; }
  int64_t bytes_received() const override { return 0; }

  // "sum of 8", and when.
  std::vector<std::pair<std::string, double>> meetings;

 private:
  void Meet(const std::string& call, const at::Tensor& own) {
    std::string sizes;
    for (int64_t size : own.sizes()) sizes += " " + std::to_string(size);
    meetings.emplace_back(call + sizes, clock_.Now());
    clock_.Pass(meeting_us_);
  }

  HandClock& clock_;
  const double meeting_us_;
};

// A pass of 100 us forward and 200 backward, with meetings after 40 and 100, and after 0 and 150,
// and buckets that are ready after 50, 150 and 200.
ReplayedStage Slice(SliceLink* slices) {
  ReplayedStage slice;
  RecordedPass& pass = slice.recorded.each;
  pass.forward_us = 100;
  pass.backward_us = 200;
  pass.forward_meetings = {{40, {SliceCall::kGather, 4, 0}}, {100, {SliceCall::kSum, 8, 0}}};
  pass.backward_meetings = {{0, {SliceCall::kSum, 8, 0}}, {150, {SliceCall::kSumPart, 8, 0}}};
  slice.recorded.last = pass;
  slice.recorded.bucket_ready_us = {50, 150, 200};
  slice.slices = slices;
  return slice;
}

TEST(StageReplayTest, ASliceComputesNothingWhileItMeetsOthers) {
  HandClock clock;
  TimedSlices slices(&clock, 10);
  StageReplay replay(Slice(&slices), &clock);
  std::vector<double> launched;
  ReplayedParts parts;
  const auto launch = [&](int) { launched.push_back(clock.Now() - 1000); };
  ASSERT_TRUE(replay.Run(1, /*factor=*/1, launch, &parts).ok());
  EXPECT_THAT(slices.meetings, ElementsAre(Pair("gather 4", 1040), Pair("sum 8", 1110),
                                           Pair("sum 8", 1120), Pair("part 2 4", 1280)));
  // The second bucket is complete when the last meeting begins, and does not wait for it.
  EXPECT_THAT(launched, ElementsAre(180, 280, 340));
  EXPECT_EQ(clock.Now(), 1340);
  EXPECT_EQ(parts.waited, 40);
  EXPECT_EQ(parts.forward, 100);
  EXPECT_EQ(parts.backward, 200);
}

TEST(StageReplayTest, ASlowerSliceComputesLongerAndMeetsNoLonger) {
  HandClock clock;
  TimedSlices slices(&clock, 10);
  ReplayedStage slice = Slice(&slices);
  slice.micro_batches = 2;
  StageReplay replay(slice, &clock);
  int launched = 0;
  ReplayedParts parts;
  ASSERT_TRUE(replay
                  .Run(
                      1, /*factor=*/3, [&](int) { ++launched; }, &parts)
                  .ok());
  EXPECT_EQ(clock.Now(), 1000 + 2 * (3 * 300 + 40));
  EXPECT_EQ(launched, 3);  // with the last micro-batch only
}

}  // namespace
}  // namespace gradsync
