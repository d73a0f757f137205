#include "benchmarks/prediction/prediction.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "simulator/calibration.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

// 40 MB in ten tensors, complete at even distances through backward; 100 ms of forward, 200 of
// backward, 20 of update; 8 samples.
proto::StepProfile TenTensors() {
  proto::StepProfile profile;
  profile.set_model("ten");
  profile.set_batch_size(8);
  profile.set_forward_us(100e3);
  profile.set_backward_us(200e3);
  profile.set_update_us(20e3);
  for (int i = 1; i <= 10; ++i) {
    proto::ProfiledTensor* const tensor = profile.add_tensors();
    tensor->set_name("t" + std::to_string(i));
    tensor->set_numel(1000000);
    tensor->set_ready_us(100e3 + i * 20e3);
  }
  return profile;
}

PredictedJob Job(Topology topology, int servers = 0) {
  PredictedJob job;
  job.placed.spec.topology = topology;
  job.placed.workers = 4;
  job.placed.servers = servers;
  if (servers > 0) job.placed.placement = Placement::kDedicated;
  job.placed.bandwidth = "400mbit";
  return job;
}

TEST(PredictionTest, APredictedRunSaysWhatAMeasuredOneSays) {
  const auto run = PredictRun(TenTensors(), Job(Topology::kPs, 2));
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->library(), "gradsync");
  EXPECT_EQ(run->topology(), "ps");
  EXPECT_EQ(run->placement(), "dedicated");
  EXPECT_EQ(run->servers(), 2);
  EXPECT_EQ(run->workers(), 4);
  EXPECT_EQ(run->bandwidth(), "400mbit");
  EXPECT_EQ(run->batch_size(), 8);
  EXPECT_NEAR(run->bytes(), 40e6, 1e4);
  EXPECT_DOUBLE_EQ(run->breakdown_ms().forward(), 100);
  EXPECT_DOUBLE_EQ(run->breakdown_ms().backward(), 200);
  EXPECT_DOUBLE_EQ(run->breakdown_ms().update(), 20);
  EXPECT_NEAR(run->step_ms_p50(), 320 + run->exposed_ms_p50(), 1e-9);
  EXPECT_DOUBLE_EQ(run->samples_per_s(), 4 * 8 / (1e-3 * run->step_ms_p50()));
  EXPECT_DOUBLE_EQ(run->scaling_efficiency(), 320 / run->step_ms_p50());
  // Two servers take half of everything from four workers.
  EXPECT_NEAR(run->wire_rx_bytes_max_node(), 80e6, 1e6);
  EXPECT_NEAR(run->model_us(), 80e6 / (5e7 * 0.94) * 1e6, 0.1 * run->model_us());
}

// 40 MB at 8 GB/s are 5 ms to each of the two others, before all compute and after all have.
TEST(PredictionTest, ReplicasOfAProcessWaitForDevice0TwiceAStep) {
  PredictedJob job = Job(Topology::kLocal);
  job.placed.workers = 1;
  job.batch_size = 24;
  job.placed.arrangement.data_parallel = 3;
  const auto run = PredictRun(TenTensors(), job);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->data_parallel(), 3);
  EXPECT_DOUBLE_EQ(run->replicate_ms_p50(), 10);
  EXPECT_DOUBLE_EQ(run->apply_ms_p50(), 300);  // of 8 samples each
  EXPECT_DOUBLE_EQ(run->reduce_ms_p50(), 10);
  EXPECT_DOUBLE_EQ(run->step_ms_p50(), 340);
  EXPECT_DOUBLE_EQ(run->samples_per_s(), 24 / 0.340);
  EXPECT_DOUBLE_EQ(run->scaling_efficiency(), 320.0 / 340);
  EXPECT_DOUBLE_EQ(run->device0_tx_bytes(), 80e6);
  EXPECT_DOUBLE_EQ(run->device0_rx_bytes(), 80e6);
  job.placed.arrangement.data_parallel = 1;
  job.batch_size = 8;
  const auto plain = PredictRun(TenTensors(), job);
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->data_parallel(), 0);
  EXPECT_EQ(plain->replicate_ms_p50(), 0);
  EXPECT_DOUBLE_EQ(run->worker_memory_bytes(), plain->worker_memory_bytes() + 160e6);
}

