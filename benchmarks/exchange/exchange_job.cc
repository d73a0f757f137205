#include "benchmarks/exchange/exchange_job.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "benchmarks/exchange/sync_bench_report.h"
#include "benchmarks/network/tcp_run.h"
#include "benchmarks/ranks/rank_spec.h"
#include "benchmarks/records/run_job.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

constexpr int kMostTcpIterations = 5;  // they hardly differ

// `hosts[p]` is that of process p.
TcpFlowBytes FlowsBetweenHosts(const std::vector<Flow>& flows, const std::vector<int>& hosts) {
  TcpFlowBytes bytes;
  for (const Flow& flow : flows) {
    const std::pair<int, int> ends = {hosts[flow.from], hosts[flow.to]};
    if (ends.first != ends.second) bytes[ends] += flow.bytes;
  }
  return bytes;
}

}  // namespace

namespace {

absl::StatusOr<proto::Run> RunWithFlags(const ExchangeJobOptions& options,
                                        const std::vector<std::string>& flags,
                                        const SyncBenchCase& asked_for) {
  SyncBenchCase bench_case = asked_for;
  if (options.network != nullptr) {
    bench_case.bytes_per_second = options.network->payload_bytes_per_second();
  }
  GS_ASSIGN_OR_RETURN(const std::unique_ptr<RankFiles> files,
                      RankFiles::Create(RankSpecOf(bench_case), bench_case.exchange.timeout));
  LocalJobOptions processes = ProcessesOf(bench_case.job, options, bench_case.exchange.timeout);
  processes.worker_flags = {files->flag()};
  processes.worker_flags.insert(processes.worker_flags.end(), flags.begin(), flags.end());
  processes.server_flags.insert(processes.server_flags.end(), flags.begin(), flags.end());
  processes.tell_local_rank = bench_case.device != "cpu";
  GS_ASSIGN_OR_RETURN(
      const MeasuredJob<proto::ExchangeMetrics> measured,
      RunMeasuredJob<proto::ExchangeMetrics>(bench_case.job, options, std::move(processes)));
  GS_ASSIGN_OR_RETURN(proto::Run run,
                      SummarizeExchanges(bench_case, measured.ranks, measured.servers));
  run.set_nccl_chosen(measured.nccl_chosen);
  return run;
}

}  // namespace

absl::StatusOr<proto::Run> RunExchangeJob(const ExchangeJobOptions& options,
                                          const SyncBenchCase& bench_case) {
  return RunWithFlags(options, {}, bench_case);
}

absl::StatusOr<proto::Run> RunTlsBeside(const ExchangeJobOptions& options,
                                        const SyncBenchCase& bench_case,
                                        const proto::Run& measured) {
  GS_ASSIGN_OR_RETURN(proto::Run run, RunWithFlags(options, options.tls_flags, bench_case));
  run.set_link("tls");
  AddPeerRatio(measured, &run);
  return run;
}

absl::StatusOr<proto::Run> BareTcp::MeasureBeside(const SyncBenchCase& bench_case,
                                                  proto::Run* measured) {
  GS_ASSIGN_OR_RETURN(const std::vector<Flow> flows, ExchangeFlows(bench_case));
  TcpRunOptions tcp;
  tcp.flows = FlowsBetweenHosts(flows, HostsOf(bench_case.job));
  if (tcp.flows.empty()) return absl::NotFoundError("nothing crosses any link");
  std::vector<proto::ExchangeMetrics>& hosts = known_[{bench_case.job.bandwidth, tcp.flows}];
  if (hosts.empty()) {
    tcp.lab = &options_.network->lab();
    tcp.rank_binary = options_.tcp_rank_binary;
    tcp.iterations = std::min(kMostTcpIterations, bench_case.exchange.iterations);
    tcp.timeout = bench_case.exchange.timeout;
    tcp.interrupt = options_.interrupt;
    GS_ASSIGN_OR_RETURN(hosts, RunTcpFlows(tcp));
  }
  proto::Run run;
  run.set_library("tcp_stream");
  run.set_link("tcp");
  run.set_topology(measured->topology());
  run.set_update(measured->update());
  run.set_compression(measured->compression());
  SetPlaced(JobOf(*measured), &run);
  run.set_bytes(measured->bytes());
  run.set_connections(1);
  SetTimes(hosts, &run);
  run.set_wire_tx_bytes_max_node(measured->wire_tx_bytes_max_node());
  run.set_wire_rx_bytes_max_node(measured->wire_rx_bytes_max_node());
  run.set_wire_tx_bytes_total(measured->wire_tx_bytes_total());
  run.set_model_us(measured->model_us());
  AddPeerRatio(run, measured);
  return run;
}

}  // namespace gradsync
