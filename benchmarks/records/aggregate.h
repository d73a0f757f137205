// From what each process of a job measured to one record of the job.

#ifndef GRADSYNC_BENCHMARKS_RECORDS_AGGREGATE_H_
#define GRADSYNC_BENCHMARKS_RECORDS_AGGREGATE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/run_record.pb.h"

namespace gradsync {

// The value below which `fraction` (0 to 1) of `values` lie, linear between the two nearest; 0 for
// no values.
double Percentile(std::vector<double> values, double fraction);

// What Run calls the devices that the ranks call "cpu" or "cuda:1 (NVIDIA H200)": "cpu", "NVIDIA
// H200", several names joined by " + ", each once.
std::string NameDevices(const std::vector<std::string>& devices);

// One Run from the metrics of all workers (by rank) and servers of a job.
//   - A step takes as long as it does on its slowest rank; its parts and its exposed communication
//     are that rank's. Percentiles and medians are over measured steps.
//   - samples_per_s is workers * batch_size over the median step; under ssp and asp, where workers
//     do not wait for each other, the sum of every worker's own rate over its measured steps.
//   - Staleness is that of all workers; the curve and steps_per_s are those of curve.h.
//   - device has each name once, in the order of ranks.
//   - wire_*_max_node is that of the worker or server with the most payload per step.
//   - cpu_ms_per_step adds up all workers (measured steps) and servers (their cpu_seconds over their
//     steps, which are of their whole lives unless the caller replaces them).
// scaling_efficiency, data sizes that workers do not report and everything that describes a bare
// exchange keep zero, busbw_gb_per_s null.
// Errors: DATA_LOSS when metrics are missing or ranks disagree on the job, the number of steps or,
// unless the topology is local, on the parameters.
absl::StatusOr<proto::Run> AggregateRun(const std::vector<proto::WorkerMetrics>& workers,
                                        const std::vector<proto::ServerMetrics>& servers);

// Sets scaling_efficiency of every run and every prediction beside which there is one that differs
// from it only by having one worker (and by its batch size): samples_per_s over workers times the
// one worker's samples_per_s, which is measured for what is measured and predicted for what is
// predicted. Of all others it is 0, whatever it was.
void SetScalingEfficiency(proto::RunRecords* records);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_RECORDS_AGGREGATE_H_
