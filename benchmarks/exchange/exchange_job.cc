#include "benchmarks/exchange/exchange_job.h"

#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "base/status_macros.h"
#include "benchmarks/exchange/exchange_flows.h"
#include "benchmarks/exchange/sync_bench_report.h"
#include "benchmarks/network/tcp_run.h"
#include "benchmarks/ranks/start_line.h"
#include "benchmarks/records/aggregate.h"
#include "benchmarks/records/run_job.h"

namespace gradsync {
namespace {

constexpr int kMostTcpIterations = 5;  // they hardly differ

}  // namespace

absl::StatusOr<proto::Run> RunExchangeJob(const ExchangeJobOptions& options,
                                          const SyncBenchCase& asked_for) {
  SyncBenchCase bench_case = asked_for;
  if (options.network != nullptr) {
    bench_case.bytes_per_second = options.network->payload_bytes_per_second();
  }
  GS_ASSIGN_OR_RETURN(const std::string start_line, NewStartLineFile());
  const auto remove = absl::MakeCleanup([&start_line] { unlink(start_line.c_str()); });
  LocalJobOptions processes = ProcessesOf(bench_case.job, options, bench_case.exchange.timeout);
  processes.worker_flags = RankFlags(bench_case, start_line);
  processes.tell_local_rank = bench_case.device != "cpu";
  GS_ASSIGN_OR_RETURN(
      const MeasuredJob<proto::ExchangeMetrics> measured,
      RunMeasuredJob<proto::ExchangeMetrics>(bench_case.job, options, std::move(processes)));
  GS_ASSIGN_OR_RETURN(proto::Run run,
                      SummarizeExchanges(bench_case, measured.ranks, measured.servers));
  run.set_nccl_chosen(measured.nccl_chosen);
  return run;
}

absl::StatusOr<BareTcp::Times> BareTcp::Measure(const SyncBenchCase& bench_case) {
  GS_ASSIGN_OR_RETURN(const std::vector<Flow> flows, ExchangeFlows(bench_case));
  TcpRunOptions run;
  run.flows = FlowsBetweenHosts(flows, HostsOf(bench_case.job));
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
  SetPlaced(JobOf(*measured), &run);
  run.set_bytes(measured->bytes());
  run.set_connections(1);
  run.set_time_us_p10(times.p10);
  run.set_time_us_p50(times.p50);
  run.set_time_us_p90(times.p90);
  SetBusBandwidth(&run);
  run.set_wire_tx_bytes_max_node(measured->wire_tx_bytes_max_node());
  run.set_wire_rx_bytes_max_node(measured->wire_rx_bytes_max_node());
  run.set_wire_tx_bytes_total(measured->wire_tx_bytes_total());
  run.set_cpu_share(times.cpu_share);
  run.set_invalid(InvalidByCpu(times.cpu_share));
  run.set_model_us(measured->model_us());
  AddPeerRatio(run, measured);
  return run;
}

}  // namespace gradsync
