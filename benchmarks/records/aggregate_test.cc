#include "benchmarks/records/aggregate.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

TEST(PayloadTest, RanksComeBeforeServersAndTheMostOfOneNodeIsKept) {
  std::vector<proto::WorkerMetrics> ranks(2);
  ranks[0].set_wire_tx_bytes_per_step(10);
  ranks[1].set_wire_rx_bytes_per_step(20);
  std::vector<proto::ServerMetrics> servers(1);
  servers[0].set_wire_tx_bytes_per_step(30);
  const std::vector<WirePayload> counted = CountedPayload(ranks, servers);
  ASSERT_EQ(counted.size(), 3u);
  EXPECT_EQ(counted[2].tx_bytes, 30);
  proto::Run run;
  SetWire(counted, &run);
  EXPECT_EQ(run.wire_tx_bytes_max_node(), 30);
  EXPECT_EQ(run.wire_rx_bytes_max_node(), 20);
  EXPECT_EQ(run.wire_tx_bytes_total(), 40);
}

TEST(PayloadTest, WhatStaysOnAHostIsNotCounted) {
  // A worker and a server on each of two hosts.
  const std::vector<int> hosts = {0, 1, 0, 1};
  const std::vector<Flow> flows = {{0, 2, 5, 1}, {0, 3, 7, 1}, {3, 1, 100, 1}};
  const std::vector<WirePayload> hosts_payload =
      PayloadByHost({{12, 0}, {0, 100}, {0, 5}, {100, 7}}, flows, hosts);
  ASSERT_EQ(hosts_payload.size(), 2u);
  EXPECT_EQ(hosts_payload[0].tx_bytes, 7);
  EXPECT_EQ(hosts_payload[0].rx_bytes, 0);
  EXPECT_EQ(hosts_payload[1].tx_bytes, 0);
  EXPECT_EQ(hosts_payload[1].rx_bytes, 7);
}

TEST(PayloadTest, FlowsAreThoseOfTheTopologyAndWorkersThatDoNotMeetHaveNone) {
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  const absl::StatusOr<Plan> plan =
      Plan::FromBuckets({{"w", {64}, {1}, 0}}, {{0}}, optimizer, /*world_size=*/2,
                        /*chunk_bytes=*/0);
  ASSERT_TRUE(plan.ok()) << plan.status();
  PlacedJob job;
  job.workers = 2;
  EXPECT_TRUE(JobFlows(*plan, job)->empty());
  job.spec.topology = Topology::kRing;
  EXPECT_EQ(JobFlows(*plan, job)->size(), RingStepFlows(*plan).size());
  job.spec.topology = Topology::kPs;
  job.servers = 2;
  job.placement = Placement::kDedicated;
  const absl::StatusOr<std::vector<Flow>> flows = JobFlows(*plan, job);
  ASSERT_TRUE(flows.ok()) << flows.status();
  for (const Flow& flow : *flows) EXPECT_NE(flow.from < 2, flow.to < 2);
  EXPECT_FALSE(JobFlows(*plan, job, {-1, 1}).ok());
}

proto::WorkerMetrics Worker(int rank, const std::vector<double>& step_ms) {
  proto::WorkerMetrics metrics;
  metrics.set_rank(rank);
  metrics.set_topology("ps");
  metrics.set_batch_size(32);
  metrics.set_params_sha256("abc");
  for (double ms : step_ms) {
    metrics.add_step_ms(ms);
    metrics.add_data_ms(1);
    metrics.add_forward_ms(2);
    metrics.add_backward_ms(3);
    metrics.add_exposed_ms(ms - 10);
    metrics.add_update_ms(4);
  }
  metrics.set_wire_tx_bytes_per_step(100 + rank);
  metrics.set_wire_rx_bytes_per_step(200 + rank);
  metrics.set_cpu_seconds(0.5);
  return metrics;
}

proto::ServerMetrics Server(double tx, double rx) {
  proto::ServerMetrics metrics;
  metrics.set_wire_tx_bytes_per_step(tx);
  metrics.set_wire_rx_bytes_per_step(rx);
  metrics.set_cpu_seconds(1);
  metrics.set_steps(10);
  return metrics;
}

