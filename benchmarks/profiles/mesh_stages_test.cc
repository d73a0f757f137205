#include "benchmarks/profiles/mesh_stages.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

// Four blocks that take 10, 20, 30 and 40 us forward and twice that backward, with a tensor of 64
// elements each but the third, which has none; outputs of 100 bytes a sample. The batch is 8.
proto::StepProfile FourBlocks() {
  proto::StepProfile profile;
  profile.set_model("four");
  profile.set_batch_size(8);
  profile.set_forward_us(100);
  profile.set_backward_us(200);
  profile.set_update_us(30);
  for (int b = 3; b >= 0; --b) {
    if (b == 2) continue;
    proto::ProfiledTensor& tensor = *profile.add_tensors();
    tensor.set_name("t" + std::to_string(b));
    tensor.set_numel(64);
    tensor.set_ready_us(b == 3 ? 180 : b == 1 ? 280 : 300);
  }
  for (int b = 0; b < 4; ++b) {
    proto::ProfiledBlock& block = *profile.add_blocks();
    block.set_name("b" + std::to_string(b));
    block.set_forward_us(10 * (b + 1));
    block.set_backward_us(20 * (b + 1));
    block.set_output_bytes(100);
    block.set_kept_bytes(1000);
    if (b != 2) block.add_tensors("t" + std::to_string(b));
  }
  return profile;
}

TEST(MeshStagesTest, AutoMakesTheSlowestStageFast) {
  EXPECT_EQ(SplitToString(*SplitOf(FourBlocks(), "auto", 2)), "3");
  EXPECT_EQ(SplitToString(*SplitOf(FourBlocks(), "1", 2)), "1");
  EXPECT_EQ(SplitToString(*SplitOf(FourBlocks(), "auto", 1)), "");
  EXPECT_FALSE(SplitOf(FourBlocks(), "4", 2).ok());
  proto::StepProfile old = FourBlocks();
  old.clear_blocks();
  EXPECT_THAT(std::string(SplitOf(old, "auto", 2).status().message()), HasSubstr("--record"));
}

TEST(MeshStagesTest, AStageHasTheTimesBytesAndBucketsOfItsBlocks) {
  const MicroBatches batches = *CutBatch(20, 3);  // 7, 7 and 6 samples
  EXPECT_EQ(batches.each, 7);
  EXPECT_EQ(batches.last, 6);
  PlanOptions options;
  options.world_size = 2;
  const auto stages = StagesOf({FourBlocks()}, *SplitOf(FourBlocks(), "1", 2), batches, 2, options);
  ASSERT_TRUE(stages.ok()) << stages.status();
  ASSERT_EQ(stages->size(), 2);
  const RecordedStage& first = (*stages)[0];
  const RecordedStage& second = (*stages)[1];
  EXPECT_DOUBLE_EQ(first.each.forward_us, 2 * 10 * 7 / 8.0);
  EXPECT_DOUBLE_EQ(second.last.backward_us, 2 * 180 * 6 / 8.0);
  EXPECT_EQ(first.each.output_bytes, 700);
  EXPECT_EQ(first.last.output_bytes, 600);
  EXPECT_EQ(second.each.output_bytes, 0);
  EXPECT_EQ(first.kept_bytes, 7000);
  EXPECT_EQ(second.kept_bytes, 7 * 3100);  // with what it received
  EXPECT_DOUBLE_EQ(first.update_us, 20);
  EXPECT_DOUBLE_EQ(second.update_us, 40);
  // One bucket with all of its tensors, complete at the end of backward.
  ASSERT_EQ(second.plan.buckets().size(), 1);
  EXPECT_EQ(second.plan.total_bytes(), 2 * 64 * 4);
  EXPECT_DOUBLE_EQ(second.bucket_ready_us[0], second.last.backward_us);
  EXPECT_DOUBLE_EQ(first.bucket_ready_us[0], first.last.backward_us);
}

TEST(MeshStagesTest, EachMicroBatchTakesTheProfileWhoseBatchIsNearest) {
  proto::StepProfile small = FourBlocks();
  small.set_batch_size(1);
  for (proto::ProfiledBlock& block : *small.mutable_blocks()) block.set_forward_us(5);
  const std::vector<proto::StepProfile> both = {FourBlocks(), small};
  const auto stages = StagesOf(both, *SplitOf(both[0], "1", 2), {3, 8, 1}, 1, PlanOptions());
  ASSERT_TRUE(stages.ok()) << stages.status();
  EXPECT_DOUBLE_EQ((*stages)[0].each.forward_us, 10);
  EXPECT_DOUBLE_EQ((*stages)[0].last.forward_us, 5);
  small.set_model("another");
  EXPECT_FALSE(
      StagesOf({FourBlocks(), small}, *SplitOf(both[0], "1", 2), {3, 8, 1}, 1, PlanOptions()).ok());
}

TEST(MeshStagesTest, AStageWithoutParametersIsRefused) {
  const auto stages =
      StagesOf({FourBlocks()}, *SplitOf(FourBlocks(), "2,3", 3), {1, 8, 8}, 1, PlanOptions());
  EXPECT_THAT(std::string(stages.status().message()), HasSubstr("--split: expected parameters"));
}

TEST(MeshStagesTest, MicroBatchesAreNeverEmpty) {
  EXPECT_FALSE(CutBatch(3, 4).ok());
  EXPECT_FALSE(CutBatch(4, 0).ok());
  EXPECT_FALSE(CutBatch(9, 6).ok());  // 2, 2, 2, 2, 2 and none
  EXPECT_EQ(CutBatch(120, 15)->last, 8);
  EXPECT_EQ(CutBatch(1, 1)->samples(), 1);
}

}  // namespace
}  // namespace gradsync
