#include "benchmarks/prediction/predict_options.h"

#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

std::string ErrorOf(const PredictOptions& options) {
  return std::string(ListPredictions(options).status().message());
}

TEST(PredictOptionsTest, ARangeOfWorkersIsDoubledAndServersFollowTheWorkers) {
  PredictOptions options;
  options.topologies = {"ps"};
  options.placements = {"dedicated"};
  options.workers = {"2..9", "4", "3"};
  options.servers = {"n/2"};
  const auto jobs = ListPredictions(options);
  ASSERT_TRUE(jobs.ok()) << jobs.status();
  std::string found;
  for (const PredictedJob& job : *jobs) {
    found += std::to_string(job.placed.workers) + ":" + std::to_string(job.placed.servers) + " ";
  }
  EXPECT_EQ(found, "2:1 3:1 4:2 8:4 ");
}

TEST(PredictOptionsTest, WhatCannotBeOrWasListedIsLeftOut) {
  PredictOptions options;
  options.workers = {"2"};
  options.servers = {"1", "n/2", "3"};
  options.placements = {"dedicated", "colocated", "mixed"};
  options.compressions = {"none", "topk:0.01"};
  int rings = 0, colocated = 0, mixed = 0, dedicated = 0;
  const auto jobs = ListPredictions(options);
  ASSERT_TRUE(jobs.ok()) << jobs.status();
  for (const PredictedJob& job : *jobs) {
    rings += job.placed.spec.topology == Topology::kRing;
    colocated += job.placed.placement == Placement::kColocated;
    mixed += job.placed.placement == Placement::kMixed;
    dedicated += job.placed.placement == Placement::kDedicated;
  }
  EXPECT_EQ(rings, 1);
  EXPECT_EQ(colocated, 2);  // 1 server, with and without topk
  EXPECT_EQ(mixed, 2);
  EXPECT_EQ(dedicated, 4);
}

TEST(PredictOptionsTest, EachJobHasEachNumberOfReplicas) {
  PredictOptions options;
  options.topologies = {"ring"};
  options.workers = {"2", "4"};
  options.replicas = {"1", "3"};
  options.device_bandwidth = "16gbit";
  const auto jobs = ListPredictions(options);
  ASSERT_TRUE(jobs.ok()) << jobs.status();
  std::string found;
  for (const PredictedJob& job : *jobs) {
    found += std::to_string(job.placed.workers) + "x" +
             std::to_string(job.placed.arrangement.data_parallel) + " ";
    EXPECT_EQ(job.device_bytes_per_second, 2e9);
  }
  EXPECT_EQ(found, "2x1 2x3 4x1 4x3 ");
  options.replicas = {"0"};
  EXPECT_THAT(ErrorOf(options), HasSubstr("--data_parallel: expected"));
  options.replicas = {"2"};
  options.device_bandwidth = "fast";
  EXPECT_EQ(ErrorOf(options), "--device_bandwidth: expected such as 64gbit, found \"fast\"");
}

TEST(PredictOptionsTest, AGlobalBatchIsSplit) {
  PredictOptions options;
  options.topologies = {"ring"};
  options.workers = {"2", "4"};
  options.global_batch_size = 32;
  const auto jobs = ListPredictions(options);
  ASSERT_TRUE(jobs.ok()) << jobs.status();
  EXPECT_EQ((*jobs)[0].batch_size, 16);
  EXPECT_EQ((*jobs)[1].batch_size, 8);
  options.workers = {"3"};
  EXPECT_THAT(ErrorOf(options), HasSubstr("--global_batch_size: expected a multiple of 3"));
}

