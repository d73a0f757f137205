#include "benchmarks/replay/replay_cases.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/write_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string WriteProfile(const std::string& name, int batch_size = 32,
                         const std::string& model = "toy") {
  const std::string path = absl::StrCat(testing::TempDir(), "/", name, ".json");
  const absl::Status written = WriteFileAtomically(
      path, absl::StrCat(R"({"model": ")", model, R"(", "batch_size": )", batch_size,
                         R"(, "forward_us": 10, "backward_us": )", batch_size,
                         R"(, "tensors": [{"name": "weight", "numel": 1000, "ready_us": 10}]})"));
  EXPECT_TRUE(written.ok()) << written;
  return path;
}

ReplaySweepOptions Options() {
  ReplaySweepOptions options;
  options.profiles = {WriteProfile("toy")};
  return options;
}

std::vector<std::string> Described(const ReplaySweepOptions& options) {
  const auto cases = ListReplayCases(options);
  EXPECT_TRUE(cases.ok()) << cases.status();
  std::vector<std::string> described;
  for (const ReplayCase& replay : cases.value_or(std::vector<ReplayCase>())) {
    described.push_back(Describe(replay));
  }
  return described;
}

TEST(ReplayCasesTest, TheSweepIsTheProductWithTopologiesSideBySide) {
  ReplaySweepOptions options = Options();
  options.topologies = {"ring", "ps", "local"};
  options.workers = {"2", "4"};
  options.servers = {"1", "2"};
  options.bucket_bytes = {"1MiB"};
  EXPECT_THAT(Described(options), ElementsAre("toy: ring, workers 2, buckets of 1MiB",
                                              "toy: ps, servers 1, workers 2, buckets of 1MiB",
                                              "toy: ps, servers 2, workers 2, buckets of 1MiB",
                                              "toy: local, workers 2, buckets of 1MiB",
                                              "toy: ring, workers 4, buckets of 1MiB",
                                              "toy: ps, servers 1, workers 4, buckets of 1MiB",
                                              "toy: ps, servers 2, workers 4, buckets of 1MiB",
                                              "toy: local, workers 4, buckets of 1MiB"));
}

TEST(ReplayCasesTest, EveryFlagSweeps) {
  ReplaySweepOptions options = Options();
  options.profiles.push_back(WriteProfile("other"));
  options.topologies = {"ring"};
  options.links = {"grpc", "shm"};
  options.updates = {"worker", "owner"};
  options.bucket_bytes = {"64KiB", "1MiB"};
  options.compute_scales = {"0.5", "2"};
  const std::vector<std::string> described = Described(options);
  EXPECT_EQ(described.size(), 32u);
  EXPECT_THAT(described, Contains("other: ring over shm, update at owner, workers 2, buckets of "
                                  "64KiB, compute times 0.5"));
}

TEST(ReplayCasesTest, WhatCannotBeIsLeftOut) {
  ReplaySweepOptions options = Options();
  options.topologies = {"ring", "ps", "local"};
  options.links = {"grpc", "gloo"};
  options.compressions = {"none", "topk:0.1"};
  EXPECT_THAT(Described(options),
              ElementsAre("toy: ring over grpc, workers 2, buckets of 25MiB",
                          "toy: ring over gloo, workers 2, buckets of 25MiB",
                          "toy: ps over grpc, servers 1, workers 2, buckets of 25MiB",
                          "toy: local, workers 2, buckets of 25MiB",
                          "toy: ps over grpc, topk:0.1, servers 1, workers 2, buckets of 25MiB"));
}

TEST(ReplayCasesTest, OnlyServersThatUpdateOverGrpcAreAskedForOtherConsistencies) {
  ReplaySweepOptions options = Options();
  options.topologies = {"ring", "ps"};
  options.links = {"grpc", "shm"};
  options.updates = {"worker", "owner"};
  options.compressions = {"none", "bf16"};
  options.consistencies = {"bsp", "ssp:2", "asp"};
  std::vector<std::string> unbounded;
  for (const std::string& described : Described(options)) {
    if (absl::StrContains(described, "ssp:2") || absl::StrContains(described, "asp")) {
      unbounded.push_back(described);
    }
  }
  EXPECT_THAT(
      unbounded,
      ElementsAre(
          "toy: ps over grpc, update at owner, ssp:2, servers 1, workers 2, buckets of 25MiB",
          "toy: ps over grpc, update at owner, asp, servers 1, workers 2, buckets of 25MiB"));
}

