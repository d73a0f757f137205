#include "core/plan/pipeline_schedule.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

constexpr PipelineSchedule kNaive = PipelineSchedule::kNaive;
constexpr PipelineSchedule kGpipe = PipelineSchedule::kGpipe;
constexpr PipelineSchedule k1f1b = PipelineSchedule::kOneForwardOneBackward;

// "F0 F1 B0 B1": what a stage does that never waits for an input, and gets a gradient only when it can
// do nothing without.
std::string Table(PipelineSchedule schedule, int stages, int stage, int64_t micro_batches) {
  std::string text;
  StageOrder order(schedule, stages, stage, micro_batches);
  while (!order.done()) {
    absl::optional<StageAction> next = order.Next(true, /*gradient_here=*/stage + 1 == stages);
    if (!next.has_value()) next = order.Next(true, true);
    absl::StrAppend(&text, text.empty() ? "" : " ", next->kind == StageAction::kForward ? "F" : "B",
                    next->micro_batch);
    order.Did(next->kind);
  }
  return text;
}

TEST(ScheduleTest, NaiveTakesOneMicroBatchAfterTheOther) {
  for (int stage : {0, 1, 2}) EXPECT_EQ(Table(kNaive, 3, stage, 3), "F0 B0 F1 B1 F2 B2");
}

TEST(ScheduleTest, GpipeFillsAndDrains) {
  for (int stage : {0, 1, 2}) EXPECT_EQ(Table(kGpipe, 3, stage, 3), "F0 F1 F2 B0 B1 B2");
}

TEST(ScheduleTest, OneForwardOneBackwardHasFewerInFlightTheLaterTheStage) {
  EXPECT_EQ(Table(k1f1b, 3, 0, 9), "F0 F1 F2 F3 F4 F5 F6 B0 F7 B1 F8 B2 B3 B4 B5 B6 B7 B8");
  EXPECT_EQ(Table(k1f1b, 3, 1, 7), "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 B4 B5 B6");
  EXPECT_EQ(Table(k1f1b, 3, 2, 7), "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6");
}

TEST(ScheduleTest, FewerMicroBatchesThanStagesAreAllInFlight) {
  for (int stage : {0, 1, 2}) EXPECT_EQ(Table(k1f1b, 4, stage, 2), "F0 F1 B0 B1");
  EXPECT_EQ(Table(k1f1b, 4, 3, 2), "F0 B0 F1 B1");
  for (PipelineSchedule schedule : {kNaive, kGpipe, k1f1b}) {
    for (int stage : {0, 1, 2, 3}) EXPECT_EQ(Table(schedule, 4, stage, 1), "F0 B0");
  }
}

// How long a step takes when forward takes 1, backward 2, a transfer `c`, on links that nobody
// shares: each action begins when its stage is free and its message has come. -1: some stage waits
// for ever.
int64_t TimeOf(PipelineSchedule schedule, int stages, int64_t m, int64_t c) {
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  const std::vector<int64_t> never(m, kNever);
  std::vector<std::vector<int64_t>> input(stages, never), gradient(stages, never);  // since when
  input[0].assign(m, 0);
  std::vector<int64_t> free(stages, 0);
  std::vector<StageOrder> orders;
  for (int s = 0; s < stages; ++s) orders.emplace_back(schedule, stages, s, m);
  const auto here = [](const std::vector<int64_t>& since, int64_t i, int64_t now) {
    return i < static_cast<int64_t>(since.size()) && since[i] <= now;
  };
  for (int64_t now = 0; now <= (m + stages) * (stages + 1) * (c + 3); ++now) {
    for (int s = 0; s < stages; ++s) {
      StageOrder& order = orders[s];
      if (order.done() || free[s] > now) continue;
      const absl::optional<StageAction> next =
          order.Next(here(input[s], order.forward().micro_batch, now),
                     here(gradient[s], order.backward().micro_batch, now));
      if (!next.has_value()) continue;
      const bool forward = next->kind == StageAction::kForward;
      const int64_t i = next->micro_batch;
      free[s] = now + (forward ? 1 : 2);
      order.Did(next->kind);
      if (forward && s + 1 == stages) gradient[s][i] = free[s];
      if (forward && s + 1 < stages) input[s + 1][i] = free[s] + c;
      if (!forward && s > 0) gradient[s - 1][i] = free[s] + c;
    }
  }
  for (const StageOrder& order : orders) {
    if (!order.done()) return -1;
  }
  return *std::max_element(free.begin(), free.end());
}

