#include "benchmarks/profiles/mesh_stages.h"

#include <algorithm>
#include <string>
#include <vector>

#include "benchmarks/profiles/step_profile.h"
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

// One of two slices of a GPT of two layers.
proto::StepProfile Slice() {
  proto::StepProfile profile = FourBlocks();
  profile.set_slices(2);
  profile.mutable_gpt()->set_layers(2);
  profile.mutable_gpt()->set_width(16);
  profile.mutable_gpt()->set_context(4);
  for (int b : {1, 2}) profile.mutable_blocks(b)->set_recomputes(true);
  return profile;
}

int64_t Sums(const std::vector<RecordedMeeting>& meetings, int64_t numbers) {
  return std::count_if(meetings.begin(), meetings.end(), [numbers](const RecordedMeeting& at) {
    return at.meeting.call == SliceCall::kSum && at.meeting.numbers == numbers;
  });
}

TEST(MeshStagesTest, ASliceMeetsTheOthersWhereItsBlocksSay) {
  const auto slices =
      StagesOf({Slice()}, *SplitOf(Slice(), "auto", 1), {1, 8, 8}, 2, PlanOptions());
  ASSERT_TRUE(slices.ok()) << slices.status();
  const RecordedPass& pass = (*slices)[0].each;
  // The embedding's, two in each layer, and two of the loss.
  ASSERT_EQ(pass.forward_meetings.size(), 1 + 2 * 2 + 2);
  EXPECT_EQ(Sums(pass.forward_meetings, 8 * 4 * 16), 5);
  EXPECT_DOUBLE_EQ(pass.forward_meetings[0].after_us, 2 * 10);
  EXPECT_DOUBLE_EQ(pass.forward_meetings[1].after_us, 2 * (10 + 20 / 2));
  EXPECT_DOUBLE_EQ(pass.forward_meetings.back().after_us, pass.forward_us);
  // The head's, and two in each layer.
  ASSERT_EQ(pass.backward_meetings.size(), 1 + 2 * 2);
  EXPECT_DOUBLE_EQ(pass.backward_meetings[0].after_us, 2 * 80);
  EXPECT_DOUBLE_EQ(pass.backward_meetings[1].after_us, 2 * (80 + 60 / 2));
  EXPECT_DOUBLE_EQ(pass.backward_meetings.back().after_us, 2 * (80 + 60 + 40));
  const auto stages =
      StagesOf({FourBlocks()}, *SplitOf(FourBlocks(), "auto", 1), {1, 8, 8}, 2, PlanOptions());
  EXPECT_TRUE((*stages)[0].each.forward_meetings.empty());
}

TEST(MeshStagesTest, ARecomputedLayerMeetsAgainInBackward) {
  const proto::StepProfile again = *WithCheckpointing(Slice());
  const auto slices = StagesOf({again}, *SplitOf(again, "auto", 1), {1, 8, 8}, 1, PlanOptions());
  ASSERT_TRUE(slices.ok()) << slices.status();
  const RecordedStage& slice = (*slices)[0];
  EXPECT_DOUBLE_EQ(slice.each.backward_us, 200 + 20 + 30);
  ASSERT_EQ(slice.each.backward_meetings.size(), 1 + 2 * 4);
  // The last layer's forward, then its backward.
  EXPECT_DOUBLE_EQ(slice.each.backward_meetings[1].after_us, 80 + 15);
  EXPECT_DOUBLE_EQ(slice.each.backward_meetings[3].after_us, 80 + 30 + 30);
  EXPECT_EQ(slice.kept_bytes, 8 * (1000 + 100 + 100 + 1000));
  EXPECT_EQ(slice.recomputed_bytes, 8 * 900);
}

TEST(MeshStagesTest, AMeshTakesTheProfilesOfAsManySlices) {
  const std::vector<proto::StepProfile> all = {FourBlocks(), Slice()};
  EXPECT_EQ(ProfilesOfSlices(all, 1, false)->at(0).slices(), 0);
  EXPECT_EQ(ProfilesOfSlices(all, 2, false)->at(0).slices(), 2);
  EXPECT_EQ(ProfilesOfSlices(all, 1, true)->size(), 1);  // where nothing is cut
  EXPECT_THAT(std::string(ProfilesOfSlices(all, 4, false).status().message()),
              HasSubstr("--profile: expected one recorded with --mesh=tensor=4"));
  EXPECT_THAT(std::string(ProfilesOfSlices(all, 2, true).status().message()),
              HasSubstr("--mesh=tensor=2 --sequence_parallel"));
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