// Buckets leave while the last gradients are added up, and not while replicas compute.
TEST(PredictionTest, OnlyTheReduceOfReplicasHidesTheExchange) {
  PredictedJob job = Job(Topology::kRing);
  job.bucket_bytes = 4 << 20;
  job.first_bucket_bytes = 4 << 20;
  job.placed.bandwidth = "10gbit";
  const auto ranks = PredictRun(TenTensors(), job);
  job.batch_size = 16;
  job.placed.arrangement.data_parallel = 2;
  job.device_bytes_per_second = 40e6 / 0.5;  // half a second each way
  const auto slow = PredictRun(TenTensors(), job);
  job.device_bytes_per_second = 1e15;
  const auto fast = PredictRun(TenTensors(), job);
  ASSERT_TRUE(ranks.ok() && slow.ok() && fast.ok()) << slow.status();
  // At 10 Gbit/s the ring takes some 50 ms for everything, 5 for the last bucket.
  EXPECT_LT(ranks->exposed_ms_p50(), 15);
  EXPECT_LT(slow->exposed_ms_p50(), 15);
  EXPECT_NEAR(slow->step_ms_p50(), 1320 + slow->exposed_ms_p50(), 1e-6);
  EXPECT_GT(fast->exposed_ms_p50(), 40);
}

// A block for each tensor, the last one's gradient first.
proto::StepProfile TenBlocks() {
  proto::StepProfile profile = TenTensors();
  for (int i = 10; i >= 1; --i) {
    proto::ProfiledBlock* const block = profile.add_blocks();
    block->set_name("b" + std::to_string(i));
    block->set_forward_us(10e3);
    block->set_backward_us(20e3);
    block->add_tensors("t" + std::to_string(i));
  }
  return profile;
}

TEST(PredictionTest, WhatReplicasCannotBeIsRefused) {
  PredictedJob job = Job(Topology::kRing);
  job.placed.arrangement.data_parallel = 2;
  job.placed.zero = 2;
  job.placed.spec.update = UpdateSite::kOwner;
  EXPECT_THAT(std::string(PredictRun(TenBlocks(), job).status().message()),
              HasSubstr("zero: expected 0 or 1 with --data_parallel"));
}

TEST(PredictionTest, WhatOwnersKeepChangesBytesMemoryAndTime) {
  std::vector<proto::Run> runs;
  for (int zero : {0, 1, 2, 3}) {
    PredictedJob job = Job(Topology::kRing);
    job.bucket_bytes = job.first_bucket_bytes = 4000000;
    job.placed.zero = zero;
    if (zero > 0) job.placed.spec.update = UpdateSite::kOwner;
    const auto run = PredictRun(TenBlocks(), job);
    ASSERT_TRUE(run.ok()) << run.status();
    EXPECT_EQ(run->zero(), zero);
    EXPECT_EQ(run->server_memory_bytes(), 0);
    runs.push_back(*run);
  }
  // In 40 MB: everything, state of the own quarter, two buckets of ten of gradients, of parameters.
  EXPECT_NEAR(runs[0].worker_memory_bytes(), 3 * 40e6, 1e5);
  EXPECT_NEAR(runs[1].worker_memory_bytes(), 2.25 * 40e6, 1e5);
  EXPECT_NEAR(runs[2].worker_memory_bytes(), 1.45 * 40e6, 1e5);
  EXPECT_NEAR(runs[3].worker_memory_bytes(), 0.9 * 40e6, 1e5);
  EXPECT_EQ(runs[2].wire_tx_bytes_max_node(), runs[1].wire_tx_bytes_max_node());
  EXPECT_NEAR(runs[3].wire_tx_bytes_max_node(), 0.75 * 2.8 * 40e6, 1e5);
  EXPECT_EQ(runs[2].model_us(), runs[1].model_us());
  EXPECT_NEAR(runs[3].model_us(), 1.5 * runs[2].model_us(), 1e-6 * runs[3].model_us());
  EXPECT_GT(runs[3].step_ms_p50(), runs[2].step_ms_p50());
  for (const proto::Run& run : runs) {
    EXPECT_NEAR(run.step_ms_p50(), (run.zero() == 0 ? 320 : 300) + run.exposed_ms_p50(), 1e-9);
  }
  PredictedJob job = Job(Topology::kPs, 4);
  job.placed.zero = 3;
  job.placed.spec.update = UpdateSite::kOwner;
  EXPECT_THAT(std::string(PredictRun(TenTensors(), job).status().message()),
              HasSubstr("ten: expected blocks"));
  job.bucket_bytes = job.first_bucket_bytes = 4000000;
  const auto run = PredictRun(TenBlocks(), job);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_NEAR(run->worker_memory_bytes(), 0.4 * 40e6, 1e5);
  EXPECT_NEAR(run->server_memory_bytes(), 0.75 * 40e6, 1e6);
  EXPECT_NEAR(run->wire_rx_bytes_max_node(), 1.8 * 40e6, 1e5);
}

TEST(PredictionTest, OneWorkerAloneOnlyComputes) {
  PredictedJob job = Job(Topology::kLocal);
  job.placed.workers = 1;
  EXPECT_DOUBLE_EQ(PredictRun(TenTensors(), job)->step_ms_p50(), 320);
  EXPECT_DOUBLE_EQ(PredictRun(TenTensors(), job)->scaling_efficiency(), 1);
}

