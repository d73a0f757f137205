#include "benchmarks/comparison/compare_prediction.h"

#include <map>

#include "core/plan/stripes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

CompareOptions With(const std::vector<std::string>& flags) {
  CompareOptions options;
  options.worker_flags = flags;
  return options;
}

TEST(FollowedFlagsTest, WithoutFlagsAJobHasItsDefaults) {
  const absl::StatusOr<FollowedFlags> followed = FollowFlags(With({}));
  ASSERT_TRUE(followed.ok()) << followed.status();
  PredictedJob job;
  job.placed.bandwidth = "400mbit";
  followed->ApplyTo(&job);
  EXPECT_EQ(job.bucket_bytes, PredictedJob().bucket_bytes);
  EXPECT_EQ(job.first_bucket_bytes, PredictedJob().first_bucket_bytes);
  EXPECT_EQ(job.chunk_bytes, kNetworkChunks);
  EXPECT_EQ(job.placed.spec.connections, 0);
  EXPECT_THAT(followed->recorded, ElementsAre());
}

// They were ignored, and predictions were of another job.
TEST(FollowedFlagsTest, SizesAndConnectionsAreThoseOfTheWorkers) {
  const absl::StatusOr<FollowedFlags> followed =
      FollowFlags(With({"--bucket_bytes=4MiB", "-first_bucket_bytes=2MiB", "--chunk_bytes=256KiB",
                        "--connections=3", "--chunk_bytes=128KiB"}));
  ASSERT_TRUE(followed.ok()) << followed.status();
  PredictedJob job;
  job.placed.bandwidth = "400mbit";
  followed->ApplyTo(&job);
  EXPECT_EQ(job.bucket_bytes, 4 << 20);
  EXPECT_EQ(job.first_bucket_bytes, 2 << 20);
  EXPECT_EQ(job.chunk_bytes, 128 << 10);
  EXPECT_EQ(job.placed.spec.connections, 3);
}

TEST(FollowedFlagsTest, AStepIsRecordedAsWorkersCompute) {
  CompareOptions options = With({"--gpt_layers=3", "--evaluate", "--weight_decay=0"});
  options.compute.precision = Precision::kBf16;
  options.compute.channels_last = true;
  const absl::StatusOr<FollowedFlags> followed = FollowFlags(options);
  ASSERT_TRUE(followed.ok()) << followed.status();
  EXPECT_THAT(followed->recorded,
              ElementsAre("--precision=bf16", "--channels_last", "--gpt_layers=3"));
}

TEST(FollowedFlagsTest, OtherFlagsAreNotPredicted) {
  const auto message = [](const std::string& flag) {
    return std::string(FollowFlags(With({flag})).status().message());
  };
  for (const char* flag : {"--accumulate=4", "--activation_checkpointing", "--optimizer=adam",
                           "--config=job.txt", "--server_weights=1,2"}) {
    EXPECT_THAT(message(flag), HasSubstr(flag));
  }
  EXPECT_THAT(message("--bucket_bytes=x"), HasSubstr("--bucket_bytes"));
  EXPECT_THAT(message("--connections"), HasSubstr("--connections: expected a number"));
}

// 4 MB of gradients that are ready at once after 10 ms, on a network that takes 80.
proto::StepProfile Profile() {
  proto::StepProfile profile;
  profile.set_model("m");
  profile.set_batch_size(8);
  profile.set_backward_us(10000);
  proto::ProfiledTensor* const tensor = profile.add_tensors();
  tensor->set_name("t");
  tensor->set_numel(1000000);
  tensor->set_ready_us(10000);
  return profile;
}

Configuration Ring(int workers) {
  Configuration c;
  c.job.spec.topology = Topology::kRing;
  c.job.spec.link = Link::kGrpc;
  c.job.workers = workers;
  c.job.bandwidth = "400mbit";
  c.batch_size = 8;
  return c;
}

Configuration Ps(int workers, int servers, Placement placement) {
  Configuration c = Ring(workers);
  c.job.spec.topology = Topology::kPs;
  c.job.servers = servers;
  c.job.placement = placement;
  return c;
}

// At the bandwidth that is measured, or at the others.
std::vector<proto::Run> Predict(const CompareOptions& options,
                                const std::vector<Configuration>& configurations,
                                const EmulatedHosts& hosts = {}, bool others = false) {
  const absl::StatusOr<std::vector<proto::Run>> runs =
      PredictCompared(Profile(), options, configurations, hosts);
  EXPECT_TRUE(runs.ok()) << runs.status();
  std::vector<proto::Run> some;
  if (!runs.ok()) return some;
  for (const proto::Run& run : *runs) {
    if ((run.bandwidth() != "400mbit") == others) some.push_back(run);
  }
  return some;
}

TEST(ComparePredictionTest, EachSeriesGoesOnToMoreWorkersOnce) {
  std::map<int, double> step_ms;
  for (const proto::Run& run : Predict({}, {Ring(2), Ring(3)})) {
    EXPECT_TRUE(step_ms.emplace(run.workers(), run.step_ms_p50()).second) << run.workers();
  }
  EXPECT_EQ(step_ms.size(), 8u);  // 1, 2, 3, 4, 8, 16, 32, 64
  // 4 MB at 50 MB/s and more than the load of 1, and of nearly 2.
  EXPECT_GT(step_ms[2], 10 + 80);
  EXPECT_GT(step_ms[64], 10 + 2 * 80 * 63.0 / 64);
}

