// What the servers of a job computed in its measured steps. A server does not know which steps those
// are, so this is seen from outside, while the job runs.

#ifndef GRADSYNC_BENCHMARKS_COMPARISON_SERVER_CPU_H_
#define GRADSYNC_BENCHMARKS_COMPARISON_SERVER_CPU_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "proto/run_record.pb.h"

namespace gradsync {

// User and system time of a process so far, in seconds; nothing where there is no such process.
absl::optional<double> CpuSecondsOf(int pid);

// Not thread-safe; does not block.
class ServerCpu {
 public:
  using Clock = std::function<absl::optional<double>(int pid)>;

  // Measures after so many steps; without a warm-up after the first one.
  explicit ServerCpu(int64_t warmup_steps, Clock clock = CpuSecondsOf);

  // As LocalJobOptions::on_start, for all processes of the job.
  void Started(absl::string_view process, int pid);

  // Rank 0 has done `step` of its `steps`.
  void Step(int64_t step, int64_t steps);

  // Replaces cpu_seconds and steps of `servers`, which are of their whole lives, by those between
  // the end of rank 0's warm-up and the end of its last step. Under ssp and asp steps are those of
  // the group, n steps of `workers` to one. Where nothing was measured, they stay as they are.
  void Replace(const std::vector<proto::WorkerMetrics>& workers,
               std::vector<proto::ServerMetrics>* servers) const;

 private:
  struct Server {
    int pid = 0;
    absl::optional<double> begin;
    absl::optional<double> end;
  };

  double MeasuredSteps(const std::vector<proto::WorkerMetrics>& workers) const;

  const int64_t first_;
  const Clock clock_;
  std::vector<Server> servers_;
  int64_t begin_step_ = 0;  // 0: not yet
  int64_t end_step_ = 0;
};

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_COMPARISON_SERVER_CPU_H_
