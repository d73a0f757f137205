// One job of `compare`: training processes, placed on hosts where there are any, and what became of
// them.

#ifndef GRADSYNC_BENCHMARKS_COMPARISON_TRAINING_JOB_H_
#define GRADSYNC_BENCHMARKS_COMPARISON_TRAINING_JOB_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "benchmarks/comparison/compare_options.h"
#include "benchmarks/network/measured_job.h"
#include "core/group/mesh.h"
#include "core/plan/wire_traffic.h"
#include "proto/run_record.pb.h"

namespace gradsync {

// Runs the job and blocks until it has ended. `on_step` hears of each step that rank 0 has done.
// Besides what AggregateRun() gives, the record has the placement, the bandwidth, the payload of
// the busiest host, the share of the machine's cores that was busy during the measured steps, on an
// emulated network whether that was too much, and over NCCL what its log says that it chose; the
// servers' part of cpu_ms_per_step is of the measured steps (server_cpu.h).
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
