#include "benchmarks/exchange/sync_bench_report.h"

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "benchmarks/network/emulated_network.h"
#include "benchmarks/network/tcp_flows.h"
#include "benchmarks/prediction/prediction.h"
#include "benchmarks/records/aggregate.h"
#include "benchmarks/records/run_job.h"
#include "core/base/status_macros.h"
#include "core/plan/cost_model.h"
#include "core/program/byte_sizes.h"
#include "simulator/cluster.h"
#include "simulator/simulate.h"

namespace gradsync {
namespace {

absl::Status Check(const SyncBenchCase& bench_case,
                   const std::vector<proto::ExchangeMetrics>& ranks,
                   const std::vector<proto::ServerMetrics>& servers) {
  const size_t expected_ranks = bench_case.exchange.world_size;
  const size_t expected_servers = static_cast<size_t>(ServerProcesses(bench_case.job));
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

double ModelMicroseconds(const SyncBenchCase& bench_case, const proto::ExchangeMetrics& rank,
                         const std::vector<NodeTraffic>& hosts) {
  ExchangeCost cost;
  cost.bytes = rank.bytes();
  cost.bytes_per_second = bench_case.bytes_per_second;
  cost.stripe_bytes = std::min(cost.bytes, bench_case.exchange.world_size * rank.chunk_bytes());
  return 1e6 * ExchangeSeconds(static_cast<double>(BusiestBytes(hosts)) / cost.bytes, cost);
}

// By chunks, over our streams between hosts, on which nothing is computed.
absl::StatusOr<double> SimulatedMicroseconds(const SyncBenchCase& bench_case) {
  GS_ASSIGN_OR_RETURN(const Plan plan, ExchangePlan(bench_case.exchange));
  GS_ASSIGN_OR_RETURN(Cluster cluster, ClusterOfJob(bench_case.job, LinkConstants()));
  cluster.constants.rate_factor = bench_case.bytes_per_second / cluster.bytes_per_second;
  ComputeTimes nothing;
  nothing.bucket_ready.resize(plan.buckets().size());
  GS_ASSIGN_OR_RETURN(const StepPrediction step, SimulateStep(plan, cluster, nothing));
  return 1e6 * step.step;
}

std::string Gigabytes(double rate) { return absl::StrFormat("%.2f", rate); }

std::string Ratio(double ratio) {
  return ratio > 0 ? absl::StrFormat("%.3f", ratio) : std::string("-");
}

std::string Count(double value) { return absl::StrFormat("%.0f", value); }

// Enough digits for a microsecond, no more than make sense for a second.
std::string Microseconds(double time) {
  return time < 100 ? absl::StrFormat("%.1f", time) : absl::StrFormat("%.0f", time);
}

constexpr char kLine[] =
    "%9s  %-8s %-5s %-6s %-5s %5s %7s %-9s  %9s %9s %9s  %6s %6s %6s  %11s %11s  %8s %4s  %8s %8s "
    "%8s  "
    "%6s\n";

}  // namespace

absl::StatusOr<std::vector<Flow>> ExchangeFlows(const SyncBenchCase& bench_case) {
  GS_ASSIGN_OR_RETURN(const Plan plan, ExchangePlan(bench_case.exchange));
  return JobFlows(plan, bench_case.job, bench_case.server_weights.weights);
}

absl::StatusOr<proto::Run> SummarizeExchanges(const SyncBenchCase& bench_case,
                                              const std::vector<proto::ExchangeMetrics>& ranks,
                                              const std::vector<proto::ServerMetrics>& servers) {
  GS_RETURN_IF_ERROR(Check(bench_case, ranks, servers));
  proto::Run run;
  run.set_library("gradsync");
  run.set_topology(ranks[0].topology());
  run.set_link(ranks[0].link());
  std::vector<std::string> devices;
  for (const auto& rank : ranks) devices.push_back(rank.device());
  run.set_device(NameDevices(devices));
  run.set_nccl_version(ranks[0].nccl_version());
  run.set_nccl_asked(ranks[0].nccl_asked());
  run.set_update(ranks[0].update());
  run.set_bytes_uncounted(ranks[0].bytes_uncounted());
  run.set_own_order(ranks[0].own_order());
  run.set_compression(CodecName(bench_case.job.spec.codec));
  SetPlaced(bench_case.job, &run);
  run.set_bytes(ranks[0].bytes());
  run.set_bucket_bytes(ranks[0].bucket_bytes());
  run.set_chunk_bytes(ranks[0].chunk_bytes());
  run.set_connections(ranks[0].connections());
  run.set_steps(bench_case.exchange.iterations);

  SetTimes(ranks, &run);
  std::vector<WirePayload> counted = CountedPayload(ranks, servers);
  for (WirePayload& node : counted) {
    node = {std::round(node.tx_bytes), std::round(node.rx_bytes)};
  }
  GS_ASSIGN_OR_RETURN(const std::vector<Flow> flows, ExchangeFlows(bench_case));
  const std::vector<int> hosts = HostsOf(bench_case.job);
  SetWire(bench_case.job.bandwidth.empty() ? counted : PayloadByHost(counted, flows, hosts), &run);
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
    run.set_model_us(ModelMicroseconds(bench_case, ranks[0], HostTraffic(flows, hosts)));
    const PlacedJob& job = bench_case.job;
    const bool frames = run.link() == LinkName(Link::kGrpc) || run.link() == LinkName(Link::kTcp);
    if (frames && job.workers > 1 && !job.bandwidth.empty()) {
      GS_ASSIGN_OR_RETURN(const double simulated, SimulatedMicroseconds(bench_case));
      run.set_simulated_us(simulated);
    }
  }
  return run;
}

void SetTimes(const std::vector<proto::ExchangeMetrics>& ranks, proto::Run* run) {
  const std::vector<double> times = ExchangeTimes(ranks);
  run->set_time_us_p10(Percentile(times, 0.1));
  run->set_time_us_p50(Percentile(times, 0.5));
  run->set_time_us_p90(Percentile(times, 0.9));
  SetBusBandwidth(run);
  const proto::ExchangeMetrics& rank = ranks[0];
  if (rank.core_seconds() > 0) run->set_cpu_share(rank.busy_core_seconds() / rank.core_seconds());
  // Jobs on emulated hosts only: elsewhere the cores are what all processes share.
  if (!run->bandwidth().empty()) run->set_invalid(InvalidByCpu(run->cpu_share()));
}

void SetBusBandwidth(proto::Run* run) {
  run->set_algbw_gb_per_s(run->bytes() / run->time_us_p50() * 1e-3);
  if (run->servers() == 0) {
    run->mutable_busbw_gb_per_s()->set_number_value(run->algbw_gb_per_s() *
                                                    AllReduceBusFactor(run->workers()));
  } else {
    run->mutable_busbw_gb_per_s()->set_null_value(google::protobuf::NULL_VALUE);
  }
}

void AddPeerRatio(const proto::Run& peer, proto::Run* measured) {
  measured->set_peer_ratio(peer.time_us_p50() / measured->time_us_p50());
  proto::PeerRatio& ratio = *measured->add_peer_ratios();
  ratio.set_peer(peer.library());
  ratio.set_p50(measured->peer_ratio());
}

std::string SyncBenchHead() {
  return absl::StrCat(
      absl::StrFormat(kLine, "bytes", "topology", "link", "update", "codec", "ranks", "servers",
                      "placement", "time us", "", "", "algbw", "busbw", "node", "wire bytes",
                      "wire bytes", "cpu", "cpu", "model /", "sim. /", "peer /", "#wrong"),
      absl::StrFormat(kLine, "", "", "", "", "", "", "", "", "p10", "p50", "p90", "GB/s", "GB/s",
                      "GB/s", "max node", "total", "ms", "%", "measured", "measured", "measured",
                      ""));
}

std::string SyncBenchLine(const proto::Run& run) {
  const bool ring = run.busbw_gb_per_s().kind_case() == google::protobuf::Value::kNumberValue;
  const bool counted = !run.bytes_uncounted();
  const double busiest = std::max(run.wire_tx_bytes_max_node(), run.wire_rx_bytes_max_node());
  const std::string line = absl::StrFormat(
      kLine, FormatBytes(static_cast<int64_t>(run.bytes())), run.topology(), run.link(),
      run.update(), run.compression(), absl::StrCat(run.workers()),
      run.servers() == 0 ? "-" : absl::StrCat(run.servers()),
      run.placement().empty() ? "-" : run.placement(), Microseconds(run.time_us_p10()),
      Microseconds(run.time_us_p50()), Microseconds(run.time_us_p90()),
      Gigabytes(run.algbw_gb_per_s()), ring ? Gigabytes(run.busbw_gb_per_s().number_value()) : "-",
      counted ? Gigabytes(busiest / run.time_us_p50() * 1e-3) : "-", counted ? Count(busiest) : "-",
      counted ? Count(run.wire_tx_bytes_total()) : "-",
      absl::StrFormat("%.1f", run.cpu_ms_per_step()),
      absl::StrFormat("%.0f", 100 * run.cpu_share()), Ratio(run.model_us() / run.time_us_p50()),
      Ratio(run.simulated_us() / run.time_us_p50()), Ratio(run.peer_ratio()), Count(run.wrong()));
  std::string notes;
  if (!run.device().empty() && run.device() != "cpu") {
    absl::StrAppend(&notes, "           ",
                    run.library() == "nccl_tests" ? "by " + run.settings() + ", " : "", "on ",
                    run.device());
    if (!run.nccl_version().empty()) {
      absl::StrAppend(&notes, "; NCCL ", run.nccl_version(), ", asked for ",
                      run.nccl_asked().empty() ? "nothing" : run.nccl_asked(), ", chose ",
                      run.nccl_chosen());
    }
    absl::StrAppend(&notes, "\n");
  }
  if (!run.invalid().empty()) absl::StrAppend(&notes, "           INVALID: ", run.invalid(), "\n");
  return absl::StrCat(line, notes);
}

}  // namespace gradsync
