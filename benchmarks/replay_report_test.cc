#include "benchmarks/replay_report.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

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
  replay.profile_name = "toy";
  replay.profile.set_forward_us(10000);
  replay.profile.set_backward_us(20000);
  replay.profile.set_update_us(2000);
  replay.compute_scale = 0.5;
  replay.straggler = Straggler::Parse("1:2").value();
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
  replay.topology = "ps";
  replay.update = "worker";
  replay.placement = "colocated";
  replay.workers = replay.servers = 2;
  replay.bandwidth = "1gbit";
  replay.profile.set_model("toy");
  proto::ProfiledTensor& tensor = *replay.profile.add_tensors();
  tensor.set_name("weight");
  tensor.set_numel(1 << 20);
  replay.plan.world_size = 2;
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

TEST(ReplayReportTest, ARunThatTheMachineCouldNotReplayIsInvalid) {
  std::vector<proto::WorkerMetrics> metrics = {Metrics(0, {40, 40}), Metrics(1, {40, 40})};
  metrics[1].set_late_ms(0, 3);
  metrics[0].set_late_ms(1, 4);
  EXPECT_THAT(SummarizeReplay(Case(), metrics, {})->invalid(), HasSubstr("3.9 ms late"));

  metrics = {Metrics(0, {40, 40}), Metrics(1, {40, 40})};
  metrics[0].set_cpu_share(0.8);
  EXPECT_EQ(SummarizeReplay(Case(), metrics, {})->invalid(), "");
  ReplayCase emulated = Case();
  emulated.bandwidth = "400mbit";
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

}  // namespace
}  // namespace gradsync
