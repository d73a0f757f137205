#include "benchmarks/profiles/block_recorder.h"

#include "benchmarks/profiles/step_profile.h"
#include "benchmarks/profiles/step_recorder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

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

TEST(BlockRecorderTest, NoRunIsRefused) {
  TrainerOptions options;
  options.model.name = "mlp";
  options.steps = options.warmup_steps = 2;
  proto::StepProfile profile;
  EXPECT_EQ(RecordBlocks(options, &profile).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gradsync
