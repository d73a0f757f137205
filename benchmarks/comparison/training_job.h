// One job of `compare`: training processes, placed on hosts where there are any, and what became of
// them.

#ifndef GRADSYNC_BENCHMARKS_COMPARISON_TRAINING_JOB_H_
#define GRADSYNC_BENCHMARKS_COMPARISON_TRAINING_JOB_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "benchmarks/comparison/compare_options.h"
#include "benchmarks/network/measured_job.h"
#include "core/group/mesh.h"
#include "core/plan/wire_traffic.h"
#include "proto/run_record.pb.h"

namespace gradsync {

// What the servers of a job computed in its measured steps. A server does not know which steps
// those are, so this is seen from outside, while the job runs.

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

// Runs the job and blocks until it has ended. `on_step` hears of each step that rank 0 has done.
// Besides what AggregateRun() gives, the record has the placement, the bandwidth, the payload of
// the busiest host, the share of the machine's cores that was busy during the measured steps, on an
// emulated network whether that was too much, and over NCCL what its log says that it chose; the
// servers' part of cpu_ms_per_step is of the measured steps (ServerCpu).
// Errors: those of RunMeasuredJob() and AggregateRun().
absl::StatusOr<proto::Run> RunTrainingJob(
    const JobPrograms& programs, const CompareOptions& compare, const Configuration& configuration,
    const std::function<void(int64_t step, int64_t steps)>& on_step);

// What workers and servers, which are processes in this order, tell each other per step: a worker
// exchanges as much of its traffic with each server as the server has of the parameters. On a mesh
// with parts of the model, server i is one of part i modulo their number.
std::vector<Flow> FlowsByShards(const std::vector<proto::WorkerMetrics>& workers,
                                const std::vector<proto::ServerMetrics>& servers,
                                const Mesh& mesh = Mesh());

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_COMPARISON_TRAINING_JOB_H_