TEST(ScheduleTest, EveryScheduleIsInOrderAndEndsForAnyNumbers) {
  for (PipelineSchedule schedule : {kNaive, kGpipe, k1f1b}) {
    for (int stages = 1; stages <= 6; ++stages) {
      for (int64_t m = 1; m <= 17; ++m) {
        for (int stage = 0; stage < stages; ++stage) {
          int64_t held = 0, most = 0;
          StageOrder order(schedule, stages, stage, m);
          while (!order.done()) {
            ASSERT_TRUE(order.may_forward() || order.may_backward());
            // Inputs come long before gradients.
            const StageAction next = order.may_forward() ? order.forward() : order.backward();
            held += next.kind == StageAction::kForward ? 1 : -1;
            most = std::max(most, held);
            order.Did(next.kind);
          }
          EXPECT_EQ(most, InFlight(schedule, stages, stage, m));
        }
        EXPECT_GT(TimeOf(schedule, stages, m, 1), 0) << stages << " stages, m = " << m;
      }
    }
  }
}

TEST(ScheduleTest, TheBubbleIsThatOfTheory) {
  for (int stages : {2, 4}) {
    for (int64_t m : {1, 2, 4, 8, 32}) {
      // Equal stages and free transfers: (m + p - 1)(f + b).
      EXPECT_EQ(TimeOf(kGpipe, stages, m, 0), 3 * (m + stages - 1));
      EXPECT_EQ(TimeOf(k1f1b, stages, m, 0), 3 * (m + stages - 1));
      EXPECT_EQ(TimeOf(kNaive, stages, m, 0), 3 * m * stages);
    }
  }
}

TEST(ScheduleTest, OnSlowLinksOneForwardOneBackwardIsNoSlowerThanGpipe) {
  for (int stages : {2, 3, 4}) {
    for (int64_t m : {1, 2, 3, 8, 32}) {
      for (int64_t c : {0, 1}) {
        EXPECT_LE(TimeOf(k1f1b, stages, m, c), TimeOf(kGpipe, stages, m, c))
            << stages << " stages, m = " << m << ", transfer " << c;
      }
    }
  }
}

// Whichever has come; of both the gradient.
TEST(ScheduleTest, InTurnsAStageTakesWhatHasCome) {
  StageOrder order(k1f1b, 3, 1, 9);
  EXPECT_FALSE(order.Next(false, true).has_value());
  for (int i = 0; i < 2; ++i) order.Did(StageAction::kForward);
  EXPECT_FALSE(order.Next(false, false).has_value());
  EXPECT_EQ(order.Next(true, false), order.forward());
  EXPECT_EQ(order.Next(false, true), order.backward());
  EXPECT_EQ(order.Next(true, true), order.backward());
  for (int i = 0; i < 2; ++i) order.Did(StageAction::kForward);
  EXPECT_FALSE(order.Next(true, false).has_value());  // four are in flight
  order.Did(StageAction::kBackward);
  EXPECT_EQ(order.Next(true, false), (StageAction{StageAction::kForward, 4}));
}

TEST(ScheduleTest, NamesAreReadBack) {
  for (PipelineSchedule schedule : {kNaive, kGpipe, k1f1b}) {
    EXPECT_EQ(ParsePipelineSchedule(PipelineScheduleName(schedule)).value(), schedule);
  }
  EXPECT_THAT(std::string(ParsePipelineSchedule("1F1B").status().message()),
              HasSubstr("--pipeline_schedule: expected naive, gpipe or 1f1b, found \"1F1B\""));
}

}  // namespace
}  // namespace gradsync
