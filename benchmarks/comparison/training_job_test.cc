#include "benchmarks/comparison/training_job.h"

#include <algorithm>

#include "benchmarks/records/payload.h"
#include "core/plan/cost_model.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

// Three workers of M = 900 bytes; servers by their shares of it.
struct Job {
  std::vector<proto::WorkerMetrics> workers;
  std::vector<proto::ServerMetrics> servers;
};

Job MakeJob(const std::vector<double>& shards) {
  Job job;
  for (int w = 0; w < 3; ++w) {
    job.workers.emplace_back().set_wire_tx_bytes_per_step(900);
    job.workers.back().set_wire_rx_bytes_per_step(900);
  }
  for (double shard : shards) {
    job.servers.emplace_back().set_shard_bytes(shard);
    job.servers.back().set_wire_tx_bytes_per_step(3 * shard);
    job.servers.back().set_wire_rx_bytes_per_step(3 * shard);
  }
  return job;
}

std::vector<WirePayload> ByHost(const Job& job, const std::vector<int>& hosts) {
  return PayloadByHost(CountedPayload(job.workers, job.servers),
                       FlowsByShards(job.workers, job.servers), hosts);
}

TEST(FlowsByShardsTest, WhatStaysOnAHostIsNotCounted) {
  for (const WirePayload& host : ByHost(MakeJob({300, 300, 300}), {0, 1, 2, 0, 1, 2})) {
    EXPECT_DOUBLE_EQ(host.tx_bytes, 900 * ColocatedPsLoad(3, 3));
    EXPECT_DOUBLE_EQ(host.rx_bytes, 900 * ColocatedPsLoad(3, 3));
  }
}

TEST(FlowsByShardsTest, HostsOfAMixedPlacementAreEquallyBusy) {
  const ServerShares shares = MixedShares(3, 1);
  const double beside = 900 * shares.colocated;
  const Job job = MakeJob({beside, beside, beside, 900 * shares.dedicated});
  const std::vector<WirePayload> hosts = ByHost(job, {0, 1, 2, 0, 1, 2, 3});
  ASSERT_EQ(hosts.size(), 4u);
  for (const WirePayload& host : hosts) EXPECT_NEAR(host.tx_bytes, 900 * MixedPsLoad(3, 1), 1e-9);
}

// Each stage has a server, and each rank talks to that of its own.
TEST(FlowsByShardsTest, AStageTalksToItsServersAndTensorsCountAsSent) {
  Job job = MakeJob({900, 300});
  job.workers.push_back(job.workers[0]);
  for (proto::WorkerMetrics& worker : job.workers) {
    worker.set_stage_tx_bytes_per_step(7);
    worker.set_slice_rx_bytes_per_step(5);
  }
  const Mesh mesh = *Mesh::Parse("data=2,pipeline=2", 4);
  const std::vector<Flow> flows = FlowsByShards(job.workers, job.servers, mesh);
  ASSERT_EQ(flows.size(), 8u);
  for (const Flow& flow : flows) {
    const int worker = std::min(flow.from, flow.to);
    EXPECT_EQ(std::max(flow.from, flow.to), 4 + worker % 2);
    EXPECT_EQ(flow.bytes, 900);
  }
  const std::vector<WirePayload> counted = CountedPayload(job.workers, job.servers);
  EXPECT_EQ(counted[3].tx_bytes, 907);
  EXPECT_EQ(counted[3].rx_bytes, 905);
}

TEST(FlowsByShardsTest, WithoutServersItIsTheWorkers) {
  const std::vector<WirePayload> hosts = ByHost(MakeJob({}), {0, 1, 2});
  ASSERT_EQ(hosts.size(), 3u);
  EXPECT_EQ(hosts[1].rx_bytes, 900);
}

}  // namespace
}  // namespace gradsync
