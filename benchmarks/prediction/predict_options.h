// What `predict` is asked, also about meshes, checked, and the lists of jobs that follow from it.

#ifndef GRADSYNC_BENCHMARKS_PREDICTION_PREDICT_OPTIONS_H_
#define GRADSYNC_BENCHMARKS_PREDICTION_PREDICT_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "benchmarks/options/job_sweep.h"
#include "benchmarks/options/mesh_flags.h"
#include "benchmarks/prediction/mesh_prediction.h"
#include "benchmarks/prediction/prediction.h"
#include "proto/step_profile.pb.h"

namespace gradsync {

// As the flags of the same names have them; see `predict --help`. Without links.
struct PredictOptions : SweepFlags {
  PredictOptions() {
    workers = {"2..64"};          // numbers, or FIRST..LAST: doubled from FIRST on
    servers = {"1", "n/2", "n"};  // numbers, n, or n/NUMBER
    placements = {"dedicated", "colocated"};
  }

  std::string straggler;  // RANK:FACTOR
  std::vector<std::string> bandwidths = {"1gbit"};
  int64_t batch_size = 0;         // per worker; 0: the profile's, unless global_batch_size is given
  int64_t global_batch_size = 0;  // 0: not given
  double compute_scale = 1;
  std::vector<std::string> replicas = {"1"};  // in each worker's process
  std::string device_bandwidth = "64gbit";
  std::string bucket_bytes = "25MiB";
  std::string first_bucket_bytes = "1MiB";
  std::string chunk_bytes = "0";
  // The network's constants, when no probe tells them.
  double rate_factor = LinkConstants().rate_factor;
  absl::Duration latency = absl::Seconds(LinkConstants().latency);
  absl::Duration message_cost = absl::Seconds(LinkConstants().seconds_per_message);
  absl::Duration step_overhead = absl::Seconds(LinkConstants().seconds_per_step);
};

// "n" is the number of workers; n/2 is rounded down, but at least 1. Pure.
// Errors: INVALID_ARGUMENT naming --servers.
absl::StatusOr<int> ServersOf(const std::string& text, int workers);

// Checks everything and lists the jobs, by bandwidth, then by workers. Combinations that cannot be
// and repeated ones are left out; each codec, update site and consistency that was asked for
// occurs. Errors: INVALID_ARGUMENT naming the flag, what was expected and what came.
absl::StatusOr<std::vector<PredictedJob>> ListPredictions(const PredictOptions& options);

// The jobs by bandwidth, mesh, topology, schedule, micro-batches and split; `options` says
// everything else, --workers only with "auto". Left out are servers fewer than stages, mixed
// placement, codecs and consistencies that jobs with stages or slices do not have, servers where a
// stage has one replica and rings were asked for too, all schedules but one without stages, and
// with "auto" more stages than blocks. Under "auto" a step has the global batch, or as many samples
// as all workers have with the profile's batch each, and arrangements that cannot cut it evenly
// among replicas, or into so many micro-batches, or whose owners cannot keep so much for all
// (--zero), are left out. `profiles` are all that there are of
// the model, at least one. Pure. Errors: INVALID_ARGUMENT naming the flag; those of
// CheckHasBlocks().
absl::StatusOr<std::vector<PredictedMesh>> ListMeshPredictions(
    const PredictOptions& options, const MeshFlags& flags,
    const std::vector<proto::StepProfile>& profiles);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_PREDICTION_PREDICT_OPTIONS_H_
