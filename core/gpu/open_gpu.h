#ifndef GRADSYNC_CORE_GPU_OPEN_GPU_H_
#define GRADSYNC_CORE_GPU_OPEN_GPU_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/gpu/gpu_api.h"

namespace gradsync {

// The real GpuApi of the GPU with number `device` among those that this process sees
// (CUDA_VISIBLE_DEVICES); ranks of one host that have a GPU each take their local rank. Creates
// CUDA's context there, which takes a moment and some hundred MB of the GPU.
//
// Errors: FAILED_PRECONDITION when this build has no CUDA, with the way to build one that has;
// NOT_FOUND when this machine shows no GPU; INVALID_ARGUMENT when it shows fewer than `device` + 1,
// saying how many; INTERNAL with CUDA's name of the error.
absl::StatusOr<std::shared_ptr<GpuApi>> OpenGpu(int device);

// Whether OpenGpu(device) would find that GPU, without opening it: no context is made and no memory
// of a GPU is taken, so a program may ask that only starts others which use it.
// Errors: those of OpenGpu() before it opens.
absl::Status CheckGpu(int device);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_GPU_OPEN_GPU_H_
