// The device that a worker trains on, from its flags.

#ifndef GRADSYNC_GRADSYNC_JOIN_OPEN_DEVICE_H_
#define GRADSYNC_GRADSYNC_JOIN_OPEN_DEVICE_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "core/gpu/gpu_api.h"

namespace gradsync {

// What --device says, and what the launcher says of this worker's place on its host.
struct DeviceOptions {
  std::string device = "cpu";      // cpu; cuda: that of the local rank; cuda:N; auto: cuda or cpu
  absl::optional<int> local_rank;  // among the workers of this host; none: nobody said
};

// As OpenGpu() (core/gpu/open_gpu.h).
using GpuOpener = std::function<absl::StatusOr<std::shared_ptr<GpuApi>>(int device)>;

// Errors: INVALID_ARGUMENT naming the flag. Opens nothing.
absl::Status ValidateDevice(const DeviceOptions& options);

// The GPU, or null for the CPU. `auto` takes the CPU where this build has no CUDA or the machine
// shows no GPU, and nowhere else: a rank that finds fewer GPUs than its host has workers does not
// train on the CPU beside others on GPUs.
// Errors: those of ValidateDevice(); INVALID_ARGUMENT when more than one worker would take GPU 0
// because nobody said which is which on this host (--local_rank); those of OpenGpu(), with the
// flag.
absl::StatusOr<std::shared_ptr<GpuApi>> OpenDevice(const DeviceOptions& options, int world_size,
                                                   const GpuOpener& open);

// As CheckGpu() (core/gpu/open_gpu.h).
using GpuChecker = std::function<absl::Status(int device)>;

// What OpenDevice() would choose for all of `workers` workers of one host that know their local
// ranks: "cpu", "cuda" or "cuda:N". Opens nothing: for programs that start workers, to refuse
// beforehand, in the same words, what those would refuse. Errors: those of OpenDevice() for the
// worker with the highest local rank.
absl::StatusOr<std::string> ChooseDevice(const std::string& device, int workers,
                                         const GpuChecker& check);

// For logs and records: "cpu", or "cuda:1 (NVIDIA H200)".
std::string DescribeDevice(const GpuApi* gpu);

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_JOIN_OPEN_DEVICE_H_
