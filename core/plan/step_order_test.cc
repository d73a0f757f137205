#include "core/plan/step_order.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Six tensors in four buckets.
Plan FourBuckets() {
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  std::vector<TensorSpec> tensors;
  for (const char* name : {"a", "b", "c", "d", "e", "f"}) tensors.push_back({name, {5}, {1}, 0});
  return *Plan::FromBuckets(tensors, {{5, 4}, {3}, {2, 1}, {0}}, optimizer, 1, 0);
}

TEST(GatherOrderTest, UnitsHaveBucketsAndNeighboursNeverShareASlot) {
  const auto units = UnitBuckets(FourBuckets(), {{"a", "b"}, {"c"}, {}, {"d", "e"}, {"f"}});
  ASSERT_TRUE(units.ok()) << units.status();
  EXPECT_THAT(*units, ElementsAre(ElementsAre(2, 3), ElementsAre(2), IsEmpty(), ElementsAre(0, 1),
                                  ElementsAre(0)));
  // {2} and {0, 1} follow one another, parted by a unit without parameters.
  EXPECT_EQ(ParameterSlotsFor(*units), 3);
  EXPECT_EQ(ParameterSlotsFor({{0, 3}}), 4);
  EXPECT_EQ(ParameterSlotsFor({{}, {}}), 1);
}

TEST(GatherOrderTest, EveryParameterIsInOneUnit) {
  EXPECT_THAT(UnitBuckets(FourBuckets(), {{"a", "b", "c", "d", "e"}}).status().message(),
              HasSubstr("found f in none"));
  EXPECT_THAT(
      UnitBuckets(FourBuckets(), {{"a", "b", "c"}, {"d", "e", "f", "a"}}).status().message(),
      HasSubstr("found a, which is in two"));
}

TEST(GatherOrderTest, AStepGoesForwardAndBackAndTheLastUnitsBucketsComeOnce) {
  const std::vector<std::vector<int>> units = {{2, 3}, {2}, {}, {1}, {0}};
  BucketSlots slots;
  slots.parameters = ParameterSlotsFor(units);
  const Plan plan = *FourBuckets().WithSlots(slots);
  EXPECT_EQ(slots.parameters, 2);
  // 0 and 1 take the memory of 2 and 3, so backward has to have those again.
  EXPECT_THAT(GathersOfStep(plan, units), ElementsAre(2, 3, 1, 0, 2, 3));
  slots.parameters = 4;
  EXPECT_THAT(GathersOfStep(*plan.WithSlots(slots), units), ElementsAre(2, 3, 1, 0));
}

TEST(GatherOrderTest, WhatIsForgottenOrHasLostItsMemoryIsGatheredAgain) {
  const std::vector<std::vector<int>> units = {{0}, {1}, {2}};
  GatherOrder order(3, 2);
  EXPECT_THAT(order.Take(units, ForwardTurn(0, 3)), ElementsAre(0, 1));
  EXPECT_THAT(order.Take(units, ForwardTurn(1, 3)), ElementsAre(2));
  EXPECT_THAT(order.Take(units, ForwardTurn(2, 3)), IsEmpty());
  EXPECT_THAT(order.Take(units, BackwardTurn(2)), IsEmpty());
  order.Forget(2);
  EXPECT_THAT(order.Take(units, BackwardTurn(1)), ElementsAre(0));
  EXPECT_THAT(order.Take(units, BackwardTurn(0)), IsEmpty());
  EXPECT_TRUE(order.TakeBucket(2));
  EXPECT_FALSE(order.TakeBucket(2));
}

TEST(GatherOrderTest, TurnsNameTheUnitThatComesNext) {
  std::vector<std::string> turns;
  for (UnitTurn turn : TurnsOfStep(2)) {
    turns.push_back(std::to_string(turn.unit) + " then " + std::to_string(turn.next));
  }
  EXPECT_THAT(turns, ElementsAre("0 then 1", "1 then -1", "1 then 0", "0 then -1"));
  EXPECT_THAT(TurnsOfStep(0), IsEmpty());
}

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
