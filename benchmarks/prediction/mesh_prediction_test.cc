#include "benchmarks/prediction/mesh_prediction.h"

#include <string>
#include <vector>

#include "core/plan/slice_traffic.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

// Four equal blocks, each 10 ms forward and 20 ms backward for 8 samples, with 1 MB of parameters
// and outputs of 1 kB a sample.
proto::StepProfile FourBlocks() {
  proto::StepProfile profile;
  profile.set_model("four");
  profile.set_batch_size(8);
  profile.set_forward_us(40e3);
  profile.set_backward_us(80e3);
  for (int b = 3; b >= 0; --b) {
    proto::ProfiledTensor& tensor = *profile.add_tensors();
    tensor.set_name("t" + std::to_string(b));
    tensor.set_numel(250000);
    tensor.set_ready_us(40e3 + 20e3 * (4 - b));
  }
  for (int b = 0; b < 4; ++b) {
    proto::ProfiledBlock& block = *profile.add_blocks();
    block.set_name("b" + std::to_string(b));
    block.set_forward_us(10e3);
    block.set_backward_us(20e3);
    block.set_output_bytes(1000);
    block.set_kept_bytes(4000);
    block.add_tensors("t" + std::to_string(b));
  }
  return profile;
}

PredictedMesh MeshOf(const std::string& mesh, int world_size, int64_t micro_batches) {
  PredictedMesh asked;
  asked.mesh = *Mesh::Parse(mesh, world_size);
  asked.micro_batches = micro_batches;
  asked.job.placed.spec.topology = Topology::kRing;
  asked.job.placed.bandwidth = "100gbit";
  asked.job.constants.latency = asked.job.constants.seconds_per_message = 0;
  return asked;
}

TEST(MeshPredictionTest, OnFastLinksThePipelineLosesTheBubble) {
  const auto run = PredictMesh({FourBlocks()}, MeshOf("pipeline=4", 4, 5));
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_NEAR(run->step_ms_p50(), (5 + 3) * 30, 0.1);
  EXPECT_NEAR(run->bubble_share(), 3.0 / 8, 1e-3);
  EXPECT_NEAR(run->scaling_efficiency(), 5.0 / 8, 1e-3);
  EXPECT_NEAR(run->samples_per_s(), 40 / 0.24, 0.2);
  EXPECT_EQ(run->split(), "1,2,3");
  EXPECT_EQ(run->mesh(), "pipeline=4");
  EXPECT_EQ(run->workers(), 4);
  EXPECT_EQ(run->batch_size(), 8);
}

// Later steps begin a little apart on the ranks.
TEST(MeshPredictionTest, WithoutStagesItIsWhatIsPredictedOfDataParallelism) {
  for (Topology topology : {Topology::kRing, Topology::kPs}) {
    PredictedMesh mesh = MeshOf("data=2", 2, 1);
    mesh.job.placed.bandwidth = "400mbit";
    mesh.job.placed.spec.topology = topology;
    if (topology == Topology::kPs) {
      mesh.job.placed.placement = Placement::kDedicated;
      mesh.job.placed.servers = 2;
    }
    PredictedJob job = mesh.job;
    job.placed.workers = 2;
    const auto run = PredictMesh({FourBlocks()}, mesh);
    ASSERT_TRUE(run.ok()) << run.status();
    EXPECT_NEAR(run->step_ms_p50(), PredictRun(FourBlocks(), job)->step_ms_p50(), 0.5);
    EXPECT_EQ(run->split(), "");
  }
}

TEST(MeshPredictionTest, InFlightMicroBatchesAreKept) {
  PredictedMesh mesh = MeshOf("pipeline=2", 2, 6);
  // The first stage keeps four, the second one and what it received.
  EXPECT_EQ(PredictMesh({FourBlocks()}, mesh)->activation_bytes(), 4 * 8 * 8000);
  mesh.schedule = PipelineSchedule::kGpipe;
  EXPECT_EQ(PredictMesh({FourBlocks()}, mesh)->activation_bytes(), 6 * 8 * 9000);
}

TEST(MeshPredictionTest, AGlobalBatchIsCutAmongReplicasAndMicroBatches) {
  PredictedMesh mesh = MeshOf("data=2,pipeline=2", 4, 3);
  mesh.global_batch_size = 32;
  const auto run = PredictMesh({FourBlocks()}, mesh);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->batch_size(), 6);  // 6, 6 and 4
  EXPECT_NEAR(run->samples_per_s() * run->step_ms_p50() * 1e-3, 32, 1e-6);
  mesh.global_batch_size = 33;
  EXPECT_FALSE(PredictMesh({FourBlocks()}, mesh).ok());
}

// One of two slices of FourBlocks(), a GPT of two layers, which takes half as long.
proto::StepProfile HalfOfFourBlocks() {
  proto::StepProfile profile = FourBlocks();
  profile.set_slices(2);
  profile.mutable_gpt()->set_layers(2);
  profile.mutable_gpt()->set_width(100);
  profile.mutable_gpt()->set_context(50);
  profile.set_forward_us(20e3);
  profile.set_backward_us(40e3);
  for (proto::ProfiledTensor& tensor : *profile.mutable_tensors()) {
    tensor.set_numel(128000);
    tensor.set_ready_us(tensor.ready_us() / 2);
  }
  for (proto::ProfiledBlock& block : *profile.mutable_blocks()) {
    block.set_forward_us(5e3);
    block.set_backward_us(10e3);
    block.set_kept_bytes(3000);
  }
  return profile;
}

