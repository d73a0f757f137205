// Several ranks on one GPU, which NCCL refuses: a test mode (docs/nccl.md, "Two ranks on one GPU").

#ifndef GRADSYNC_BENCHMARKS_OPTIONS_SHARED_GPU_H_
#define GRADSYNC_BENCHMARKS_OPTIONS_SHARED_GPU_H_

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace gradsync {

// How many GPUs so many ranks of one host have, or how many come before that of rank `ranks`, when
// every `ranks_per_gpu` share one.
inline int GpusOf(int ranks, int ranks_per_gpu) {
  return (ranks + ranks_per_gpu - 1) / ranks_per_gpu;
}
inline int GpuOf(int rank, int ranks_per_gpu) { return rank / ranks_per_gpu; }

// Errors: INVALID_ARGUMENT naming --ranks_per_gpu for less than 1, and for more where `device`, a
// resolved one, does not give each rank the GPU of its number ("cuda").
absl::Status CheckRanksPerGpu(int ranks_per_gpu, const std::string& device);

// What a process of this rank needs in its environment, NAME=value each, so that NCCL takes ranks
// that share a GPU for ranks of different hosts and talks over sockets of the loopback.
std::vector<std::string> SharedGpuEnvironment(int rank);

// Why times over NCCL must not be used then; a line of a report, and Run::invalid.
std::string SharedGpuNote(int ranks_per_gpu);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_OPTIONS_SHARED_GPU_H_
