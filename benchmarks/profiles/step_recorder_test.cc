#include "benchmarks/profiles/step_recorder.h"

#include <string>

#include "benchmarks/profiles/step_profile.h"
#include "core/group/mesh.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

Plan TwoTensors() {
  proto::StepProfile profile;
  for (const char* name : {"a", "b"}) {
    proto::ProfiledTensor& tensor = *profile.add_tensors();
    tensor.set_name(name);
    tensor.set_numel(8);
  }
  return ProfilePlan(profile, PlanOptions()).value();
}

StepReport Step(double forward, double backward, double update, double a, double b) {
  StepReport report;
  report.times.forward = absl::Microseconds(forward);
  report.times.backward = absl::Microseconds(backward);
  report.times.update = absl::Microseconds(update);
  report.gradient_ready = {absl::Microseconds(a), absl::Microseconds(b)};
  return report;
}

TEST(StepRecorderTest, TheProfileHasMediansInTheOrderOfReadiness) {
  const auto profile = MedianStep(
      TwoTensors(), {Step(10, 30, 5, 39, 20), Step(11, 20, 7, 30, 22), Step(30, 50, 6, 70, 60)});
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_EQ(profile->forward_us(), 11);
  EXPECT_EQ(profile->backward_us(), 29);  // 40 is the median end
  EXPECT_EQ(profile->update_us(), 6);
  ASSERT_EQ(profile->tensors_size(), 2);
  EXPECT_EQ(profile->tensors(0).name(), "b");
  EXPECT_EQ(profile->tensors(0).ready_us(), 22);
  EXPECT_EQ(profile->tensors(1).name(), "a");
  EXPECT_EQ(profile->tensors(1).ready_us(), 39);
}

TEST(StepRecorderTest, StepsWithoutTimesOfGradientsAreRefused) {
  EXPECT_EQ(MedianStep(TwoTensors(), {}).status().code(), absl::StatusCode::kInvalidArgument);
  StepReport step = Step(1, 2, 3, 1, 2);
  step.gradient_ready.pop_back();
  EXPECT_EQ(MedianStep(TwoTensors(), {step}).status().message(),
            "step 0: expected times of 2 gradients, found 1");
}

TEST(StepRecorderTest, ARealStepIsAValidProfileOfTheModelsTensors) {
  TrainerOptions options;
  options.model.name = "mlp";
  options.model.hidden = {16};
  options.batch_size = 4;
  options.steps = 4;
  options.warmup_steps = 1;
  options.optimizer.groups.emplace_back();
  int seen = 0;
  const auto profile = RecordStep(options, [&](const StepReport&) { ++seen; });
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_EQ(seen, 4);
  proto::StepProfile complete = *profile;
  EXPECT_TRUE(ValidateStepProfile(complete).ok()) << ValidateStepProfile(complete);
  EXPECT_EQ(profile->origin(), "measured");
  EXPECT_EQ(profile->model(), "mlp");
  EXPECT_EQ(profile->batch_size(), 4);
  EXPECT_EQ(profile->threads(), 1);
  EXPECT_GT(profile->machine().cores(), 0);
  EXPECT_GT(profile->forward_us(), 0);
  EXPECT_GT(profile->update_us(), 0);

  int64_t parameters = 0;
  for (const proto::ProfiledTensor& tensor : profile->tensors()) {
    parameters += tensor.numel();
    EXPECT_GE(tensor.ready_us(), profile->forward_us());
  }
  EXPECT_EQ(parameters, 3 * 32 * 32 * 16 + 16 + 16 * 10 + 10);
  // Backward comes to the last layer first.
  ASSERT_EQ(profile->tensors_size(), 4);
  EXPECT_THAT(profile->tensors(0).name(), ::testing::StartsWith("fc2"));
  EXPECT_THAT(profile->tensors(3).name(), ::testing::StartsWith("fc1"));
}

