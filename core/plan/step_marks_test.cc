#include "core/plan/step_marks.h"

#include <string>
#include <vector>

#include "core/plan/gather_order.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::ElementsAre;

// One tensor in each of `buckets`.
Plan PlanOf(int buckets, BucketSlots slots) {
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  std::vector<TensorSpec> tensors;
  std::vector<std::vector<int>> lists;
  for (int b = 0; b < buckets; ++b) {
    tensors.push_back({std::string(1, static_cast<char>('a' + b)), {5}, {1}, 0});
    lists.push_back({b});
  }
  return *Plan::FromBuckets(tensors, lists, optimizer, 1, 0)->WithSlots(slots);
}

// "turn 1 at 3".
std::vector<std::string> Words(const Plan& plan, const ComputedStep& step) {
  std::vector<std::string> words;
  for (const StepMark& mark : MarksOfStep(plan, step)) {
    const char* const kinds[] = {"turn ", "room ", "launch "};
    words.push_back(kinds[static_cast<int>(mark.kind)] + std::to_string(mark.number) + " at " +
                    std::to_string(static_cast<int>(mark.at)));
  }
  return words;
}

TEST(StepMarksTest, WithoutSlotsBucketsAreLaunchedWhenTheyAreComplete) {
  ComputedStep step;
  step.bucket_ready = {4, 6};
  step.bucket_begin = {3, 5};
  step.units = {{1}, {0}};
  step.turn_begin = {0, 1, 2, 4};
  EXPECT_THAT(Words(PlanOf(2, {}), step), ElementsAre("launch 0 at 4", "launch 1 at 6"));
}

TEST(StepMarksTest, ABucketThatTakesTurnsNeedsRoomForItsFirstGradient) {
  BucketSlots slots;
  slots.gradients = 2;
  ComputedStep step;
  step.bucket_ready = {4, 6, 8, 8};
  const Plan plan = PlanOf(4, slots);
  EXPECT_THAT(Words(plan, step), ElementsAre("launch 0 at 4", "launch 1 at 6", "room 2 at 8",
                                             "launch 2 at 8", "room 3 at 8", "launch 3 at 8"));
  step.bucket_begin = {3, 5, 6, 8};
  EXPECT_THAT(Words(plan, step), ElementsAre("launch 0 at 4", "launch 1 at 6", "room 2 at 6",
                                             "launch 2 at 8", "room 3 at 8", "launch 3 at 8"));
}

TEST(StepMarksTest, GradientsComeAfterTheirUnitsTurnAndLeaveBeforeTheNext) {
  BucketSlots slots;
  slots.parameters = 2;
  ComputedStep step;
  // Bucket 0 is of the last unit, bucket 1 of two units.
  step.units = {{1}, {1}, {0}};
  step.bucket_ready = {4, 8};
  step.turn_begin = {0, 1, 2, 3, 4, 6};
  const Plan plan = PlanOf(2, slots);
  ASSERT_EQ(TurnsOfStep(3).size(), 6u);
  EXPECT_THAT(Words(plan, step),
              ElementsAre("turn 0 at 0", "turn 1 at 1", "turn 2 at 2", "turn 3 at 3",
                          "launch 0 at 4", "turn 4 at 4", "turn 5 at 6", "launch 1 at 8"));
  // Computed in no time.
  step.bucket_ready = {0, 0};
  step.turn_begin = {0, 0, 0, 0, 0, 0};
  EXPECT_THAT(Words(plan, step),
              ElementsAre("turn 0 at 0", "turn 1 at 0", "turn 2 at 0", "turn 3 at 0",
                          "launch 0 at 0", "turn 4 at 0", "turn 5 at 0", "launch 1 at 0"));
}

}  // namespace
}  // namespace gradsync