TEST(ReplayCasesTest, ConsistenciesAreMeasuredOneAfterTheOtherWithTheRingBesideBsp) {
  ReplaySweepOptions options = Options();
  options.topologies = {"ring", "ps"};
  options.updates = {"owner"};
  options.bucket_bytes = {"1MiB"};
  options.consistencies = {"bsp", "ssp:0"};
  EXPECT_THAT(
      Described(options),
      ElementsAre("toy: ring, update at owner, workers 2, buckets of 1MiB",
                  "toy: ps, update at owner, servers 1, workers 2, buckets of 1MiB",
                  "toy: ps, update at owner, ssp:0, servers 1, workers 2, buckets of 1MiB"));
}

TEST(ReplayCasesTest, OnAnEmulatedNetworkServersHavePlacesThatFit) {
  ReplaySweepOptions options = Options();
  options.topologies = {"ps"};
  options.servers = {"1", "2", "3"};
  options.placements = {"dedicated", "colocated", "mixed"};
  options.bandwidths = {"400mbit", "1gbit"};
  options.bucket_bytes = {"1MiB"};
  const std::vector<std::string> described = Described(options);
  ASSERT_EQ(described.size(), 12u);  // two colocated, one mixed
  EXPECT_EQ(described[0], "toy: ps, servers 1, workers 2, 400mbit, buckets of 1MiB");
  EXPECT_EQ(described[5], "toy: ps, servers 1 mixed, workers 2, 400mbit, buckets of 1MiB");
  EXPECT_EQ(described[6], "toy: ps, servers 1, workers 2, 1gbit, buckets of 1MiB");
}

TEST(ReplayCasesTest, UnderStrongScalingWorkersReplayTheProfileOfTheirPartOfTheBatch) {
  ReplaySweepOptions options = Options();
  options.profiles = {WriteProfile("b16", 16), WriteProfile("b64", 64), WriteProfile("b32", 32)};
  options.topologies = {"ring"};
  options.workers = {"1", "2", "4"};
  options.global_batch_size = 64;
  const auto cases = ListReplayCases(options);
  ASSERT_TRUE(cases.ok()) << cases.status();
  std::vector<int> batches;
  for (const ReplayCase& replay : *cases) {
    EXPECT_EQ(replay.profile_name, "toy:64");
    EXPECT_EQ(replay.global_batch_size, 64);
    EXPECT_EQ(replay.one_worker_us, 10 + 64);
    batches.push_back(replay.spec.profile().batch_size());
  }
  EXPECT_THAT(batches, ElementsAre(64, 32, 16));
}

TEST(ReplayCasesTest, ACaseBecomesTheSpecOfItsRanks) {
  ReplaySweepOptions options = Options();
  options.topologies = {"ps"};
  options.updates = {"owner"};
  options.consistencies = {"ssp:3"};
  options.bucket_bytes = {"64KiB"};
  options.compute_scales = {"0.5"};
  options.straggler = "1:3";
  options.steps = 12;
  options.warmup_steps = 2;
  const auto cases = ListReplayCases(options);
  ASSERT_TRUE(cases.ok()) << cases.status();
  proto::RankSpec spec = RankSpecOf((*cases)[0]);
  EXPECT_EQ(spec.job().topology(), "ps");
  EXPECT_EQ(spec.job().consistency(), "ssp:3");
  EXPECT_EQ(spec.replay().profile().tensors_size(), 1);
  spec.mutable_replay()->clear_profile();
  EXPECT_EQ(spec.replay().ShortDebugString(),
            "compute_scale: 0.5 straggler: \"1:3\" steps: 10 warmup_steps: 2 bucket_bytes: 65536 "
            "first_bucket_bytes: 65536");
}

TEST(ReplayCasesTest, WorkersOfTopologyLocalHaveAPlanEach) {
  ReplaySweepOptions options = Options();
  options.topologies = {"local", "ring"};
  options.workers = {"4"};
  const auto cases = ListReplayCases(options);
  ASSERT_TRUE(cases.ok()) << cases.status();
  const auto plan_of = [](const ReplayCase& replay) {
    return ReplayPlan(replay.spec, replay.job.spec, replay.job.workers).value();
  };
  EXPECT_EQ(plan_of((*cases)[0]).world_size(), 1);
  EXPECT_EQ(plan_of((*cases)[1]).world_size(), 4);
}