TEST(PercentileTest, InterpolatesBetweenTheTwoNearestValues) {
  EXPECT_EQ(Percentile({}, 0.5), 0);
  EXPECT_EQ(Percentile({7}, 0.9), 7);
  EXPECT_EQ(Percentile({3, 1}, 0.5), 2);
  EXPECT_DOUBLE_EQ(Percentile({5, 1, 4, 2, 3}, 0.1), 1.4);
  EXPECT_DOUBLE_EQ(Percentile({5, 1, 4, 2, 3}, 0.9), 4.6);
  EXPECT_EQ(Percentile({5, 1, 4, 2, 3}, 1), 5);
}

TEST(AggregateTest, DevicesAreCalledByTheirNamesAndNcclIsThatOfRank0) {
  EXPECT_EQ(NameDevices({"cpu", "cpu"}), "cpu");
  EXPECT_EQ(NameDevices({"cuda:1 (NVIDIA RTX 6000 (Ada))"}), "NVIDIA RTX 6000 (Ada)");
  std::vector<proto::WorkerMetrics> workers = {Worker(0, {1}), Worker(1, {1}), Worker(2, {1})};
  for (int i = 0; i < 3; ++i) workers[i].set_device("cuda:" + std::to_string(i) + " (NVIDIA H200)");
  workers[0].set_nccl_version("2.28.9");
  workers[0].set_nccl_asked("NCCL_ALGO=Ring");
  auto run = AggregateRun(workers, {});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->device(), "NVIDIA H200");
  EXPECT_EQ(run->nccl_version(), "2.28.9");
  EXPECT_EQ(run->nccl_asked(), "NCCL_ALGO=Ring");
  workers[1].set_device("cpu");
  EXPECT_EQ(AggregateRun(workers, {})->device(), "NVIDIA H200 + cpu");
}

TEST(AggregateTest, AStepIsThatOfItsSlowestRank) {
  const auto run = AggregateRun({Worker(0, {50, 10, 30}), Worker(1, {20, 40, 30})}, {});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->workers(), 2);
  EXPECT_EQ(run->steps(), 3);
  EXPECT_EQ(run->step_ms_p50(), 40);
  EXPECT_DOUBLE_EQ(run->step_ms_p10(), 32);
  EXPECT_DOUBLE_EQ(run->step_ms_p90(), 48);
  EXPECT_EQ(run->exposed_ms_p50(), 30);
  EXPECT_EQ(run->breakdown_ms().update(), 4);
  EXPECT_DOUBLE_EQ(run->samples_per_s(), 2 * 32 / 0.040);
}

// Stages have the same samples.
TEST(AggregateTest, RanksOfAMeshHaveTheSamplesOfItsReplicas) {
  std::vector<proto::WorkerMetrics> workers;
  for (int rank = 0; rank < 4; ++rank) {
    workers.push_back(Worker(rank, {100}));
    workers.back().set_mesh("data=2,pipeline=2");
    workers.back().set_pipeline_schedule("gpipe");
    workers.back().set_micro_batches(3);
    workers.back().set_accumulate(3);
    workers.back().set_split("5");
  }
  const auto run = AggregateRun(workers, {});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_DOUBLE_EQ(run->samples_per_s(), 2 * 3 * 32 * 10);
  EXPECT_EQ(run->workers(), 4);
  EXPECT_EQ(run->mesh(), "data=2,pipeline=2");
  EXPECT_EQ(run->pipeline_schedule(), "gpipe");
  EXPECT_EQ(run->micro_batches(), 3);
  EXPECT_EQ(run->split(), "5");
  workers[2].set_split("6");
  EXPECT_THAT(std::string(AggregateRun(workers, {}).status().message()),
              HasSubstr("rank 2: expected split 5 as on rank 0, found 6"));
}

TEST(AggregateTest, TheBusiestNodeMayBeAServer) {
  const auto run = AggregateRun({Worker(0, {1, 1}), Worker(1, {1, 1})}, {Server(300, 150)});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->placement(), "dedicated");
  EXPECT_EQ(run->servers(), 1);
  EXPECT_EQ(run->wire_tx_bytes_max_node(), 300);
  EXPECT_EQ(run->wire_rx_bytes_max_node(), 201);
  EXPECT_EQ(run->wire_tx_bytes_total(), 501);
  // Two workers with 0.5 s in 2 measured steps, a server with 1 s in 10 steps.
  EXPECT_DOUBLE_EQ(run->cpu_ms_per_step(), 250 + 250 + 100);
}

