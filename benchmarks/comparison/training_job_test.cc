#include "benchmarks/comparison/training_job.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "benchmarks/records/aggregate.h"
#include "core/plan/cost_model.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

TEST(CpuSecondsOfTest, IsOfAnyProcessAndOfNoneThatIsGone) {
  const absl::optional<double> before = CpuSecondsOf(getpid());
  ASSERT_TRUE(before.has_value());
  absl::optional<double> after = before;
  while (after.has_value() && *after < *before + 0.001) after = CpuSecondsOf(getpid());
  EXPECT_TRUE(after.has_value());
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  ASSERT_GT(child, 0);
  EXPECT_TRUE(CpuSecondsOf(child).has_value());
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_FALSE(CpuSecondsOf(child).has_value());
}

std::vector<proto::ServerMetrics> Servers(int count) {
  std::vector<proto::ServerMetrics> servers(count);
  for (proto::ServerMetrics& server : servers) {
    server.set_cpu_seconds(100);
    server.set_steps(4);
  }
  return servers;
}

// Start and warm-up counted, which workers leave out.
TEST(ServerCpuTest, ServersCountAsWorkersDoFromTheEndOfTheWarmUp) {
  double now = 0;
  ServerCpu cpu(2, [&now](int pid) { return pid * now; });
  cpu.Started("server 0", 10);
  cpu.Started("server 1", 20);
  cpu.Started("worker 0", 30);
  for (int step = 1; step <= 4; ++step) {
    now = step * step;
    cpu.Step(step, 4);
  }
  now = 1000;
  std::vector<proto::ServerMetrics> servers = Servers(2);
  cpu.Replace({proto::WorkerMetrics()}, &servers);
  EXPECT_DOUBLE_EQ(servers[0].cpu_seconds(), 10 * (16 - 4));
  EXPECT_DOUBLE_EQ(servers[1].cpu_seconds(), 20 * (16 - 4));
  EXPECT_EQ(servers[1].steps(), 2);
}

TEST(ServerCpuTest, WhereNothingIsMeasuredItIsTheWholeLife) {
  for (bool gone : {false, true}) {
    ServerCpu cpu(0, [gone](int) { return gone ? absl::nullopt : absl::optional<double>(5); });
    cpu.Started("server 0", 10);
    for (int step = 1; step <= (gone ? 4 : 1); ++step) cpu.Step(step, gone ? 4 : 1);
    std::vector<proto::ServerMetrics> servers = Servers(1);
    cpu.Replace({proto::WorkerMetrics()}, &servers);
    EXPECT_EQ(servers[0].cpu_seconds(), 100) << gone;
    EXPECT_EQ(servers[0].steps(), 4) << gone;
  }
}

TEST(ServerCpuTest, WorkersThatDoNotWaitDoDifferentNumbersOfStepsMeanwhile) {
  std::vector<proto::WorkerMetrics> workers(2);
  for (proto::WorkerMetrics& worker : workers) {
    worker.set_topology("ps");
    worker.set_update("owner");
    worker.set_consistency("asp");
  }
  for (int step = 1; step <= 3; ++step) workers[0].add_step_end_seconds(step);
  for (int step = 1; step <= 8; ++step) workers[1].add_step_end_seconds(0.5 * step);
  double now = 0;
  ServerCpu cpu(1, [&now](int) { return now; });
  cpu.Started("server 0", 10);
  for (int step = 1; step <= 3; ++step) {
    now = step;
    cpu.Step(step, 3);
  }
  std::vector<proto::ServerMetrics> servers = Servers(1);
  cpu.Replace(workers, &servers);
  EXPECT_EQ(servers[0].cpu_seconds(), 2);
  EXPECT_DOUBLE_EQ(servers[0].steps(), (2 + 4) / 2.0);
}

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
