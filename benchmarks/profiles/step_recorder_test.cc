#include "benchmarks/profiles/step_recorder.h"

#include <string>

#include "benchmarks/profiles/step_profile.h"
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

}  // namespace
}  // namespace gradsync