TEST(ReplayCasesTest, BadFlagsAreNamed) {
  const struct {
    void (*change)(ReplaySweepOptions*);
    const char* expected;
  } cases[] = {
      {[](ReplaySweepOptions* o) { o->topologies = {"star"}; }, "--topology: "},
      {[](ReplaySweepOptions* o) { o->links = {"carrier_pigeon"}; }, "--link: "},
      {[](ReplaySweepOptions* o) { o->links = {"gloo"}; }, "--link: expected grpc too"},
      {[](ReplaySweepOptions* o) { o->updates = {}; }, "--update: "},
      {[](ReplaySweepOptions* o) { o->workers = {"0"}; }, "--workers: "},
      {[](ReplaySweepOptions* o) { o->servers = {"many"}; }, "--servers: "},
      {[](ReplaySweepOptions* o) { o->placements = {"above"}; }, "--placement: "},
      {[](ReplaySweepOptions* o) { o->placements = {"mixed"}; }, "--placement: "},
      {[](ReplaySweepOptions* o) { o->bandwidths = {"fast"}; }, "--bandwidth: "},
      {[](ReplaySweepOptions* o) {
         o->bandwidths = {"1gbit"};
         o->links = {"shm"};
       },
       "--link: "},
      {[](ReplaySweepOptions* o) {
         o->bandwidths = {"1gbit"};
         o->placements = {"colocated"};
         o->servers = {"3"};
       },
       "--placement: expected at most as many --servers as --workers"},
      {[](ReplaySweepOptions* o) { o->bucket_bytes = {"lots"}; }, "--bucket_bytes: "},
      {[](ReplaySweepOptions* o) { o->chunk_bytes = "100"; }, "--chunk_bytes: "},
      {[](ReplaySweepOptions* o) { o->compressions = {"zip"}; }, "--compression: "},
      {[](ReplaySweepOptions* o) { o->consistencies = {"later"}; }, "--consistency: expected bsp"},
      {[](ReplaySweepOptions* o) { o->consistencies = {}; }, "--consistency: "},
      {[](ReplaySweepOptions* o) {
         o->consistencies = {"bsp", "asp"};
       },
       "--consistency: expected bsp without owner"},
      {[](ReplaySweepOptions* o) {
         o->updates = {"owner"};
         o->topologies = {"ring"};
         o->consistencies = {"ssp:2"};
       },
       "--consistency: expected bsp without ps"},
      {[](ReplaySweepOptions* o) {
         o->updates = {"owner"};
         o->consistencies = {"ssp:2", "asp"};
       },
       "--consistency: expected bsp too, for --topology=ring, found \"ssp:2,asp\""},
      {[](ReplaySweepOptions* o) { o->compute_scales = {"-1"}; }, "--compute_scale: "},
      {[](ReplaySweepOptions* o) { o->compute_scales = {"nan"}; }, "--compute_scale: "},
      {[](ReplaySweepOptions* o) { o->straggler = "2:2"; }, "--straggler: expected a rank from 0"},
      {[](ReplaySweepOptions* o) { o->straggler = "0:0.5"; }, "--straggler: expected RANK:FACTOR"},
      {[](ReplaySweepOptions* o) { o->warmup_steps = 0; }, "--warmup_steps: "},
      {[](ReplaySweepOptions* o) { o->steps = 3; }, "--steps: expected more than"},
      {[](ReplaySweepOptions* o) { o->connections = -1; }, "--connections: "},
      {[](ReplaySweepOptions* o) { o->timeout = absl::ZeroDuration(); }, "--timeout: "},
      {[](ReplaySweepOptions* o) { o->profiles = {"/nowhere/x.json"}; }, "/nowhere/x.json"},
      {[](ReplaySweepOptions* o) { o->global_batch_size = -1; }, "--global_batch_size: "},
      {[](ReplaySweepOptions* o) { o->global_batch_size = 33; }, "--global_batch_size: expected a"},
      {[](ReplaySweepOptions* o) { o->global_batch_size = 32; },
       "--replay: expected a profile with a batch of 16, for 2 workers"},
      {[](ReplaySweepOptions* o) {
         o->profiles.push_back(WriteProfile("other", 16, "another"));
         o->global_batch_size = 32;
       },
       "--replay: expected profiles of one model"},
  };
  for (const auto& c : cases) {
    ReplaySweepOptions options = Options();
    c.change(&options);
    const auto listed = ListReplayCases(options);
    ASSERT_FALSE(listed.ok()) << c.expected;
    EXPECT_THAT(listed.status().message(), HasSubstr(c.expected));
    EXPECT_FALSE(absl::StrContains(listed.status().message(), "\n"));
  }
}

}  // namespace
}  // namespace gradsync