TEST(PredictOptionsTest, MistakesNameTheFlag) {
  const auto with = [](auto change) {
    PredictOptions options;
    change(options);
    return ErrorOf(options);
  };
  EXPECT_THAT(with([](auto& o) { o.workers = {"0"}; }), HasSubstr("--workers: expected numbers"));
  EXPECT_THAT(with([](auto& o) { o.workers = {"8..2"}; }), HasSubstr("found \"8..2\""));
  EXPECT_THAT(with([](auto& o) { o.workers = {"2..8192"}; }), HasSubstr("--workers"));
  EXPECT_THAT(with([](auto& o) { o.servers = {"m"}; }), HasSubstr("--servers"));
  EXPECT_THAT(with([](auto& o) { o.servers = {"n/0"}; }), HasSubstr("--servers"));
  EXPECT_THAT(with([](auto& o) { o.topologies = {"star"}; }), HasSubstr("--topology: "));
  EXPECT_THAT(with([](auto& o) { o.placements = {"here"}; }), HasSubstr("--placement"));
  EXPECT_THAT(with([](auto& o) { o.updates = {"both"}; }), HasSubstr("--update"));
  EXPECT_THAT(with([](auto& o) { o.compressions = {"zip"}; }), HasSubstr("--compression"));
  EXPECT_THAT(with([](auto& o) { o.bandwidths = {"10"}; }), HasSubstr("--bandwidth"));
  EXPECT_THAT(with([](auto& o) { o.batch_size = -1; }), HasSubstr("--batch_size"));
  EXPECT_THAT(with([](auto& o) { o.compute_scale = 0; }), HasSubstr("--compute_scale"));
  EXPECT_THAT(with([](auto& o) { o.rate_factor = 1.5; }), HasSubstr("--rate_factor"));
  EXPECT_THAT(with([](auto& o) { o.latency = absl::Seconds(-1); }), HasSubstr("--latency"));
  EXPECT_THAT(with([](auto& o) { o.chunk_bytes = "100"; }), HasSubstr("--chunk_bytes"));
  EXPECT_THAT(with([](auto& o) { o.consistencies = {"ssp:-1"}; }), HasSubstr("--consistency"));
  EXPECT_THAT(with([](auto& o) { o.consistencies = {"asp"}; }),
              HasSubstr("--consistency: expected bsp without owner among --update"));
  EXPECT_THAT(with([](auto& o) { o.straggler = "2:3"; }), HasSubstr("--straggler"));
  EXPECT_THAT(with([](auto& o) { o.straggler = "random:1:0.5:2"; }), HasSubstr("--straggler"));
  EXPECT_THAT(with([](auto& o) { o.bucket_bytes = "x"; }), HasSubstr("--bucket_bytes"));
}

proto::StepProfile ThreeBlocks() {
  proto::StepProfile profile;
  profile.set_model("three");
  profile.set_batch_size(4);
  profile.set_forward_us(3);
  profile.set_backward_us(3);
  for (int b = 0; b < 3; ++b) {
    proto::ProfiledTensor& tensor = *profile.add_tensors();
    tensor.set_name("t" + std::to_string(b));
    tensor.set_numel(16);
    tensor.set_ready_us(6);
    proto::ProfiledBlock& block = *profile.add_blocks();
    block.set_forward_us(1);
    block.set_backward_us(1);
    block.add_tensors(tensor.name());
  }
  return profile;
}

MeshFlags Flags(const std::string& meshes) {
  MeshFlags flags;
  flags.meshes = meshes;
  return flags;
}

PredictOptions Ring() {
  PredictOptions options;
  options.topologies = {"ring"};
  return options;
}

TEST(MeshOptionsTest, EachMeshHasEachScheduleNumberAndSplit) {
  MeshFlags flags = Flags("pipeline=2;data=2,pipeline=3");
  flags.schedules = {"gpipe", "1f1b"};
  flags.micro_batches = {"1", "4", "8"};
  const auto list = ListMeshPredictions(Ring(), flags, {ThreeBlocks()});
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_EQ(list->size(), 2 * 2 * 3);
  EXPECT_EQ((*list)[0].mesh.ToString(), "pipeline=2");
  EXPECT_EQ(list->back().mesh.ToString(), "data=2,pipeline=3");
  EXPECT_EQ(list->back().job.placed.workers, 6);
  flags = Flags("pipeline=2");
  flags.splits = "1;2";
  EXPECT_EQ(ListMeshPredictions(Ring(), flags, {ThreeBlocks()})->size(), 2);
}

TEST(MeshOptionsTest, AutoIsAllMeshesThatTheModelCanHaveWithOneGlobalBatch) {
  PredictOptions options;
  options.workers = {"12"};
  options.servers = {"1", "3"};
  options.placements = {"dedicated"};
  const auto list = ListMeshPredictions(options, Flags("auto"), {ThreeBlocks()});
  ASSERT_TRUE(list.ok()) << list.status();
  std::multiset<std::string> found;
  for (const PredictedMesh& mesh : *list) {
    EXPECT_EQ(mesh.global_batch_size, 48);
    found.insert(mesh.mesh.ToString() + " " + std::to_string(mesh.job.placed.servers));
  }
  // A server for each stage at least.
  EXPECT_THAT(found, UnorderedElementsAre("data=12,pipeline=1 0", "data=12,pipeline=1 1",
                                          "data=12,pipeline=1 3", "data=6,pipeline=2 0",
                                          "data=6,pipeline=2 3", "data=4,pipeline=3 0",
                                          "data=4,pipeline=3 3"));
}

