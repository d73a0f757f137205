#include "benchmarks/comparison/training_job.h"

#include <time.h>

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "benchmarks/options/placed_job.h"
#include "benchmarks/records/aggregate.h"
#include "benchmarks/records/curve.h"
#include "benchmarks/records/machine_info.h"
#include "benchmarks/records/run_job.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

// Reads "step 10/40 ..." from a line of rank 0.
bool ParseStep(absl::string_view line, int64_t* step, int64_t* steps) {
  const std::string text(line);
  return std::sscanf(text.c_str(), "step %" SCNd64 "/%" SCNd64, step, steps) == 2 && *steps > 0;
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

// What a record says comes from what ran.
absl::Status CheckOwnersKeep(const PlacedJob& job, const proto::WorkerMetrics& ran) {
  const int asked = std::max(job.zero, job.spec.update == UpdateSite::kOwner ? 1 : 0);
  if (ran.zero() == asked) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("expected rank ", ran.rank(), " to run --zero=", asked,
                                          ", found ", ran.zero(),
                                          "; the measurement is not what it says"));
}

// So does how the model was spread. To workers a mesh that leaves it whole is only --accumulate.
absl::Status CheckArrangement(const Arrangement& asked, const Mesh& mesh,
                              const proto::WorkerMetrics& ran) {
  Arrangement expected = asked;
  const bool whole = !mesh.cuts_model();
  if (whole) expected.mesh.clear();
  Arrangement found;
  found.mesh = ran.mesh();
  found.schedule = ran.pipeline_schedule();
  found.micro_batches = whole ? ran.accumulate() : ran.micro_batches();
  found.data_parallel = std::max(1, ran.data_parallel());
  if (asked.mesh.empty()) found.micro_batches = 0;  // --accumulate is any flag of the workers
  if (found == expected) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("expected rank ", ran.rank(), " to run ",
                                          Describe(expected), ", found ", Describe(found),
                                          "; the measurement is not what it says"));
}

}  // namespace

absl::optional<double> CpuSecondsOf(int pid) {
  clockid_t clock;
  timespec time;
  if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &time) != 0) {
    return absl::nullopt;
  }
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

ServerCpu::ServerCpu(int64_t warmup_steps, Clock clock)
    : first_(std::max<int64_t>(1, warmup_steps)), clock_(std::move(clock)) {}

void ServerCpu::Started(absl::string_view process, int pid) {
  if (!absl::StartsWith(process, "server ")) return;
  servers_.emplace_back().pid = pid;
}

void ServerCpu::Step(int64_t step, int64_t steps) {
  if (step >= first_ && begin_step_ == 0) {
    begin_step_ = step;
    for (Server& server : servers_) server.begin = clock_(server.pid);
  }
  if (step == steps) {
    end_step_ = step;
    for (Server& server : servers_) server.end = clock_(server.pid);
  }
}

void ServerCpu::Replace(const std::vector<proto::WorkerMetrics>& workers,
                        std::vector<proto::ServerMetrics>* servers) const {
  const double steps = MeasuredSteps(workers);
  if (steps <= 0) return;
  for (size_t s = 0; s < std::min(servers_.size(), servers->size()); ++s) {
    const Server& seen = servers_[s];
    if (!seen.begin.has_value() || !seen.end.has_value()) continue;
    (*servers)[s].set_cpu_seconds(*seen.end - *seen.begin);
    (*servers)[s].set_steps(steps);
  }
}

// Of the group.
double ServerCpu::MeasuredSteps(const std::vector<proto::WorkerMetrics>& workers) const {
  if (workers.empty() || end_step_ <= begin_step_) return 0;
  const proto::WorkerMetrics& rank_0 = workers[0];
  if (SpecOf(rank_0).consistency.bulk()) return static_cast<double>(end_step_ - begin_step_);
  if (rank_0.step_end_seconds().empty()) return 0;
  const int64_t entry = (begin_step_ - 1) / std::max(1, rank_0.step_stride());
  const int last = rank_0.step_end_seconds_size() - 1;
  const double from = rank_0.step_end_seconds(std::min(static_cast<int>(entry), last));
  return StepsBetween(workers, from, rank_0.step_end_seconds(last));
}

