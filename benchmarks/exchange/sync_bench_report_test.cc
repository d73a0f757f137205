#include "benchmarks/exchange/sync_bench_report.h"

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using testing::HasSubstr;

SyncBenchCase Case(Topology topology, int servers) {
  SyncBenchCase bench_case;
  bench_case.job.spec.topology = topology;
  bench_case.job.spec.link = Link::kGrpc;
  bench_case.job.workers = 2;
  bench_case.job.servers = servers;
  bench_case.exchange.world_size = 2;
  bench_case.exchange.bytes = 1 << 20;
  bench_case.exchange.iterations = 3;
  return bench_case;
}

proto::ExchangeMetrics Rank(int rank, std::vector<double> begin, std::vector<double> end) {
  proto::ExchangeMetrics metrics;
  metrics.set_rank(rank);
  metrics.set_bytes(1 << 20);
  metrics.set_chunk_bytes(65536);
  metrics.set_topology("ring");
  metrics.set_link("grpc");
  metrics.set_update("worker");
  for (double t : begin) metrics.add_begin_us(t);
  for (double t : end) metrics.add_end_us(t);
  metrics.set_wire_tx_bytes_per_step(1 << 20);
  metrics.set_wire_rx_bytes_per_step(1 << 20);
  return metrics;
}

std::vector<proto::ExchangeMetrics> TwoRanks() {
  // Iterations of 1100, 1000 and 1300 us from the first begin to the last end.
  return {Rank(0, {0, 10000, 20000}, {1000, 11000, 21300}),
          Rank(1, {5, 10005, 20000}, {1100, 10900, 21000})};
}

TEST(SyncBenchReportTest, AnIterationLastsFromTheFirstBeginToTheLastEnd) {
  const auto run = SummarizeExchanges(Case(Topology::kRing, 0), TwoRanks(), {});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_DOUBLE_EQ(run->time_us_p50(), 1100);
  EXPECT_NEAR(run->algbw_gb_per_s(), (1 << 20) / 1100.0 * 1e-3, 1e-12);
  EXPECT_NEAR(run->busbw_gb_per_s().number_value(), run->algbw_gb_per_s(), 1e-12);
  EXPECT_EQ(run->wire_tx_bytes_max_node(), 1 << 20);
  EXPECT_EQ(run->wire_tx_bytes_total(), 2 << 20);
  EXPECT_EQ(run->model_us(), 0);
  EXPECT_EQ(run->wrong(), 0);
}

TEST(SyncBenchReportTest, ServersCountAsNodesAndHaveNoBusBandwidth) {
  proto::ServerMetrics server;
  server.set_wire_tx_bytes_per_step(2 << 20);
  server.set_wire_rx_bytes_per_step(2 << 20);
  const auto run = SummarizeExchanges(Case(Topology::kPs, 1), TwoRanks(), {server});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->busbw_gb_per_s().kind_case(), google::protobuf::Value::kNullValue);
  EXPECT_EQ(run->wire_tx_bytes_max_node(), 2 << 20);
  EXPECT_EQ(run->wire_tx_bytes_total(), 4 << 20);
  // 2 MiB through the server in 1100 us.
  EXPECT_THAT(SyncBenchLine(*run), HasSubstr(" 1.91 "));
}

TEST(SyncBenchReportTest, TheModelIsTheBusiestNodesBytesAndOneStripe) {
  SyncBenchCase bench_case = Case(Topology::kRing, 0);
  bench_case.bytes_per_second = 1e9;
  const auto ring = SummarizeExchanges(bench_case, TwoRanks(), {});
  ASSERT_TRUE(ring.ok()) << ring.status();
  EXPECT_NEAR(ring->model_us(), ((1 << 20) + 2 * 65536) * 1e-3, 1e-6);
  bench_case.job.spec.topology = Topology::kPs;
  bench_case.job.servers = 1;
  const auto ps = SummarizeExchanges(bench_case, TwoRanks(), {proto::ServerMetrics()});
  ASSERT_TRUE(ps.ok()) << ps.status();
  EXPECT_NEAR(ps->model_us(), 2 * ring->model_us(), 1e-6);
  EXPECT_EQ(ps->simulated_us(), 0);  // hosts that are not emulated
}

