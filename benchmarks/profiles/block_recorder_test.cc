#include "benchmarks/profiles/block_recorder.h"

#include "benchmarks/profiles/step_profile.h"
#include "benchmarks/profiles/step_recorder.h"
#include "core/group/mesh.h"
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