std::vector<Flow> FlowsByShards(const std::vector<proto::WorkerMetrics>& workers,
                                const std::vector<proto::ServerMetrics>& servers,
                                const Mesh& mesh) {
  const int parts = mesh.size(MeshDimension::kPipeline) * mesh.size(MeshDimension::kTensor);
  std::vector<double> parameters(static_cast<size_t>(parts));
  for (size_t s = 0; s < servers.size(); ++s) parameters[s % parts] += servers[s].shard_bytes();
  std::vector<Flow> flows;
  for (size_t w = 0; w < workers.size(); ++w) {
    const int worker = static_cast<int>(w);
    // Of the two dimensions one is 1.
    const int part = mesh.Coordinate(worker, MeshDimension::kPipeline) +
                     mesh.Coordinate(worker, MeshDimension::kTensor);
    if (parameters[part] <= 0) continue;
    for (size_t s = part; s < servers.size(); s += parts) {
      const double share = servers[s].shard_bytes() / parameters[part];
      const int server = static_cast<int>(workers.size() + s);
      flows.push_back({worker, server, std::llround(share * workers[w].wire_tx_bytes_per_step())});
      flows.push_back({server, worker, std::llround(share * workers[w].wire_rx_bytes_per_step())});
    }
  }
  return flows;
}

absl::StatusOr<proto::Run> RunTrainingJob(
    const JobPrograms& programs, const CompareOptions& compare, const Configuration& configuration,
    const std::function<void(int64_t step, int64_t steps)>& on_step) {
  const PlacedJob& job = configuration.job;
  LocalJobOptions processes = ProcessesOf(job, programs, compare.timeout);
  processes.worker_flags = FlagsOfWorkers(compare, configuration);
  processes.tell_local_rank = compare.compute.on_gpu();
  processes.ranks_per_gpu = compare.ranks_per_gpu;
  const bool shared_by_nccl = job.spec.link == Link::kNccl && compare.ranks_per_gpu > 1;
  if (shared_by_nccl) processes.worker_environment = SharedGpuEnvironment;
  MeasuredLoad load(compare.warmup_steps);
  ServerCpu server_cpu(compare.warmup_steps);
  processes.on_start = [&server_cpu](absl::string_view process, int pid) {
    server_cpu.Started(process, pid);
  };
  processes.on_line = [&](absl::string_view process, absl::string_view line, bool is_stderr) {
    int64_t step = 0;
    int64_t steps = 0;
    if (is_stderr || process != "worker 0" || !ParseStep(line, &step, &steps)) return;
    load.Step(step, steps);
    server_cpu.Step(step, steps);
    on_step(step, steps);
  };
  GS_ASSIGN_OR_RETURN(MeasuredJob<proto::WorkerMetrics> measured,
                      RunMeasuredJob<proto::WorkerMetrics>(job, programs, std::move(processes)));
  server_cpu.Replace(measured.ranks, &measured.servers);
  GS_ASSIGN_OR_RETURN(proto::Run run, AggregateRun(measured.ranks, measured.servers));
  GS_ASSIGN_OR_RETURN(const Mesh mesh, Mesh::Parse(job.arrangement.mesh, job.workers));
  for (const proto::WorkerMetrics& rank : measured.ranks) {
    GS_RETURN_IF_ERROR(CheckOwnersKeep(job, rank));
    GS_RETURN_IF_ERROR(CheckArrangement(job.arrangement, mesh, rank));
  }
  SetPlaced(job, &run);
  SetArrangement(job.arrangement, &run);
  run.set_nccl_chosen(measured.nccl_chosen);
  if (!job.bandwidth.empty()) {
    SetWire(PayloadByHost(CountedPayload(measured.ranks, measured.servers),
                          FlowsByShards(measured.ranks, measured.servers, mesh), HostsOf(job)),
            &run);
  }
  run.set_global_batch_size(static_cast<double>(compare.global_batch_size));
  run.set_cpu_share(load.share());
  if (programs.network != nullptr) run.set_invalid(InvalidByCpu(run.cpu_share()));
  if (shared_by_nccl) run.set_invalid(SharedGpuNote(compare.ranks_per_gpu));
  return run;
}

}  // namespace gradsync
