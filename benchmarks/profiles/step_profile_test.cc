#include "benchmarks/profiles/step_profile.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Three tensors of 1, 2 and 3 MiB, ready at 30, 60 and 90 us.
proto::StepProfile ThreeTensors() {
  proto::StepProfile profile;
  profile.set_model("three");
  profile.set_forward_us(20);
  profile.set_backward_us(80);
  for (int i = 1; i <= 3; ++i) {
    proto::ProfiledTensor* const tensor = profile.add_tensors();
    tensor->set_name(std::string(1, static_cast<char>('a' + i)));
    tensor->set_numel(i << 18);
    tensor->set_ready_us(30 * i);
  }
  return profile;
}

TEST(StepProfileTest, ABucketIsReadyWithItsLastTensor) {
  PlanOptions options;
  options.world_size = 2;
  options.first_bucket_bytes = 1 << 20;
  options.bucket_bytes = 5 << 20;
  const absl::StatusOr<Plan> plan = ProfilePlan(ThreeTensors(), options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->total_bytes(), 6 << 20);
  EXPECT_THAT(BucketReadyUs(ThreeTensors(), *plan), ElementsAre(30, 90));
}

TEST(StepProfileTest, TimesMustNotFallNorPassTheEndOfBackward) {
  EXPECT_TRUE(ValidateStepProfile(ThreeTensors()).ok());
  proto::StepProfile falls = ThreeTensors();
  falls.mutable_tensors(1)->set_ready_us(29);
  EXPECT_THAT(std::string(ValidateStepProfile(falls).message()),
              HasSubstr("c.ready_us: expected between the last tensor's 30 and the end of backward "
                        "100, found 29"));
  proto::StepProfile late = ThreeTensors();
  late.mutable_tensors(2)->set_ready_us(101);
  EXPECT_FALSE(ValidateStepProfile(late).ok());
  proto::StepProfile no_number = ThreeTensors();
  no_number.set_update_us(std::numeric_limits<double>::quiet_NaN());
  EXPECT_FALSE(ValidateStepProfile(no_number).ok());
}

// Two blocks: the first has d, which backward completes last, the second b and c.
proto::StepProfile TwoBlocks() {
  proto::StepProfile profile = ThreeTensors();
  for (const char* name : {"first", "second"}) {
    proto::ProfiledBlock& block = *profile.add_blocks();
    block.set_name(name);
    block.set_backward_us(20);
  }
  profile.mutable_blocks(0)->add_tensors("d");
  profile.mutable_blocks(1)->add_tensors("c");
  profile.mutable_blocks(1)->add_tensors("b");
  return profile;
}

TEST(StepProfileTest, InABlockGradientsFollowEachOtherAsInTheWholeBackward) {
  const proto::StepProfile profile = TwoBlocks();
  ASSERT_TRUE(ValidateStepProfile(profile).ok()) << ValidateStepProfile(profile);
  EXPECT_THAT(BlocksOfTensors(profile), ElementsAre(1, 1, 0));
  // b after 10 of the 40 that the whole backward takes for the second block, c at the end.
  EXPECT_THAT(ReadyInBlockUs(profile), ElementsAre(5, 20, 20));
}