TEST(MeshPredictionTest, SlicesTakeTheTimesOfOneAndSendTheBytesOfTheFormula) {
  const std::vector<proto::StepProfile> profiles = {FourBlocks(), HalfOfFourBlocks()};
  const auto fast = PredictMesh(profiles, MeshOf("tensor=2", 2, 3));
  ASSERT_TRUE(fast.ok()) << fast.status();
  EXPECT_NEAR(fast->step_ms_p50(), 3 * 60, 1);
  EXPECT_GT(fast->scaling_efficiency(), 0.99);
  EXPECT_NEAR(fast->samples_per_s(), 3 * 8 / 0.18, 1);
  EXPECT_EQ(fast->activation_bytes(), 8 * 4 * 3000);
  EXPECT_EQ(fast->worker_memory_bytes(), 3 * 4 * 4 * 128000);  // parameters, gradients, momentum
  SlicedGpt gpt;
  gpt.slices = 2;
  gpt.layers = 2;
  gpt.width = 100;
  gpt.context = 50;
  EXPECT_EQ(fast->wire_tx_bytes_max_node(), 3 * SliceTxBytes(gpt, 8, /*recomputes=*/false, 0));

  // Replicas besides: each exchanges a slice's gradients.
  PredictedMesh mesh = MeshOf("data=2,tensor=2", 4, 3);
  mesh.job.placed.bandwidth = "100mbit";
  const auto slow = PredictMesh(profiles, mesh);
  ASSERT_TRUE(slow.ok()) << slow.status();
  EXPECT_EQ(slow->wire_tx_bytes_max_node(), fast->wire_tx_bytes_max_node() + 4 * 4 * 128000);
  const double meetings = fast->wire_tx_bytes_max_node() * 8 / (0.94 * 100e6);
  EXPECT_GT(1e-3 * slow->step_ms_p50(), 0.18 + meetings);
  EXPECT_LT(1e-3 * slow->step_ms_p50(), 0.18 + meetings + 4 * 4 * 128000 * 8 / (0.94 * 100e6));
}

TEST(MeshPredictionTest, AlongShardOwnersKeepAsAlongData) {
  for (int zero : {1, 2, 3}) {
    PredictedMesh mesh = MeshOf("shard=4", 4, 1);
    mesh.job.placed.spec.update = UpdateSite::kOwner;
    mesh.job.placed.zero = zero;
    PredictedMesh data = mesh;
    data.mesh = *Mesh::Parse("data=4", 4);
    const auto run = PredictMesh({FourBlocks()}, mesh);
    ASSERT_TRUE(run.ok()) << run.status();
    EXPECT_EQ(run->mesh(), "shard=4");
    EXPECT_EQ(run->zero(), zero);
    EXPECT_EQ(run->step_ms_p50(), PredictMesh({FourBlocks()}, data)->step_ms_p50());
    EXPECT_DOUBLE_EQ(run->samples_per_s(), 4 * 8 / (1e-3 * run->step_ms_p50()));
  }
  PredictedMesh stages = MeshOf("pipeline=2,shard=2", 4, 1);
  stages.job.placed.spec.update = UpdateSite::kOwner;
  stages.job.placed.zero = 2;
  EXPECT_THAT(std::string(PredictMesh({FourBlocks()}, stages).status().message()),
              HasSubstr("--zero: expected 0 or 1"));
}

TEST(MeshPredictionTest, MistakesAreNamed) {
  proto::StepProfile old = FourBlocks();
  old.clear_blocks();
  EXPECT_THAT(std::string(PredictMesh({old}, MeshOf("pipeline=2", 2, 1)).status().message()),
              HasSubstr("expected blocks"));
  PredictedMesh split = MeshOf("pipeline=2", 2, 1);
  split.split = "4";
  EXPECT_THAT(std::string(PredictMesh({FourBlocks()}, split).status().message()),
              HasSubstr("--split"));
  EXPECT_THAT(
      std::string(PredictMesh({FourBlocks()}, MeshOf("pipeline=5", 5, 1)).status().message()),
      HasSubstr("--mesh"));
  EXPECT_THAT(std::string(PredictMesh({FourBlocks()}, MeshOf("tensor=2", 2, 1)).status().message()),
              HasSubstr("--profile: expected one recorded with --mesh=tensor=2"));
  EXPECT_THAT(std::string(PredictMesh({FourBlocks(), HalfOfFourBlocks()},
                                      MeshOf("pipeline=2,tensor=2", 4, 1))
                              .status()
                              .message()),
              HasSubstr("--mesh: expected stages or slices"));
  PredictedMesh servers = MeshOf("data=2,pipeline=2", 4, 1);
  servers.job.placed.spec.topology = Topology::kPs;
  servers.job.placed.placement = Placement::kDedicated;
  servers.job.placed.servers = 1;
  EXPECT_THAT(std::string(PredictMesh({FourBlocks()}, servers).status().message()),
              HasSubstr("at least 2, one per stage"));
}

}  // namespace
}  // namespace gradsync
