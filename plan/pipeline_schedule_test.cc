#include "plan/pipeline_schedule.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

constexpr PipelineSchedule kNaive = PipelineSchedule::kNaive;
constexpr PipelineSchedule kGpipe = PipelineSchedule::kGpipe;
constexpr PipelineSchedule k1f1b = PipelineSchedule::kOneForwardOneBackward;

// "F0 F1 B0 B1".
std::string Table(PipelineSchedule schedule, int stages, int stage, int64_t micro_batches) {
  std::string text;
  for (const StageAction& action : ActionsOf(schedule, stages, stage, micro_batches)) {
    absl::StrAppend(&text, text.empty() ? "" : " ",
                    action.kind == StageAction::kForward ? "F" : "B", action.micro_batch);
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

// How long a step takes when forward takes 1, backward 2, a transfer `c`: each action begins when
// its stage is free and its message has come. -1: some stage waits for ever.
int64_t TimeOf(PipelineSchedule schedule, int stages, int64_t m, int64_t c) {
  constexpr int64_t kNever = -1;
  std::vector<std::vector<StageAction>> left(stages);
  std::vector<std::vector<int64_t>> forward(stages, std::vector<int64_t>(m, kNever));
  std::vector<std::vector<int64_t>> backward = forward;
  std::vector<int64_t> free(stages, 0);
  std::vector<size_t> next(stages, 0);
  for (int s = 0; s < stages; ++s) left[s] = ActionsOf(schedule, stages, s, m);
  for (bool moved = true; moved;) {
    moved = false;
    for (int s = 0; s < stages; ++s) {
      while (next[s] < left[s].size()) {
        const auto [kind, i] = left[s][next[s]];
        const bool is_forward = kind == StageAction::kForward;
        int64_t there = 0;
        if (is_forward && s > 0) there = forward[s - 1][i];
        if (!is_forward) there = s + 1 < stages ? backward[s + 1][i] : forward[s][i] - c;
        if (there == kNever) break;
        const bool sent = is_forward ? s > 0 : true;
        free[s] = std::max(free[s], there + (sent ? c : 0)) + (is_forward ? 1 : 2);
        (is_forward ? forward : backward)[s][i] = free[s];
        ++next[s];
        moved = true;
      }
    }
  }
  for (int s = 0; s < stages; ++s) {
    if (next[s] < left[s].size()) return kNever;
  }
  return *std::max_element(free.begin(), free.end());
}

TEST(ScheduleTest, EveryScheduleIsInOrderAndEndsForAnyNumbers) {
  for (PipelineSchedule schedule : {kNaive, kGpipe, k1f1b}) {
    for (int stages = 1; stages <= 6; ++stages) {
      for (int64_t m = 1; m <= 17; ++m) {
        for (int stage = 0; stage < stages; ++stage) {
          const auto actions = ActionsOf(schedule, stages, stage, m);
          EXPECT_TRUE(CheckActions(actions, m).ok()) << CheckActions(actions, m);
          int64_t held = 0, most = 0;
          for (const StageAction& action : actions) {
            held += action.kind == StageAction::kForward ? 1 : -1;
            most = std::max(most, held);
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

TEST(ScheduleTest, TheValidatorNamesWhatIsOutOfPlace) {
  constexpr auto F = StageAction::kForward, B = StageAction::kBackward;
  EXPECT_TRUE(CheckActions({{F, 0}, {F, 1}, {B, 0}, {B, 1}}, 2).ok());
  EXPECT_TRUE(CheckActions({}, 0).ok());
  const auto message = [](const std::vector<StageAction>& actions) {
    return std::string(CheckActions(actions, 2).message());
  };
  EXPECT_THAT(message({{B, 0}}), HasSubstr("action 0: expected backward of micro-batch 0 after"));
  EXPECT_THAT(message({{F, 1}}), HasSubstr("action 0: expected forward of micro-batch 0"));
  EXPECT_THAT(message({{F, 0}, {F, 1}, {B, 1}}), HasSubstr("action 2: expected backward of"));
  EXPECT_THAT(message({{F, 0}, {F, 1}, {F, 2}}), HasSubstr("action 2: expected forward of"));
  EXPECT_THAT(message({{F, 0}, {B, 0}}), HasSubstr("backward of 2 micro-batches, found 1"));
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
