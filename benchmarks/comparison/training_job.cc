#include "benchmarks/comparison/training_job.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/status_macros.h"
#include "benchmarks/options/placement.h"
#include "benchmarks/options/shared_gpu.h"
#include "benchmarks/records/aggregate.h"
#include "benchmarks/records/machine_load.h"
#include "benchmarks/records/proto_json.h"
#include "benchmarks/records/ran_as_asked.h"
#include "tools/local_job.h"

namespace gradsync {
namespace {

constexpr int kBadInput = 2;

// Reads "step 10/40 ..." from a line of rank 0.
bool ParseStep(absl::string_view line, int64_t* step, int64_t* steps) {
  long long parsed_step = 0;
  long long parsed_steps = 0;
  const std::string text(line);
  if (std::sscanf(text.c_str(), "step %lld/%lld", &parsed_step, &parsed_steps) != 2) return false;
  *step = parsed_step;
  *steps = parsed_steps;
  return parsed_steps > 0;
}

// The machine's load between the end of the warm-up and the end of the last step.
class MeasuredLoad {
 public:
  explicit MeasuredLoad(int64_t warmup_steps) : first_(std::max<int64_t>(1, warmup_steps)) {}

  void Step(int64_t step, int64_t steps) {
    if (step >= first_ && !load_.has_value()) load_.emplace();
    if (step == steps && load_->CoreSeconds() > 0) {
      share_ = load_->BusyCoreSeconds() / load_->CoreSeconds();
    }
  }

  double share() const { return share_; }

 private:
  const int64_t first_;
  absl::optional<MachineLoad> load_;
  double share_ = 0;
};

absl::StatusOr<proto::Run> ReadRun(const LocalJobResult& result,
                                   const Configuration& configuration) {
  std::vector<proto::WorkerMetrics> workers(result.worker_metrics.size());
  std::vector<proto::ServerMetrics> servers(result.server_metrics.size());
  for (size_t i = 0; i < workers.size(); ++i) {
    GS_RETURN_IF_ERROR(
        ParseJson(result.worker_metrics[i], absl::StrCat("metrics of worker ", i), &workers[i]));
    GS_RETURN_IF_ERROR(CheckRanAsAsked(
        {configuration.topology, configuration.link, configuration.update}, workers[i]));
  }
  for (size_t i = 0; i < servers.size(); ++i) {
    GS_RETURN_IF_ERROR(
        ParseJson(result.server_metrics[i], absl::StrCat("metrics of server ", i), &servers[i]));
  }
  GS_ASSIGN_OR_RETURN(proto::Run run, AggregateRun(workers, servers));
  run.set_servers(configuration.servers);
  run.set_placement(configuration.placement);
  run.set_bandwidth(configuration.bandwidth);
  if (configuration.bandwidth.empty()) return run;
  run.set_wire_tx_bytes_max_node(0);
  run.set_wire_rx_bytes_max_node(0);
  run.set_wire_tx_bytes_total(0);
  const std::vector<int> hosts =
      HostsOf(configuration.placement, configuration.workers, configuration.servers);
  for (const HostPayload& host : PayloadByHost(workers, servers, hosts)) {
    run.set_wire_tx_bytes_max_node(std::max(run.wire_tx_bytes_max_node(), host.tx_bytes));
    run.set_wire_rx_bytes_max_node(std::max(run.wire_rx_bytes_max_node(), host.rx_bytes));
    run.set_wire_tx_bytes_total(run.wire_tx_bytes_total() + host.tx_bytes);
  }
  return run;
}

}  // namespace

std::vector<HostPayload> PayloadByHost(const std::vector<proto::WorkerMetrics>& workers,
                                       const std::vector<proto::ServerMetrics>& servers,
                                       const std::vector<int>& hosts) {
  std::vector<HostPayload> payload(*std::max_element(hosts.begin(), hosts.end()) + 1);
  double parameters = 0;
  for (const proto::ServerMetrics& server : servers) parameters += server.shard_bytes();
  for (size_t w = 0; w < workers.size(); ++w) {
    payload[hosts[w]].tx_bytes += workers[w].wire_tx_bytes_per_step();
    payload[hosts[w]].rx_bytes += workers[w].wire_rx_bytes_per_step();
  }
  for (size_t s = 0; s < servers.size(); ++s) {
    HostPayload& host = payload[hosts[workers.size() + s]];
    host.tx_bytes += servers[s].wire_tx_bytes_per_step();
    host.rx_bytes += servers[s].wire_rx_bytes_per_step();
    for (size_t w = 0; w < workers.size() && parameters > 0; ++w) {
      if (hosts[w] != hosts[workers.size() + s]) continue;
      const double within =
          (workers[w].wire_tx_bytes_per_step() + workers[w].wire_rx_bytes_per_step()) *
          servers[s].shard_bytes() / parameters;
      host.tx_bytes -= within;
      host.rx_bytes -= within;
    }
  }
  return payload;
}

absl::StatusOr<proto::Run> RunTrainingJob(
    const TrainingJobOptions& options, const CompareOptions& compare,
    const Configuration& configuration,
    const std::function<void(int64_t step, int64_t steps)>& on_step) {
  LocalJobOptions job;
  job.worker_binary = options.worker_binary;
  job.server_binary = options.server_binary;
  job.workers = configuration.workers;
  job.servers =
      ServerProcesses(configuration.placement, configuration.workers, configuration.servers);
  job.worker_flags = WorkerFlags(compare, configuration);
  job.server_flags = {absl::StrCat("--timeout=", absl::FormatDuration(compare.timeout))};
  if (options.network != nullptr) {
    job.lab = &options.network->lab();
    job.hosts = HostsOf(configuration.placement, configuration.workers, configuration.servers);
  }
  job.tell_local_rank = compare.compute.on_gpu();
  job.ranks_per_gpu = compare.ranks_per_gpu;
  GS_ASSIGN_OR_RETURN(const NcclLog nccl_log,
                      NcclLog::ForLink(configuration.link, options.environment));
  job.rank_0_environment = nccl_log.environment();
  const bool shared_by_nccl = configuration.link == "nccl" && compare.ranks_per_gpu > 1;
  if (shared_by_nccl) job.worker_environment = SharedGpuEnvironment;
  job.collect_metrics = true;
  job.start_timeout = compare.timeout;
  job.interrupt = options.interrupt;
  MeasuredLoad load(compare.warmup_steps);
  job.on_line = [&](absl::string_view process, absl::string_view line, bool is_stderr) {
    int64_t step = 0;
    int64_t steps = 0;
    if (is_stderr || process != "worker 0" || !ParseStep(line, &step, &steps)) return;
    load.Step(step, steps);
    on_step(step, steps);
  };
  GS_ASSIGN_OR_RETURN(const LocalJobResult result, RunLocalJob(job));
  if (options.interrupt != nullptr && *options.interrupt != 0) {
    return absl::CancelledError(result.failure);
  }
  if (result.exit_code == kBadInput) return absl::InvalidArgumentError(DescribeFailure(result));
  if (result.exit_code != 0) return absl::AbortedError(DescribeFailure(result));
  GS_ASSIGN_OR_RETURN(proto::Run run, ReadRun(result, configuration));
  run.set_global_batch_size(static_cast<double>(compare.global_batch_size));
  run.set_cpu_share(load.share());
  run.set_nccl_chosen(nccl_log.Chosen());
  if (options.network != nullptr) run.set_invalid(InvalidByCpu(run.cpu_share()));
  if (shared_by_nccl) run.set_invalid(SharedGpuNote(compare.ranks_per_gpu));
  return run;
}

}  // namespace gradsync
