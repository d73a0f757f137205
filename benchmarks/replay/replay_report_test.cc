#include "benchmarks/replay/replay_report.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

proto::WorkerMetrics Metrics(int rank, std::vector<double> step_ms) {
  proto::WorkerMetrics metrics;
  metrics.set_rank(rank);
  metrics.set_topology("ring");
  metrics.set_link("grpc");
  metrics.set_update("worker");
  metrics.set_batch_size(32);
  metrics.set_straggler("1:2");
  metrics.set_bucket_bytes(1 << 20);
  metrics.set_cpu_share(0.4);
  for (double ms : step_ms) {
    metrics.add_step_ms(ms);
    metrics.add_data_ms(0);
    metrics.add_forward_ms(10);
    metrics.add_backward_ms(20);
    metrics.add_exposed_ms(ms - 32);
    metrics.add_update_ms(2);
    metrics.add_late_ms(0.1);
  }
  metrics.set_wire_tx_bytes_per_step(1000 + rank);
  metrics.set_wire_rx_bytes_per_step(2000 + rank);
  metrics.set_wrong(rank);
  return metrics;
}

ReplayCase Case() {
  ReplayCase replay;
  replay.job.workers = 2;
  replay.profile_name = "toy";
  replay.one_worker_us = 32000;
  replay.spec.mutable_profile()->set_forward_us(10000);
  replay.spec.mutable_profile()->set_backward_us(20000);
  replay.spec.mutable_profile()->set_update_us(2000);
  replay.spec.set_compute_scale(0.5);
  replay.spec.set_bucket_bytes(1 << 20);
  replay.spec.set_first_bucket_bytes(1 << 20);
  return replay;
}

TEST(ReplayReportTest, TheRunSaysWhatWasReplayed) {
  const auto run =
      SummarizeReplay(Case(), {Metrics(0, {38, 40, 42}), Metrics(1, {39, 40, 39})}, {});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->profile(), "toy");
  EXPECT_EQ(run->straggler(), "1:2");
  EXPECT_EQ(run->compute_scale(), 0.5);
  EXPECT_EQ(run->step_ms_p50(), 40);
  EXPECT_EQ(run->exposed_ms_p50(), 8);
  EXPECT_NEAR(run->scaling_efficiency(), 0.4, 1e-9);
  EXPECT_EQ(run->wire_tx_bytes_max_node(), 1001);
  EXPECT_EQ(run->wrong(), 1);
  EXPECT_EQ(run->cpu_share(), 0.4);
  EXPECT_NEAR(run->late_ms_p90(), 0.1, 1e-9);
  EXPECT_EQ(run->invalid(), "");
}

// Each of two servers beside a worker has half of the parameters; a worker's own half stays on its
// host.
TEST(ReplayReportTest, BytesAreThoseThatLeaveHosts) {
  ReplayCase replay = Case();
  replay.job.spec.topology = Topology::kPs;
  replay.job.placement = Placement::kColocated;
  replay.job.servers = 2;
  replay.job.bandwidth = "1gbit";
  proto::ProfiledTensor& tensor = *replay.spec.mutable_profile()->add_tensors();
  tensor.set_name("weight");
  tensor.set_numel(1 << 20);
  constexpr double kBytes = 4 << 20;
  std::vector<proto::WorkerMetrics> workers = {Metrics(0, {40}), Metrics(1, {40})};
  for (proto::WorkerMetrics& worker : workers) {
    worker.set_topology("ps");
    worker.set_wire_tx_bytes_per_step(kBytes);
    worker.set_wire_rx_bytes_per_step(kBytes);
  }
  std::vector<proto::ServerMetrics> servers(2);
  for (proto::ServerMetrics& server : servers) {
    server.set_wire_tx_bytes_per_step(kBytes);
    server.set_wire_rx_bytes_per_step(kBytes);
  }
  const auto run = SummarizeReplay(replay, workers, servers);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->wire_tx_bytes_max_node(), kBytes);
  EXPECT_EQ(run->wire_rx_bytes_max_node(), kBytes);
  EXPECT_EQ(run->wire_tx_bytes_total(), 2 * kBytes);
  EXPECT_EQ(run->placement(), "colocated");
  EXPECT_EQ(run->servers(), 2);
}

// What a slice tells its server beside it was looked for between the first ranks of all slices.
TEST(ReplayReportTest, BytesOfSlicesAreThoseThatLeaveHosts) {
  ReplayCase replay = Case();
  replay.job.spec.topology = Topology::kPs;
  replay.job.workers = 4;
  replay.job.servers = 2;
  replay.job.placement = Placement::kColocated;
  replay.job.bandwidth = "1gbit";
  replay.spec.set_mesh("data=2,tensor=2");
  replay.spec.set_pipeline_schedule("1f1b");
  replay.spec.set_micro_batches(1);
  replay.spec.set_step_samples(32);
  proto::StepProfile& profile = *replay.spec.mutable_profile();
  profile.set_batch_size(32);
  proto::ProfiledTensor& tensor = *profile.add_tensors();
  tensor.set_name("weight");
  tensor.set_numel(1 << 20);
  tensor.set_ready_us(30000);
  proto::ProfiledBlock& block = *profile.add_blocks();
  block.set_name("block");
  block.set_forward_us(10000);
  block.set_backward_us(20000);
  block.add_tensors("weight");
  constexpr double kBytes = 4 << 20;
  std::vector<proto::WorkerMetrics> workers;
  for (int rank = 0; rank < 4; ++rank) {
    proto::WorkerMetrics& worker = workers.emplace_back(Metrics(rank, {40}));
    worker.set_topology("ps");
    worker.set_mesh(replay.spec.mesh());
    worker.set_wire_tx_bytes_per_step(kBytes);
    worker.set_wire_rx_bytes_per_step(kBytes);
  }
  std::vector<proto::ServerMetrics> servers(2);
  for (proto::ServerMetrics& server : servers) {
    server.set_wire_tx_bytes_per_step(2 * kBytes);
    server.set_wire_rx_bytes_per_step(2 * kBytes);
  }
  const auto run = SummarizeReplay(replay, workers, servers);
  ASSERT_TRUE(run.ok()) << run.status();
  // Ranks 0 and 1 have each a server beside them, to which ranks 2 and 3 send.
  EXPECT_EQ(run->wire_tx_bytes_max_node(), kBytes);
  EXPECT_EQ(run->wire_rx_bytes_max_node(), kBytes);
  EXPECT_EQ(run->wire_tx_bytes_total(), 4 * kBytes);
}