// Chunks were predicted as without a network, five times as large.
TEST(ComparePredictionTest, ChunksAreThoseThatWorkersOnANetworkHave) {
  for (const proto::Run& run : Predict({}, {Ring(2), Ps(2, 1, Placement::kDedicated)})) {
    const int64_t most = NetworkChunkBytes(static_cast<int64_t>(run.bytes()), run.workers());
    EXPECT_LE(run.chunk_bytes(), most) << run.workers();
    EXPECT_GT(run.chunk_bytes(), most / 2) << run.workers();
  }
}

// Flags behind the "--" changed what was measured, and not what was predicted.
TEST(ComparePredictionTest, WhatWorkersAreToldIsPredictedOrNothingIs) {
  CompareOptions options;
  options.worker_flags = {"--chunk_bytes=256KiB", "--connections=1"};
  const std::vector<proto::Run> runs = Predict(options, {Ring(2)});
  ASSERT_FALSE(runs.empty());
  for (const proto::Run& run : runs) {
    EXPECT_EQ(run.connections(), 1);
    EXPECT_LE(run.chunk_bytes(), 256 << 10) << run.workers();
    if (run.workers() == 2) {
      EXPECT_GT(run.chunk_bytes(), 128 << 10);
    }
  }
  options.worker_flags = {"--accumulate=2"};
  EXPECT_EQ(PredictCompared(Profile(), options, {Ring(2)}, {}).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(ComparePredictionTest, WhatCannotBeIsLeftOut) {
  for (const proto::Run& run : Predict({}, {Ps(2, 2, Placement::kColocated)}))
    EXPECT_GE(run.workers(), 2);
  CompareOptions strong;
  strong.global_batch_size = 16;
  for (const proto::Run& run : Predict(strong, {Ring(2)})) {
    EXPECT_LE(run.workers(), 16);
    EXPECT_EQ(run.batch_size(), 16 / run.workers());
  }
  CompareOptions random;
  random.straggler = "random:1:0.5:2";
  EXPECT_TRUE(Predict(random, {Ring(2)}).empty());
}

// Three workers on two cores were predicted as if each had its own.
TEST(ComparePredictionTest, WorkersThatAreMeasuredTakeTurnsOnTheCores) {
  EmulatedHosts hosts;
  hosts.cores = 2;
  std::map<int, double> alone;
  for (const proto::Run& run : Predict({}, {Ring(4)})) alone[run.workers()] = run.step_ms_p50();
  for (const proto::Run& run : Predict({}, {Ring(4)}, hosts)) {
    const double longer = run.workers() == 4 ? 10 : 0;  // two turns of 10 ms of backward
    EXPECT_NEAR(run.step_ms_p50(), alone[run.workers()] + longer, 1e-6) << run.workers();
  }
}

TEST(ComparePredictionTest, ANetworkCarriesWhatWasMeasuredAndOthersTheMean) {
  EmulatedHosts hosts;
  hosts.rate_factors = {{"400mbit", 0.5}, {"100mbit", 0.4}};
  const std::vector<proto::Run> slow = Predict({}, {Ring(2)}, hosts);
  ASSERT_GE(slow.size(), 2u);
  EXPECT_GT(slow[1].step_ms_p50(), 10 + 4e3 / 50 / 0.5);
  for (const proto::Run& run : Predict({}, {Ring(2)}, hosts, /*others=*/true)) {
    if (run.bandwidth() != "200mbit") continue;
    EXPECT_GT(run.step_ms_p50(), 10 + 4e3 / 25 / 0.45);
    EXPECT_LT(run.step_ms_p50(), 10 + 4e3 / 25 / 0.4);
  }
}

TEST(ComparePredictionTest, OtherBandwidthsArePredictedForTheMostWorkersAndOneServerBesides) {
  const std::vector<Configuration> measured = {Ring(2), Ring(3), Ps(3, 3, Placement::kDedicated)};
  std::map<std::string, double> ring;
  for (const proto::Run& run : Predict({}, measured, {}, /*others=*/true)) {
    EXPECT_EQ(run.workers(), 3);
    if (run.topology() != "ring") continue;
    EXPECT_TRUE(ring.emplace(run.bandwidth(), run.step_ms_p50()).second) << run.bandwidth();
  }
  EXPECT_GT(ring["25mbit"], 10 * ring["1gbit"]);
  double one_server = 0;
  int rings = 0;
  for (const proto::Run& run : Predict({}, measured)) {
    rings += run.topology() == "ring" && run.workers() == 3;
    if (run.servers() == 1) one_server = run.step_ms_p50();
  }
  EXPECT_EQ(rings, 1);                 // what is measured is predicted once
  EXPECT_GT(one_server, 10 + 3 * 80);  // three workers' bytes on one link
}

TEST(ComparePredictionTest, AStragglerMakesTheStepLonger) {
  CompareOptions slow;
  slow.straggler = "1:3";
  const std::vector<proto::Run> with = Predict(slow, {Ring(2)});
  const std::vector<proto::Run> without = Predict({}, {Ring(2)});
  ASSERT_FALSE(with.empty());
  EXPECT_EQ(with[0].workers(), 2);  // there is no rank 1 of 1
  // Backward takes 20 ms longer; how far that puts ranks out of step is the simulator's.
  EXPECT_GT(with[0].step_ms_p50(), without[1].step_ms_p50() + 19);
  EXPECT_LT(with[0].step_ms_p50(), without[1].step_ms_p50() + 25);
}

}  // namespace
}  // namespace gradsync
