// What the simulator says about a job, in the words of the benchmarks: a step profile and a
// configuration in, a Run as if it had been measured out. `compare`, `train_bench` and `predict`
// put it beside measurements.

#ifndef GRADSYNC_BENCHMARKS_PREDICTION_PREDICTION_H_
#define GRADSYNC_BENCHMARKS_PREDICTION_PREDICTION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "benchmarks/options/placed_job.h"
#include "proto/run_record.pb.h"
#include "proto/step_profile.pb.h"
#include "simulator/calibration.h"
#include "simulator/cluster.h"
#include "simulator/simulate.h"

namespace gradsync {

// Defaults are the flags' of compare and train_bench.
struct PredictedJob {
  PlacedJob placed;  // over gRPC, whatever its link says
  int64_t bucket_bytes = int64_t{25} << 20;
  int64_t first_bucket_bytes = int64_t{1} << 20;
  int64_t chunk_bytes = 0;
  // Per worker; 0: the profile's. Forward and backward are taken to grow with it.
  int64_t batch_size = 0;
  double compute_scale = 1;  // multiplies forward, backward and update
  // With replicas in each process (placed.arrangement.data_parallel), which share the worker's
  // batch out and compute at the same time: what passes between device 0 and all others together.
  double device_bytes_per_second = 8e9;
  // Of each worker, simulated where steps differ: under ssp, asp and slowness_of_step.
  int steps = 50;
  std::vector<double> slowness;  // by rank, of stragglers; empty: none
  // Instead, of stragglers that are slow in some steps only; may be null.
  SlownessOfStep slowness_of_step;
  LinkConstants constants;  // see calibration.h for those of a probed cluster
  SimulationMethod method = SimulationMethod::kAutomatic;
};

// The cluster that a placed job runs on, whose spec passed CheckJob(). Errors: those of
// ParseBandwidth().
absl::StatusOr<Cluster> ClusterOfJob(const PlacedJob& job, const LinkConstants& constants);

// The predicted run: what defines it, step_ms_p50, exposed_ms_p50, breakdown_ms, samples_per_s,
// scaling_efficiency (beside workers that need not communicate, and replicas that are nowhere
// copied to; `compare` replaces it by SetScalingEfficiency()), wire_tx_bytes_max_node and
// wire_rx_bytes_max_node (of a host), worker_memory_bytes and server_memory_bytes,
// replicate_ms_p50, apply_ms_p50, reduce_ms_p50, device0_tx_bytes and device0_rx_bytes (without the
// batch and the losses, which are small), and model_us, the closed form of one exchange of
// everything at once, all gathers of a step included;
// steps_per_s of the group. Where steps differ, a step is what that rate makes of it
// (SimulateSteps()). Percentiles other than the median are not
// predicted. Pure; thread-safe; blocks to compute.
//
// Errors: INVALID_ARGUMENT for a number or combination that cannot be (CheckJob()), or a profile
// that does not validate, or lacks blocks where owners alone keep parameters (CheckHasBlocks()).
absl::StatusOr<proto::Run> PredictRun(const proto::StepProfile& profile, const PredictedJob& job);

// The measured exchanges among `runs` (sync_bench --json) that a calibration can use: by gradsync,
// with a bandwidth, valid, nothing wrong. Errors: INVALID_ARGUMENT for one that cannot have been.
absl::StatusOr<std::vector<Probe>> ProbesOf(const proto::RunRecords& records);

// Constants fitted to the exchanges that a file has, written by `sync_bench --bandwidth --json`:
// latency and what messages and steps cost, the others as in `start`, the rate factor that of bare
// TCP where the file has one; and where `start` has cores that hosts share, what they spend, from
// how busy those of the probed machine were. Thread-safe; blocks to read and to compute.
// Errors: INVALID_ARGUMENT naming --probe when the file cannot be read, has no usable exchanges or
// not enough of them.
absl::StatusOr<Calibration> FitProbe(const std::string& path, LinkConstants start);

// "probe: rate_factor 0.950, latency 50 us, ...; its own times within 1.0 %".
std::string FormatCalibration(const Calibration& calibration);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_PREDICTION_PREDICTION_H_