TEST(PredictionTest, ConnectionsAreThoseOfTheJob) {
  for (Topology topology : {Topology::kRing, Topology::kPs}) {
    PredictedJob job = Job(topology, topology == Topology::kPs ? 1 : 0);
    EXPECT_EQ(PredictRun(TenTensors(), job)->connections(), topology == Topology::kPs ? 2 : 4);
    job.placed.spec.connections = 3;
    EXPECT_EQ(PredictRun(TenTensors(), job)->connections(), 3);
  }
}

TEST(PredictionTest, ForwardAndBackwardGrowWithTheBatchAndAllWithTheScale) {
  PredictedJob job = Job(Topology::kLocal);
  job.batch_size = 16;
  EXPECT_DOUBLE_EQ(PredictRun(TenTensors(), job)->step_ms_p50(), 620);
  job.compute_scale = 0.5;
  EXPECT_DOUBLE_EQ(PredictRun(TenTensors(), job)->step_ms_p50(), 310);
}

TEST(PredictionTest, OwnersUpdateWhileTheOthersWait) {
  PredictedJob job = Job(Topology::kPs, 4);
  job.placed.spec.update = UpdateSite::kOwner;
  const auto run = PredictRun(TenTensors(), job);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->breakdown_ms().update(), 0);
}

TEST(PredictionTest, AsynchronyFollowsTheGroupsRate) {
  PredictedJob job = Job(Topology::kPs, 2);
  job.placed.bandwidth = "100gbit";
  job.placed.spec.update = UpdateSite::kOwner;
  job.slowness = {1, 1, 1, 3};
  const double bsp = PredictRun(TenTensors(), job)->step_ms_p50();
  job.placed.spec.consistency = *ParseConsistency("asp");
  const auto asp = PredictRun(TenTensors(), job);
  ASSERT_TRUE(asp.ok()) << asp.status();
  EXPECT_EQ(asp->consistency(), "asp");
  EXPECT_GT(bsp, 3 * 300);
  EXPECT_LT(asp->step_ms_p50(), 0.6 * bsp);
  EXPECT_GT(asp->max_staleness(), 8);
  job.placed.spec.topology = Topology::kRing;
  job.placed.servers = 0;
  EXPECT_FALSE(PredictRun(TenTensors(), job).ok());
}

TEST(PredictionTest, WhatCannotBeIsRefused) {
  const auto message = [](const PredictedJob& job) {
    return std::string(PredictRun(TenTensors(), job).status().message());
  };
  PredictedJob job = Job(Topology::kPs, 5);
  job.placed.placement = Placement::kColocated;
  EXPECT_THAT(message(job), HasSubstr("--placement: expected at most as many --servers"));
  job = Job(Topology::kRing);
  job.placed.spec.codec = *ParseCodec("topk:0.01");
  EXPECT_THAT(message(job),
              HasSubstr("--compression: expected none, fp16 or bf16 with --topology=ring"));
  job.placed.spec.codec = Codec();
  job.placed.bandwidth = "fast";
  EXPECT_THAT(message(job), HasSubstr("fast"));
}

TEST(PredictionTest, ExchangesThatWereMeasuredOnANetworkBecomeProbes) {
  proto::RunRecords records;
  proto::Run* const run = records.add_runs();
  run->set_library("gradsync");
  run->set_topology("ps");
  run->set_update("worker");
  run->set_workers(2);
  run->set_servers(1);
  run->set_bandwidth("400mbit");
  run->set_bytes(4 << 20);
  run->set_bucket_bytes(2 << 20);
  run->set_chunk_bytes(64 << 10);
  run->set_time_us_p50(90e3);
  run->set_cpu_share(0.25);
  records.mutable_machine()->set_cores(2);
  *records.add_runs() = *run;
  records.mutable_runs(1)->set_library("tcp_stream");
  *records.add_runs() = *run;
  records.mutable_runs(2)->set_invalid("the cores were busy");
  *records.add_runs() = *run;
  records.mutable_runs(3)->set_bandwidth("");
  const auto probes = ProbesOf(records);
  ASSERT_TRUE(probes.ok()) << probes.status();
  ASSERT_EQ(probes->size(), 1);
  EXPECT_EQ((*probes)[0].plan.buckets().size(), 2);
  EXPECT_EQ((*probes)[0].plan.buckets()[0].layout.stripes(), 16);
  EXPECT_FALSE((*probes)[0].cluster.ring);
  EXPECT_DOUBLE_EQ((*probes)[0].cluster.bytes_per_second, 5e7);
  EXPECT_DOUBLE_EQ((*probes)[0].seconds, 0.09);
  EXPECT_DOUBLE_EQ((*probes)[0].core_seconds, 0.045);
}

}  // namespace
}  // namespace gradsync