TEST(AggregateTest, RanksThatDisagreeAreAnError) {
  const auto expect_error = [](const std::vector<proto::WorkerMetrics>& workers,
                               const std::string& message) {
    const absl::Status status = AggregateRun(workers, {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  };
  expect_error({}, "found none");
  expect_error({Worker(0, {})}, "found none");
  expect_error({Worker(0, {1}), Worker(2, {1})}, "expected rank 1");
  expect_error({Worker(0, {1}), Worker(1, {1, 2})}, "expected measured steps 1");
  proto::WorkerMetrics other = Worker(1, {1});
  other.set_params_sha256("def");
  expect_error({Worker(0, {1}), other}, "expected params_sha256 abc as on rank 0, found def");
  other = Worker(1, {1});
  other.clear_update_ms();
  expect_error({Worker(0, {1}), other}, "parts of steps");
}

TEST(AggregateTest, WorkersThatAreNotSynchronisedMayDiffer) {
  proto::WorkerMetrics first = Worker(0, {1});
  proto::WorkerMetrics second = Worker(1, {1});
  first.set_topology("local");
  second.set_topology("local");
  second.set_params_sha256("def");
  first.set_mean_first_loss(2);
  second.set_mean_first_loss(4);
  const auto run = AggregateRun({first, second}, {});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->first_loss(), 3);
}

TEST(AggregateTest, EfficiencyComparesWithOneWorkerOfTheSameConfiguration) {
  proto::RunRecords records;
  const auto add = [&records](const char* topology, int workers, int servers, double rate) {
    proto::Run* run = records.add_runs();
    run->set_topology(topology);
    run->set_workers(workers);
    run->set_servers(servers);
    run->set_samples_per_s(rate);
  };
  add("ring", 4, 0, 300);
  add("ring", 1, 0, 100);
  add("ps", 4, 1, 200);
  add("ps", 4, 2, 200);
  add("ps", 1, 2, 50);
  SetScalingEfficiency(&records);
  EXPECT_DOUBLE_EQ(records.runs(0).scaling_efficiency(), 0.75);
  EXPECT_DOUBLE_EQ(records.runs(1).scaling_efficiency(), 1);
  EXPECT_EQ(records.runs(2).scaling_efficiency(), 0);
  EXPECT_DOUBLE_EQ(records.runs(3).scaling_efficiency(), 1);
}

// A prediction had its efficiency over computation alone, beside measured ones over one worker.
TEST(AggregateTest, EfficiencyOfPredictionsIsOverThePredictionOfOneWorker) {
  proto::RunRecords records;
  const auto predict = [&records](const char* topology, int workers, double rate) {
    proto::Run* run = records.add_predictions();
    run->set_topology(topology);
    run->set_workers(workers);
    run->set_samples_per_s(rate);
    run->set_scaling_efficiency(0.9);
  };
  predict("ps", 2, 60);
  predict("ps", 1, 40);
  predict("ring", 2, 60);
  SetScalingEfficiency(&records);
  EXPECT_DOUBLE_EQ(records.predictions(0).scaling_efficiency(), 0.75);
  EXPECT_DOUBLE_EQ(records.predictions(1).scaling_efficiency(), 1);
  EXPECT_EQ(records.predictions(2).scaling_efficiency(), 0);
}

TEST(AggregateTest, WorkersThatDoNotWaitEachHaveARateOfTheirOwn) {
  std::vector<proto::WorkerMetrics> workers = {Worker(0, {10, 10}), Worker(1, {30, 30})};
  for (int rank : {0, 1}) {
    workers[rank].set_consistency("asp");
    workers[rank].set_max_staleness(rank == 0 ? 2 : 0);
    workers[rank].add_staleness_histogram(1);
    workers[rank].add_loss(1);
    workers[rank].add_step_end_seconds(rank == 0 ? 0.02 : 0.06);
  }
  workers[0].add_staleness_histogram(0);
  workers[0].add_staleness_histogram(1);
  const absl::StatusOr<proto::Run> run = AggregateRun(workers, {});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->consistency(), "asp");
  EXPECT_NEAR(run->samples_per_s(), 3200 + 3200 / 3.0, 1e-6);
  EXPECT_EQ(run->max_staleness(), 2);
  ASSERT_EQ(run->staleness_histogram_size(), 3);
  EXPECT_EQ(run->staleness_histogram(0), 2);
  EXPECT_EQ(run->staleness_histogram(2), 1);
  EXPECT_EQ(run->curve_size(), 1);
  EXPECT_GT(run->steps_per_s(), 0);
  workers[1].set_consistency("bsp");
  EXPECT_THAT(AggregateRun(workers, {}).status().message(), HasSubstr("consistency asp"));
}

}  // namespace
}  // namespace gradsync