TEST(ReplayReportTest, ARunThatTheMachineCouldNotReplayIsInvalid) {
  std::vector<proto::WorkerMetrics> metrics = {Metrics(0, {40, 40}), Metrics(1, {40, 40})};
  metrics[1].set_late_ms(0, 3);
  metrics[0].set_late_ms(1, 4);
  EXPECT_THAT(SummarizeReplay(Case(), metrics, {})->invalid(), HasSubstr("3.9 ms late"));

  metrics = {Metrics(0, {40, 40}), Metrics(1, {40, 40})};
  metrics[0].set_cpu_share(0.8);
  EXPECT_EQ(SummarizeReplay(Case(), metrics, {})->invalid(), "");
  ReplayCase emulated = Case();
  emulated.job.bandwidth = "400mbit";
  EXPECT_THAT(SummarizeReplay(emulated, metrics, {})->invalid(), HasSubstr("80 %"));
}

TEST(ReplayReportTest, APredictionStandsBesideTheMeasurementWithItsError) {
  const auto run = SummarizeReplay(Case(), {Metrics(0, {40})}, {});
  ASSERT_TRUE(run.ok());
  proto::Run predicted;
  predicted.set_step_ms_p50(41);
  EXPECT_THAT(ReplayLine(*run, &predicted), HasSubstr("41.00   +2.5%"));
  EXPECT_THAT(ReplayLine(*run, nullptr), HasSubstr("straggler: 1:2"));
}

proto::WorkerMetrics Unbounded(int rank, double step_ms, int steps) {
  proto::WorkerMetrics metrics = Metrics(rank, std::vector<double>(steps, step_ms));
  metrics.set_topology("ps");
  metrics.set_update("owner");
  metrics.set_consistency("asp");
  for (int step = 1; step <= steps; ++step) metrics.add_step_end_seconds(1e-3 * step * step_ms);
  return metrics;
}

// While rank 0 does four steps of 40 ms, rank 1 does two of 80.
TEST(ReplayReportTest, WhoDoesNotWaitHasTheRateOfTheGroup) {
  ReplayCase replay = Case();
  replay.job.spec.consistency = *ParseConsistency("asp");
  std::vector<proto::WorkerMetrics> metrics = {Unbounded(0, 40, 4), Unbounded(1, 80, 4)};
  for (double steps : {1, 0, 3}) metrics[0].add_staleness_histogram(steps);
  metrics[0].set_max_staleness(2);
  metrics[1].add_staleness_histogram(4);
  const auto run = SummarizeReplay(replay, metrics, {});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->consistency(), "asp");
  EXPECT_EQ(run->max_staleness(), 2);
  EXPECT_DOUBLE_EQ(run->steps_per_s(), 18.75);
  EXPECT_NEAR(run->scaling_efficiency(), 0.016 * 18.75, 1e-9);
  proto::Run predicted;
  predicted.set_step_ms_p50(1e3 / 20);
  predicted.set_steps_per_s(20);
  const std::string line = ReplayLine(*run, &predicted);
  EXPECT_THAT(line, HasSubstr("group: asp, 18.750 steps per s, predicted 20.000 (+6.7%); % of"));
  EXPECT_THAT(line, HasSubstr("of the slowest: 62 0 38\n"));
  EXPECT_THAT(line, Not(HasSubstr("50.00")));  // a step of whom?
}

TEST(ReplayReportTest, TheGroupsRateIsThereForStragglersAndForNobodyElse) {
  auto run = SummarizeReplay(Case(), {Metrics(0, {40})}, {});
  ASSERT_TRUE(run.ok());
  run->set_steps_per_s(25);
  EXPECT_THAT(ReplayLine(*run, nullptr), HasSubstr("group: bsp, 25.000 steps per s\n"));
  run->set_straggler("");
  EXPECT_THAT(ReplayLine(*run, nullptr), Not(HasSubstr("group")));
}

TEST(ReplayReportTest, WhatWasNotVerifiedIsNotSaidToBeRight) {
  auto run = SummarizeReplay(Case(), {Metrics(0, {40})}, {});
  ASSERT_TRUE(run.ok());
  EXPECT_THAT(ReplayLine(*run, nullptr), HasSubstr(" 0\n  straggler"));
  run->set_compression("bf16");
  EXPECT_THAT(ReplayLine(*run, nullptr), HasSubstr(" -\n  compression: bf16"));
}

}  // namespace
}  // namespace gradsync