TEST(SyncBenchReportTest, ExchangesBetweenEmulatedHostsAreSimulatedAtTheRateThatTcpHas) {
  SyncBenchCase bench_case = Case(Topology::kRing, 0);
  bench_case.job.bandwidth = "8gbit";
  for (const double rate : {1e9, 0.5e9}) {
    bench_case.bytes_per_second = rate;
    const auto run = SummarizeExchanges(bench_case, TwoRanks(), {});
    ASSERT_TRUE(run.ok()) << run.status();
    // Latency, and a chunk's cost, weigh on an exchange of a millisecond.
    EXPECT_GT(run->simulated_us(), (1 << 20) / rate * 1e6);
    EXPECT_LT(run->simulated_us(), 1.5 * (1 << 20) / rate * 1e6);
    EXPECT_THAT(SyncBenchLine(*run),
                HasSubstr(absl::StrFormat(" %.3f ", run->simulated_us() / run->time_us_p50())));
  }
}

TEST(SyncBenchReportTest, WrongElementsOfAllRanksAreAddedUp) {
  std::vector<proto::ExchangeMetrics> ranks = TwoRanks();
  ranks[0].set_wrong(3);
  ranks[1].set_wrong(4);
  const auto run = SummarizeExchanges(Case(Topology::kRing, 0), ranks, {});
  EXPECT_EQ(run->wrong(), 7);
  EXPECT_THAT(SyncBenchLine(*run), testing::EndsWith(" 7\n"));
}

TEST(SyncBenchReportTest, ARunOnGpusSaysOnWhichAndWhatNcclChose) {
  std::vector<proto::ExchangeMetrics> ranks = TwoRanks();
  for (int i = 0; i < 2; ++i) {
    ranks[i].set_link("nccl");
    ranks[i].set_device("cuda:" + std::to_string(i) + " (NVIDIA H200)");
    ranks[i].set_nccl_version("2.28.9");
    ranks[i].clear_wire_tx_bytes_per_step();
    ranks[i].clear_wire_rx_bytes_per_step();
  }
  ranks[0].set_nccl_asked("NCCL_ALGO=Ring");
  auto run = SummarizeExchanges(Case(Topology::kRing, 0), ranks, {});
  ASSERT_TRUE(run.ok()) << run.status();
  run->set_nccl_chosen("AllReduce RING/SIMPLE");
  EXPECT_EQ(run->device(), "NVIDIA H200");
  EXPECT_THAT(
      SyncBenchLine(*run),
      testing::EndsWith("\n           on NVIDIA H200; NCCL 2.28.9, asked for NCCL_ALGO=Ring, "
                        "chose AllReduce RING/SIMPLE\n"));
  EXPECT_NEAR(run->busbw_gb_per_s().number_value(), run->algbw_gb_per_s(), 1e-12);
}

TEST(SyncBenchReportTest, ServersThatAreRanksHaveNoMetricsOfTheirOwnAndCountBytes) {
  SyncBenchCase bench_case = Case(Topology::kPs, 2);
  bench_case.job.spec.link = Link::kNccl;
  bench_case.job.placement = Placement::kColocated;
  std::vector<proto::ExchangeMetrics> ranks = TwoRanks();
  for (proto::ExchangeMetrics& rank : ranks) rank.set_link("nccl");
  auto run = SummarizeExchanges(bench_case, ranks, {});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->servers(), 2);
  EXPECT_EQ(run->wire_tx_bytes_total(), 2 << 20);
  std::string line = SyncBenchLine(*run);
  line.replace(line.find("nccl"), 4, "grpc");
  run->set_link("grpc");
  EXPECT_EQ(SyncBenchLine(*run), line);  // with its bytes
}

TEST(SyncBenchReportTest, MissingMetricsAreAnError) {
  std::vector<proto::ExchangeMetrics> ranks = TwoRanks();
  ranks.pop_back();
  EXPECT_EQ(SummarizeExchanges(Case(Topology::kRing, 0), ranks, {}).status().code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(SummarizeExchanges(Case(Topology::kPs, 2), TwoRanks(), {}).status().code(),
            absl::StatusCode::kDataLoss);
  ranks = TwoRanks();
  ranks[1].clear_end_us();
  EXPECT_EQ(SummarizeExchanges(Case(Topology::kRing, 0), ranks, {}).status().code(),
            absl::StatusCode::kDataLoss);
}

TEST(SyncBenchReportTest, HeadAndLinesAreEquallyWide) {
  const std::string head = SyncBenchHead();
  const std::string line =
      SyncBenchLine(*SummarizeExchanges(Case(Topology::kRing, 0), TwoRanks(), {}));
  EXPECT_EQ(head.size(), 2 * line.size());
}

}  // namespace
}  // namespace gradsync
