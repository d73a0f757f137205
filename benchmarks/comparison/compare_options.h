// What `compare` is asked to do, checked, and the list of jobs that follows from it.

#ifndef GRADSYNC_BENCHMARKS_COMPARISON_COMPARE_OPTIONS_H_
#define GRADSYNC_BENCHMARKS_COMPARISON_COMPARE_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "benchmarks/options/compute_flags.h"
#include "benchmarks/options/job_sweep.h"
#include "benchmarks/options/mesh_flags.h"
#include "benchmarks/options/placed_job.h"

namespace gradsync {

// As the flags of the same names have them; see `compare --help`.
struct CompareOptions : SweepFlags {
  CompareOptions() {
    topologies = {"ps", "ring"};
    links.clear();    // none: grpc and shm; grpc with a bandwidth
    workers.clear();  // none: 1 and 2; with meshes as many as each has places
    servers = {"1", "2"};
  }

  MeshFlags mesh;                             // with its meshes
  std::vector<std::string> replicas = {"1"};  // --data_parallel: in each process
  std::vector<std::string> offloads = {"none"};
  ComputeFlags compute;                 // the device resolved (ResolveDevice())
  int ranks_per_gpu = 1;                // more: a test mode (placed_job.h)
  std::vector<std::string> bandwidths;  // of emulated networks; none: this host alone
  std::string model = "resnet18";
  std::string stem = "imagenet";
  std::string data = "synthetic";  // a relative folder is relative to the working directory
  int rounds = 3;                  // in each of which every configuration runs once
  int64_t steps = 40;              // of each job, warm-up included
  int64_t warmup_steps = 3;
  int64_t batch_size = 0;         // per worker; 0: 32, unless global_batch_size is given
  int64_t global_batch_size = 0;  // 0: not given. With meshes batches are micro-batches
  int threads = 1;                // per worker
  double lr = 0.01;
  uint64_t seed = 0;
  std::string straggler;  // as //worker has it
  absl::Duration timeout = absl::Seconds(60);
  std::vector<std::string> worker_flags;  // further ones
};

// One job; its link kAuto is gRPC.
struct Configuration {
  PlacedJob job;
  int64_t batch_size = 0;  // per worker, or of a micro-batch
  std::string split;       // as asked for; empty without stages
};

// "ps, 2 servers, 1 worker", with the link and the update site unless they are auto and worker.
std::string Describe(const Configuration& configuration);

// Sets the device that all workers will take; where no links were asked for, all that this build
// has for it; and what --offload says about the owners: on GPUs its values are other names for some
// of --zero's, over links of the host. `check` is CheckGpu() (core/gpu/open_gpu.h). Errors:
// INVALID_ARGUMENT naming the flag; those of ResolveDevice().
absl::Status ResolveLinksAndDevice(const GpuChecker& check, CompareOptions* options);

// Checks everything, data files included (blocks while it reads them), and lists the jobs in the
// order of the first round: by bandwidth and number of workers, so that what is compared is
// measured close in time. Combinations that cannot be are left out, but each value that was asked
// for occurs in some job (job_sweep.h); where no consistency that was asked for can be, as in
// rings, it is bsp. With meshes by bandwidth and mesh; a mesh without stages has no schedule and no
// split. Errors: INVALID_ARGUMENT naming the flag, what was expected and what came; for
// data files those of OpenDataset(), after "--data: ".
absl::StatusOr<std::vector<Configuration>> ListConfigurations(const CompareOptions& options);

// The flags of a worker of this job, without those that say who it is.
std::vector<std::string> FlagsOfWorkers(const CompareOptions& options,
                                        const Configuration& configuration);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_COMPARISON_COMPARE_OPTIONS_H_
