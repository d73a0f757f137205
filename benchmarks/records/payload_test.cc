#include "benchmarks/records/payload.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

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

}  // namespace
}  // namespace gradsync
