#ifndef GRADSYNC_BENCHMARKS_PEER_LIBRARIES_TRAINING_OPTIONS_H_
#define GRADSYNC_BENCHMARKS_PEER_LIBRARIES_TRAINING_OPTIONS_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "benchmarks/options/compute_flags.h"
#include "benchmarks/records/nccl_log.h"
#include "core/plan/job_spec.h"

namespace gradsync {

// What //benchmarks:peers --train is asked to do, as its flags have it.
struct PeerTrainingOptions {
  std::string model = "resnet18";  // resnet18 or resnet50
  int ranks = 1;
  int batch_size = 128;  // per rank
  int threads = 1;       // compute threads per rank
  int rounds = 15;       // measured turns of each contestant
  int steps_per_round = 3;
  ComputeFlags compute;    // of both sides; the device resolved
  int ranks_per_gpu = 1;   // more: a test mode (placed_job.h)
  int pixels = 32;         // height and width of images
  int loader_threads = 0;  // of our ranks, 0: as //worker has it; PyTorch's batches are made before
  NcclLog::Lookup environment;  // this process's own

  // Ours, where ranks exchange: each topology (ring, ps) over each link, ps with as many servers as
  // ranks. No links: nccl on GPUs, else what //worker takes.
  std::vector<Topology> topologies = {Topology::kRing};
  std::vector<Link> links;
  // With more ranks: one ring of ours per size, to sweep it; empty takes the default.
  std::vector<int64_t> bucket_bytes;

  // PyTorch's: some of default, best, compiled, graphs, compiled_graphs, gloo; empty: all that make sense.
  std::vector<std::string> pytorch;
  std::string python = "/usr/bin/python3";  // the Python that has torch and torchvision
  // Until one of PyTorch's must be ready, which includes compilation, and until a turn of it ends.
  absl::Duration peer_timeout = absl::Minutes(3);

  std::string rank_binary;  // //benchmarks:train_rank
  std::string script;       // pytorch_train.py

  // Whether ranks exchange gradients: on GPUs with one rank too, so that both sides have buckets
  // and collectives.
  bool synchronises() const { return ranks > 1 || compute.on_gpu(); }
};

// Compute threads of each rank where nobody says how many: together not more than there are cores,
// since ranks that share cores wait for each other's threads in every operator. Both are positive.
inline int ThreadsPerRank(int cores, int ranks) { return std::max(1, cores / ranks); }

// As //worker has --data.
inline std::string DataOf(const PeerTrainingOptions& options) {
  return options.pixels == 32 ? "synthetic" : absl::StrCat("synthetic:", options.pixels);
}

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_PEER_LIBRARIES_TRAINING_OPTIONS_H_