TEST(MeshOptionsTest, AutoHasTheSlicesThatThereAreProfilesOf) {
  proto::StepProfile slice = ThreeBlocks();
  slice.set_slices(4);
  PredictOptions options = Ring();
  options.workers = {"8"};
  const auto meshes = [&](bool split_sequence) {
    MeshFlags flags = Flags("auto");
    flags.split_sequence = split_sequence;
    std::multiset<std::string> found;
    const auto list = ListMeshPredictions(options, flags, {ThreeBlocks(), slice});
    for (const PredictedMesh& mesh : list.value()) {
      EXPECT_EQ(mesh.split_sequence, split_sequence);
      found.insert(mesh.mesh.ToString());
    }
    return found;
  };
  EXPECT_THAT(meshes(false),
              UnorderedElementsAre("data=8,pipeline=1", "data=4,pipeline=2", "data=2,tensor=4"));
  EXPECT_THAT(meshes(true), UnorderedElementsAre("data=8,pipeline=1", "data=4,pipeline=2"));
}

TEST(MeshOptionsTest, ASearchKeepsTheMeshesOnWhichOwnersCanKeepSoMuch) {
  PredictOptions options = Ring();
  options.workers = {"2"};
  options.zeros = {"0", "2"};
  MeshFlags flags = Flags("auto");
  flags.micro_batches = {"1", "4"};
  const auto list = ListMeshPredictions(options, flags, {ThreeBlocks()});
  ASSERT_TRUE(list.ok()) << list.status();
  int sharded = 0;
  for (const PredictedMesh& each : *list) {
    if (each.job.placed.zero == 0) continue;
    ++sharded;
    EXPECT_EQ(each.mesh.ToString(), "data=2,pipeline=1");
    EXPECT_EQ(each.micro_batches, 1);
  }
  EXPECT_EQ(sharded, 1);
  EXPECT_EQ(list->size(), 5);
  flags.micro_batches = {"4"};
  EXPECT_THAT(std::string(ListMeshPredictions(options, flags, {ThreeBlocks()}).status().message()),
              HasSubstr("--micro_batches: expected 1 with --zero=2"));
}

TEST(MeshOptionsTest, AReplicaAloneHasNoServersWhereRingsWereAskedFor) {
  PredictOptions options;
  options.servers = {"2"};
  EXPECT_EQ(ListMeshPredictions(options, Flags("pipeline=2"), {ThreeBlocks()})->size(), 1);
  options.topologies = {"ps"};
  EXPECT_EQ(ListMeshPredictions(options, Flags("pipeline=2"), {ThreeBlocks()})->size(), 2);
}

TEST(MeshOptionsTest, MistakesAreNamed) {
  const auto error = [](const PredictOptions& options, const MeshFlags& flags) {
    return std::string(ListMeshPredictions(options, flags, {ThreeBlocks()}).status().message());
  };
  EXPECT_THAT(error(Ring(), Flags("pipeline=x")), HasSubstr("--mesh"));
  EXPECT_THAT(error(Ring(), Flags("tensor=2")), HasSubstr("--profile: expected one recorded with"));
  EXPECT_THAT(error(Ring(), Flags("shard=2")), HasSubstr("--zero: expected 1 to 3 with shard=2"));
  PredictOptions sharded = Ring();
  sharded.zeros = {"2"};
  EXPECT_THAT(error(sharded, Flags("data=2,pipeline=2")), HasSubstr("--zero: expected 0 or 1"));
  EXPECT_THAT(error(sharded, Flags("shard=2")), HasSubstr("--micro_batches: expected 1 with"));
  EXPECT_THAT(error(Ring(), Flags("pipeline=4")), HasSubstr("--mesh"));
  MeshFlags schedule = Flags("pipeline=2");
  schedule.schedules = {"pipedream"};
  EXPECT_THAT(error(Ring(), schedule), HasSubstr("--pipeline_schedule"));
  MeshFlags count = Flags("pipeline=2");
  count.micro_batches = {"0"};
  EXPECT_THAT(error(Ring(), count), HasSubstr("--micro_batches"));
  MeshFlags split = Flags("pipeline=2");
  split.splits = "7";
  EXPECT_THAT(error(Ring(), split), HasSubstr("--split"));
  PredictOptions few;
  few.topologies = {"ps"};
  few.servers = {"1"};
  EXPECT_THAT(error(few, Flags("data=2,pipeline=2")), HasSubstr("--mesh"));
  PredictOptions odd = Ring();
  odd.global_batch_size = 7;
  EXPECT_THAT(error(odd, Flags("data=2,pipeline=2")), HasSubstr("--global_batch_size"));
}

}  // namespace
}  // namespace gradsync
