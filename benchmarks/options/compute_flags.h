// On what workers compute and in which types, as flags of the programs that start workers.

#ifndef GRADSYNC_BENCHMARKS_OPTIONS_COMPUTE_FLAGS_H_
#define GRADSYNC_BENCHMARKS_OPTIONS_COMPUTE_FLAGS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/plan/job_spec.h"
#include "core/plan/kinds.h"
#include "gradsync/join/open_device.h"

namespace gradsync {

// As //worker has the flags of the same names.
struct ComputeFlags {
  std::string device;  // empty: cuda where a link between GPUs is asked for, else cpu
  Precision precision = Precision::kFp32;
  bool channels_last = false;
  bool tf32 = false;
  bool cudnn_benchmark = false;

  bool on_gpu() const { return device != "cpu" && !device.empty(); }
};

// The device that all of `workers` workers of this host will take, "cpu", "cuda" or "cuda:N", found
// before any of them is started. `check` is CheckGpu() (core/gpu/open_gpu.h).
// Errors: what a worker would say, in its words: without a build for NCCL (--link), for a GPU or
// without a GPU (--device).
absl::StatusOr<std::string> ResolveDevice(const std::string& device, const std::vector<Link>& links,
                                          int workers, const GpuChecker& check);

// Of a resolved device: whether workers can compute so, with the optimizer at each of `updates`.
// Errors: INVALID_ARGUMENT naming --precision or --tf32, as a worker does.
absl::Status CheckCompute(const ComputeFlags& flags, const std::vector<UpdateSite>& updates);

// Flags of a worker; only what differs from its defaults.
std::vector<std::string> WorkerComputeFlags(const ComputeFlags& flags);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_OPTIONS_COMPUTE_FLAGS_H_
