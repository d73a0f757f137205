#include "benchmarks/sync_bench_report.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "benchmarks/aggregate.h"
#include "benchmarks/byte_sizes.h"
#include "plan/codec.h"
#include "plan/cost_model.h"
#include "plan/shard_map.h"
#include "plan/wire_traffic.h"

namespace gradsync {
namespace {

absl::Status Check(const SyncBenchCase& bench_case,
                   const std::vector<proto::ExchangeMetrics>& ranks,
                   const std::vector<proto::ServerMetrics>& servers) {
  const size_t expected_ranks = bench_case.exchange.world_size;
  const size_t expected_servers = bench_case.servers;
  if (ranks.size() != expected_ranks || servers.size() != expected_servers) {
    return absl::DataLossError(absl::StrCat("expected metrics of ", expected_ranks, " ranks and ",
                                            expected_servers, " servers, found ", ranks.size(),
                                            " and ", servers.size()));
  }
  const int iterations = bench_case.exchange.iterations;
  for (const proto::ExchangeMetrics& rank : ranks) {
    if (rank.begin_us_size() != iterations || rank.end_us_size() != iterations ||
        rank.bytes() != ranks[0].bytes()) {
      return absl::DataLossError(absl::StrCat("rank ", rank.rank(), ": expected ", iterations,
                                              " iterations of ", ranks[0].bytes(), " bytes, found ",
                                              rank.end_us_size(), " of ", rank.bytes()));
    }
  }
  return absl::OkStatus();
}

std::vector<double> Times(const std::vector<proto::ExchangeMetrics>& ranks) {
  std::vector<double> times;
  for (int i = 0; i < ranks[0].begin_us_size(); ++i) {
    double begin = ranks[0].begin_us(i);
    double end = ranks[0].end_us(i);
    for (const proto::ExchangeMetrics& rank : ranks) {
      begin = std::min(begin, rank.begin_us(i));
      end = std::max(end, rank.end_us(i));
    }
    times.push_back(end - begin);
  }
  return times;
}

void SetWire(const std::vector<proto::ExchangeMetrics>& ranks,
             const std::vector<proto::ServerMetrics>& servers, proto::Run* run) {
  const auto add = [run](double tx, double rx) {
    run->set_wire_tx_bytes_total(run->wire_tx_bytes_total() + tx);
    run->set_wire_tx_bytes_max_node(std::max(run->wire_tx_bytes_max_node(), tx));
    run->set_wire_rx_bytes_max_node(std::max(run->wire_rx_bytes_max_node(), rx));
  };
  for (const auto& rank : ranks) add(rank.wire_tx_bytes_per_step(), rank.wire_rx_bytes_per_step());
  for (const auto& server : servers) {
    add(server.wire_tx_bytes_per_step(), server.wire_rx_bytes_per_step());
  }
}

absl::StatusOr<double> ModelMicroseconds(const SyncBenchCase& bench_case,
                                         const proto::ExchangeMetrics& rank) {
  const int n = bench_case.exchange.world_size;
  GS_ASSIGN_OR_RETURN(const Plan plan, ExchangePlan(bench_case.exchange));
  const Returned returned = bench_case.update == "owner" ? Returned::kParameters : Returned::kMean;
  std::vector<Flow> flows;
  if (bench_case.servers == 0) {
    flows = RingStepFlows(plan, returned);
  } else {
    GS_ASSIGN_OR_RETURN(const ShardMap shards,
                        ShardMap::Create(plan, std::vector<double>(bench_case.servers, 1)));
    flows = PsStepFlows(plan, shards, returned);
  }
  const double busiest =
      static_cast<double>(BusiestBytes(HostTraffic(flows, DedicatedHosts(n, bench_case.servers))));
  ExchangeCost cost;
  cost.bytes = static_cast<double>(plan.total_bytes());
  cost.bytes_per_second = bench_case.bytes_per_second;
  cost.stripe_bytes = std::min(cost.bytes, n * rank.chunk_bytes());
  return 1e6 * ExchangeSeconds(busiest / cost.bytes, cost);
}

std::string Gigabytes(double rate) { return absl::StrFormat("%.2f", rate); }

std::string Count(double value) { return absl::StrFormat("%.0f", value); }

// Enough digits for a microsecond, no more than make sense for a second.
std::string Microseconds(double time) {
  return time < 100 ? absl::StrFormat("%.1f", time) : absl::StrFormat("%.0f", time);
}

constexpr char kLine[] =
    "%9s  %-8s %-5s %-6s %-5s %5s %7s  %9s %9s %9s  %6s %6s %6s  %11s %11s  %8s %8s  %6s\n";

}  // namespace

absl::StatusOr<proto::Run> SummarizeExchanges(const SyncBenchCase& bench_case,
                                              const std::vector<proto::ExchangeMetrics>& ranks,
                                              const std::vector<proto::ServerMetrics>& servers) {
  GS_RETURN_IF_ERROR(Check(bench_case, ranks, servers));
  proto::Run run;
  run.set_library("gradsync");
  run.set_topology(bench_case.topology);
  run.set_link(ranks[0].link());
  run.set_update(bench_case.update);
  run.set_compression(CodecName(bench_case.exchange.codec));
  run.set_placement(bench_case.placement);
  run.set_workers(bench_case.exchange.world_size);
  run.set_servers(bench_case.servers);
  run.set_bytes(ranks[0].bytes());
  run.set_bucket_bytes(ranks[0].bucket_bytes());
  run.set_chunk_bytes(ranks[0].chunk_bytes());
  run.set_connections(ranks[0].connections());
  run.set_steps(bench_case.exchange.iterations);

  const std::vector<double> times = Times(ranks);
  run.set_time_us_p10(Percentile(times, 0.1));
  run.set_time_us_p50(Percentile(times, 0.5));
  run.set_time_us_p90(Percentile(times, 0.9));
  run.set_algbw_gb_per_s(run.bytes() / run.time_us_p50() * 1e-3);
  if (bench_case.servers == 0) {
    run.mutable_busbw_gb_per_s()->set_number_value(run.algbw_gb_per_s() *
                                                   AllReduceBusFactor(run.workers()));
  } else {
    run.mutable_busbw_gb_per_s()->set_null_value(google::protobuf::NULL_VALUE);
  }
  SetWire(ranks, servers, &run);
  double cpu_ms = 0;
  for (const auto& rank : ranks) {
    cpu_ms += 1e3 * rank.cpu_seconds() / bench_case.exchange.iterations;
    run.set_wrong(run.wrong() + rank.wrong());
  }
  for (const auto& server : servers) {
    cpu_ms += 1e3 * server.cpu_seconds() / std::max(1.0, server.steps());
  }
  run.set_cpu_ms_per_step(cpu_ms);
  if (bench_case.bytes_per_second > 0) {
    GS_ASSIGN_OR_RETURN(const double model_us, ModelMicroseconds(bench_case, ranks[0]));
    run.set_model_us(model_us);
  }
  return run;
}

std::string SyncBenchHead() {
  return absl::StrCat(
      absl::StrFormat(kLine, "bytes", "topology", "link", "update", "codec", "ranks", "servers",
                      "time us", "", "", "algbw", "busbw", "node", "wire bytes", "wire bytes",
                      "cpu", "model /", "#wrong"),
      absl::StrFormat(kLine, "", "", "", "", "", "", "", "p10", "p50", "p90", "GB/s", "GB/s",
                      "GB/s", "max node", "total", "ms", "measured", ""));
}

std::string SyncBenchLine(const proto::Run& run) {
  const bool ring = run.busbw_gb_per_s().kind_case() == google::protobuf::Value::kNumberValue;
  const double busiest = std::max(run.wire_tx_bytes_max_node(), run.wire_rx_bytes_max_node());
  return absl::StrFormat(
      kLine, FormatBytes(static_cast<int64_t>(run.bytes())), run.topology(), run.link(),
      run.update(), run.compression(), absl::StrCat(run.workers()),
      ring ? "-" : absl::StrCat(run.servers()), Microseconds(run.time_us_p10()),
      Microseconds(run.time_us_p50()), Microseconds(run.time_us_p90()),
      Gigabytes(run.algbw_gb_per_s()), ring ? Gigabytes(run.busbw_gb_per_s().number_value()) : "-",
      Gigabytes(busiest / run.time_us_p50() * 1e-3), Count(busiest),
      Count(run.wire_tx_bytes_total()), absl::StrFormat("%.1f", run.cpu_ms_per_step()),
      run.model_us() > 0 ? Gigabytes(run.model_us() / run.time_us_p50()) : "-", Count(run.wrong()));
}

}  // namespace gradsync
