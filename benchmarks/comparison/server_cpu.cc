#include "benchmarks/comparison/server_cpu.h"

#include <time.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "benchmarks/records/curve.h"
#include "benchmarks/records/run_job.h"

namespace gradsync {

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

}  // namespace gradsync
