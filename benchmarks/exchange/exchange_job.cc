#include "benchmarks/exchange/exchange_job.h"

#include <unistd.h>

#include <algorithm>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "benchmarks/exchange/exchange_flows.h"
#include "benchmarks/exchange/sync_bench_report.h"
#include "benchmarks/network/tcp_run.h"
#include "benchmarks/options/placement.h"
#include "benchmarks/ranks/start_line.h"
#include "benchmarks/records/aggregate.h"
#include "benchmarks/records/proto_json.h"
#include "benchmarks/records/ran_as_asked.h"
#include "plan/cost_model.h"
#include "tools/local_job.h"

namespace gradsync {
namespace {

constexpr int kBadInput = 2;
constexpr int kMostTcpIterations = 5;  // they hardly differ

absl::StatusOr<proto::Run> ReadRun(const SyncBenchCase& bench_case, const LocalJobResult& result) {
  std::vector<proto::ExchangeMetrics> ranks(result.worker_metrics.size());
  std::vector<proto::ServerMetrics> servers(result.server_metrics.size());
  for (size_t i = 0; i < ranks.size(); ++i) {
    GS_RETURN_IF_ERROR(
        ParseJson(result.worker_metrics[i], absl::StrCat("metrics of rank ", i), &ranks[i]));
    GS_RETURN_IF_ERROR(
        CheckRanAsAsked({bench_case.topology, bench_case.link, bench_case.update}, ranks[i]));
  }
  for (size_t i = 0; i < servers.size(); ++i) {
    GS_RETURN_IF_ERROR(
        ParseJson(result.server_metrics[i], absl::StrCat("metrics of server ", i), &servers[i]));
  }
  return SummarizeExchanges(bench_case, ranks, servers);
}

std::vector<int> Hosts(const SyncBenchCase& bench_case) {
  return HostsOf(bench_case.placement, bench_case.exchange.world_size, bench_case.servers);
}

}  // namespace

absl::StatusOr<proto::Run> RunExchangeJob(const ExchangeJobOptions& options,
                                          const SyncBenchCase& asked_for) {
  SyncBenchCase bench_case = asked_for;
  GS_ASSIGN_OR_RETURN(const std::string start_line, NewStartLineFile());
  const auto remove = absl::MakeCleanup([&start_line] { unlink(start_line.c_str()); });
  LocalJobOptions job;
  job.worker_binary = options.rank_binary;
  job.server_binary = options.server_binary;
  job.workers = bench_case.exchange.world_size;
  job.servers = bench_case.server_processes();
  job.worker_flags = RankFlags(bench_case, start_line);
  job.server_flags = {
      absl::StrCat("--timeout=", absl::FormatDuration(bench_case.exchange.timeout))};
  if (options.network != nullptr) {
    job.lab = &options.network->lab();
    job.hosts = Hosts(bench_case);
    bench_case.bytes_per_second = options.network->payload_bytes_per_second();
  }
  job.tell_local_rank = bench_case.device != "cpu";
  GS_ASSIGN_OR_RETURN(const NcclLog nccl_log,
                      NcclLog::ForLink(bench_case.link, options.environment));
  job.rank_0_environment = nccl_log.environment();
  job.collect_metrics = true;
  job.start_timeout = bench_case.exchange.timeout;
  job.interrupt = options.interrupt;
  GS_ASSIGN_OR_RETURN(const LocalJobResult result, RunLocalJob(job));
  if (options.interrupt != nullptr && *options.interrupt != 0) {
    return absl::CancelledError(result.failure);
  }
  if (result.exit_code == kBadInput) return absl::InvalidArgumentError(DescribeFailure(result));
  if (result.exit_code != 0) return absl::AbortedError(DescribeFailure(result));
  GS_ASSIGN_OR_RETURN(proto::Run run, ReadRun(bench_case, result));
  run.set_nccl_chosen(nccl_log.Chosen());
  return run;
}

absl::StatusOr<BareTcp::Times> BareTcp::Measure(const SyncBenchCase& bench_case) {
  GS_ASSIGN_OR_RETURN(const std::vector<Flow> flows, ExchangeFlows(bench_case));
  TcpRunOptions run;
  run.flows = FlowsBetweenHosts(flows, Hosts(bench_case));
  if (run.flows.empty()) return absl::NotFoundError("nothing crosses any link");
  const std::string key = FormatTcpFlows(run.flows);
  if (const auto known = by_flows_.find(key); known != by_flows_.end()) return known->second;
  run.lab = &options_.network->lab();
  run.rank_binary = options_.tcp_rank_binary;
  run.iterations = std::min(kMostTcpIterations, bench_case.exchange.iterations);
  run.timeout = bench_case.exchange.timeout;
  run.interrupt = options_.interrupt;
  GS_ASSIGN_OR_RETURN(const std::vector<proto::ExchangeMetrics> hosts, RunTcpFlows(run));
  const std::vector<double> times = ExchangeTimes(hosts);
  Times measured = {Percentile(times, 0.1), Percentile(times, 0.5), Percentile(times, 0.9), 0};
  if (hosts[0].core_seconds() > 0) {
    measured.cpu_share = hosts[0].busy_core_seconds() / hosts[0].core_seconds();
  }
  by_flows_[key] = measured;
  return measured;
}

absl::StatusOr<proto::Run> BareTcp::MeasureBeside(const SyncBenchCase& bench_case,
                                                  proto::Run* measured) {
  GS_ASSIGN_OR_RETURN(const Times times, Measure(bench_case));
  proto::Run run;
  run.set_library("tcp_stream");
  run.set_link("tcp");
  run.set_topology(measured->topology());
  run.set_update(measured->update());
  run.set_compression(measured->compression());
  run.set_placement(measured->placement());
  run.set_workers(measured->workers());
  run.set_servers(measured->servers());
  run.set_bandwidth(measured->bandwidth());
  run.set_bytes(measured->bytes());
  run.set_connections(1);
  run.set_time_us_p10(times.p10);
  run.set_time_us_p50(times.p50);
  run.set_time_us_p90(times.p90);
  run.set_algbw_gb_per_s(run.bytes() / times.p50 * 1e-3);
  if (run.servers() == 0) {
    run.mutable_busbw_gb_per_s()->set_number_value(run.algbw_gb_per_s() *
                                                   AllReduceBusFactor(run.workers()));
  } else {
    run.mutable_busbw_gb_per_s()->set_null_value(google::protobuf::NULL_VALUE);
  }
  run.set_wire_tx_bytes_max_node(measured->wire_tx_bytes_max_node());
  run.set_wire_rx_bytes_max_node(measured->wire_rx_bytes_max_node());
  run.set_wire_tx_bytes_total(measured->wire_tx_bytes_total());
  run.set_cpu_share(times.cpu_share);
  run.set_invalid(InvalidByCpu(times.cpu_share));
  run.set_model_us(measured->model_us());
  measured->set_peer_ratio(times.p50 / measured->time_us_p50());
  proto::PeerRatio& ratio = *measured->add_peer_ratios();
  ratio.set_peer("tcp_stream");
  ratio.set_p50(measured->peer_ratio());
  return run;
}

}  // namespace gradsync