TEST(StepRecorderTest, MoreClassesThanTheDataHasMakeALargerLastLayer) {
  TrainerOptions options;
  options.model.name = "mlp";
  options.model.hidden = {4};
  options.model.classes = 1000;
  options.batch_size = 2;
  options.steps = 1;
  options.optimizer.groups.emplace_back();
  const auto profile = RecordStep(options, [](const StepReport&) {});
  ASSERT_TRUE(profile.ok()) << profile.status();
  int64_t parameters = 0;
  for (const proto::ProfiledTensor& tensor : profile->tensors()) parameters += tensor.numel();
  EXPECT_EQ(parameters, 3 * 32 * 32 * 4 + 4 + 4 * 1000 + 1000);
}

TEST(BlockRecorderTest, EachBlockIsTimedAndTheBlocksHaveAllTensors) {
  TrainerOptions options;
  options.model.name = "mlp";
  options.model.hidden = {16, 8};
  options.batch_size = 4;
  options.steps = 3;
  options.warmup_steps = 1;
  options.optimizer.groups.emplace_back();
  auto profile = RecordStep(options, [](const StepReport&) {});
  ASSERT_TRUE(profile.ok()) << profile.status();
  ASSERT_TRUE(RecordBlocks(options, &*profile).ok());
  EXPECT_TRUE(ValidateStepProfile(*profile).ok()) << ValidateStepProfile(*profile);
  ASSERT_EQ(profile->blocks_size(), 3);
  const int outputs[] = {16, 8, 10};
  for (int b = 0; b < 3; ++b) {
    const proto::ProfiledBlock& block = profile->blocks(b);
    EXPECT_GT(block.forward_us(), 0) << block.name();
    EXPECT_GT(block.backward_us(), 0) << block.name();
    EXPECT_EQ(block.output_bytes(), 4 * outputs[b]) << block.name();
    EXPECT_GE(block.kept_bytes(), 4 * outputs[b]) << block.name();
    EXPECT_LE(block.kept_bytes(), 4 * (4 * outputs[b] + 3 * 32 * 32)) << block.name();
    EXPECT_EQ(block.tensors_size(), 2) << block.name();
  }
}

// With its part of what is cut, and all of what is not.
TEST(BlockRecorderTest, ASliceIsRecordedAlone) {
  for (bool split_sequence : {false, true}) {
    TrainerOptions options;
    options.model.name = "gpt";
    options.model.gpt_width = 16;
    options.model.gpt_layers = 2;
    options.model.gpt_heads = 4;
    options.model.gpt_context = 8;
    options.batch_size = 2;
    options.steps = 3;
    options.warmup_steps = 1;
    options.optimizer.groups.emplace_back();
    options.pipeline.mesh = *Mesh::Parse("tensor=4", 4);
    options.pipeline.split_sequence = split_sequence;
    auto profile = RecordStep(options, [](const StepReport&) {});
    ASSERT_TRUE(profile.ok()) << profile.status();
    const absl::Status recorded = RecordBlocks(options, &*profile);
    ASSERT_TRUE(recorded.ok()) << recorded;
    EXPECT_TRUE(ValidateStepProfile(*profile).ok()) << ValidateStepProfile(*profile);
    EXPECT_EQ(profile->slices(), 4);
    EXPECT_EQ(profile->split_sequence(), split_sequence);
    EXPECT_EQ(profile->gpt().layers(), 2);
    EXPECT_EQ(profile->gpt().width(), 16);
    EXPECT_EQ(profile->gpt().context(), 8);
    int64_t parameters = 0;
    for (const proto::ProfiledTensor& tensor : profile->tensors()) parameters += tensor.numel();
    const int64_t layer = (12 * 16 * 16 + 7 * 16) / 4 + 6 * 16;
    EXPECT_EQ(parameters, 2 * layer + 2 * 256 * 16 / 4 + 8 * 16 + 2 * 16);
    ASSERT_EQ(profile->blocks_size(), 4);
    EXPECT_FALSE(profile->blocks(0).recomputes());
    EXPECT_TRUE(profile->blocks(1).recomputes());
    EXPECT_EQ(profile->blocks(1).output_bytes(), 4 * 8 * 16 / (split_sequence ? 4 : 1));
  }
}

TEST(BlockRecorderTest, NoRunIsRefused) {
  TrainerOptions options;
  options.model.name = "mlp";
  options.steps = options.warmup_steps = 2;
  proto::StepProfile profile;
  EXPECT_EQ(RecordBlocks(options, &profile).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gradsync
