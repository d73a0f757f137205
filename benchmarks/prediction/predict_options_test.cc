#include "benchmarks/prediction/predict_options.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

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

}  // namespace
}  // namespace gradsync