TEST(StepProfileTest, WhatOwnersKeepGivesThePlanSlotsAndTheStepItsTurns) {
  proto::StepProfile profile = TwoBlocks();
  profile.mutable_blocks(0)->set_forward_us(30);
  profile.mutable_blocks(1)->set_forward_us(10);
  PlanOptions options;
  options.bucket_bytes = options.first_bucket_bytes = 64;
  const absl::StatusOr<Plan> plan = ProfilePlan(profile, options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  for (int zero = 0; zero <= 3; ++zero) {
    const absl::StatusOr<Plan> shared = WithZero(*plan, profile, zero);
    ASSERT_TRUE(shared.ok()) << shared.status();
    EXPECT_EQ(shared->slots().gradients, zero >= 2 ? 2 : 0);
    EXPECT_EQ(shared->slots().parameters > 0, zero == 3);
    const absl::StatusOr<ComputedStep> step = ComputedStepUs(profile, *shared);
    ASSERT_TRUE(step.ok()) << step.status();
    EXPECT_EQ(step->bucket_ready, BucketReadyUs(profile, *shared));
    EXPECT_THAT(step->bucket_begin, testing::SizeIs(plan->buckets().size()));
    EXPECT_EQ(step->units.size(), zero == 3 ? 2u : 0u);
    if (zero < 3) continue;
    // Three quarters of forward are the first block's; backward begins with the second one.
    const double forward = profile.forward_us();
    ASSERT_THAT(step->turn_begin, testing::SizeIs(4));
    EXPECT_DOUBLE_EQ(step->turn_begin[1], 0.75 * forward);
    EXPECT_EQ(step->turn_begin[2], forward);
    EXPECT_EQ(step->turn_begin[3], profile.tensors(1).ready_us());
  }
  EXPECT_THAT(std::string(WithZero(*plan, ThreeTensors(), 3).status().message()),
              HasSubstr("expected blocks"));
}

TEST(StepProfileTest, EachTensorBelongsToOneBlockOrThereAreNone) {
  proto::StepProfile twice = TwoBlocks();
  twice.mutable_blocks(0)->add_tensors("b");
  EXPECT_THAT(std::string(ValidateStepProfile(twice).message()), HasSubstr("each in one block"));
  proto::StepProfile never = TwoBlocks();
  never.mutable_blocks(0)->clear_tensors();
  EXPECT_THAT(std::string(ValidateStepProfile(never).message()), HasSubstr("found d in none"));
  proto::StepProfile stranger = TwoBlocks();
  stranger.mutable_blocks(0)->add_tensors("z");
  EXPECT_THAT(std::string(ValidateStepProfile(stranger).message()), HasSubstr("found z"));
  proto::StepProfile negative = TwoBlocks();
  negative.mutable_blocks(1)->set_forward_us(-1);
  EXPECT_THAT(std::string(ValidateStepProfile(negative).message()),
              HasSubstr("block second: forward_us"));
}

TEST(StepProfileTest, AProfileWithoutBlocksSaysHowToRecordThem) {
  EXPECT_TRUE(CheckHasBlocks(TwoBlocks()).ok());
  const std::string message(CheckHasBlocks(ThreeTensors()).message());
  EXPECT_THAT(message, HasSubstr("train_bench -- --record=FILE --model=three"));
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

TEST(StepProfileTest, ACheckpointedBlockIsComputedAgainBeforeItsGradients) {
  proto::StepProfile profile = TwoBlocks();
  EXPECT_THAT(std::string(WithCheckpointing(profile).status().message()),
              HasSubstr("--activation_checkpointing: expected false"));
  proto::ProfiledBlock& second = *profile.mutable_blocks(1);
  second.set_recomputes(true);
  second.set_forward_us(7);
  second.set_backward_us(50);
  second.set_output_bytes(100);
  second.set_kept_bytes(900);
  const auto checkpointed = WithCheckpointing(profile);
  ASSERT_TRUE(checkpointed.ok()) << checkpointed.status();
  EXPECT_TRUE(ValidateStepProfile(*checkpointed).ok()) << ValidateStepProfile(*checkpointed);
  EXPECT_EQ(checkpointed->backward_us(), 87);
  EXPECT_EQ(checkpointed->blocks(1).backward_us(), 57);
  EXPECT_EQ(checkpointed->blocks(1).kept_bytes(), 100);
  EXPECT_EQ(checkpointed->blocks(1).recomputed_bytes(), 800);
  EXPECT_EQ(checkpointed->blocks(0).backward_us(), profile.blocks(0).backward_us());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(checkpointed->tensors(i).ready_us(), profile.tensors(i).ready_us() + 7);
  }
}

TEST(StepProfileTest, ASliceHasTheShapeThatItsMeetingsFollowFrom) {
  proto::StepProfile slice = TwoBlocks();
  EXPECT_TRUE(CheckWhole(slice).ok());
  slice.set_slices(2);
  slice.mutable_gpt()->set_width(8);
  slice.mutable_gpt()->set_context(4);
  EXPECT_TRUE(ValidateStepProfile(slice).ok()) << ValidateStepProfile(slice);
  EXPECT_THAT(std::string(CheckWhole(slice).message()), HasSubstr("found one of 2 slices"));
  slice.mutable_gpt()->set_layers(1);
  EXPECT_THAT(std::string(ValidateStepProfile(slice).message()), HasSubstr("gpt.layers"));
  slice.mutable_gpt()->set_layers(0);
  slice.mutable_gpt()->set_context(0);
  EXPECT_THAT(std::string(ValidateStepProfile(slice).message()), HasSubstr("gpt.context"));
}

TEST(StepProfileTest, ErrorsBeginWithTheFile) {
  EXPECT_THAT(std::string(ParseStepProfile("{", "p.json").status().message()), HasSubstr("p.json"));
  EXPECT_THAT(std::string(ParseStepProfile("{}", "p.json").status().message()),
              HasSubstr("p.json: model: expected a name"));
}

}  // namespace
}  // namespace gradsync
