// NCCL as this build links it.

#ifndef GRADSYNC_ALLREDUCE_OPEN_NCCL_H_
#define GRADSYNC_ALLREDUCE_OPEN_NCCL_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "allreduce/nccl_api.h"

namespace gradsync {

// The version of the NCCL that this process has loaded, e.g. 22809 for 2.28.9; needs no GPU. 0 in a
// build without CUDA, and when NCCL does not say. Thread-safe.
int NcclVersion();

// The real NcclApi for the GPU with number `device` among those that this process sees
// (CUDA_VISIBLE_DEVICES). `algorithm` is what algorithm() returns, since NCCL cannot be asked.
// Touches neither the GPU nor the network. Thread-safe.
//
// A call that fails before it comes to NCCL, because CUDA refuses the device, is
// kUnhandledCudaError.
//
// Errors: FAILED_PRECONDITION when this build has no CUDA, with the way to build one that has;
// INVALID_ARGUMENT for a negative number.
absl::StatusOr<std::shared_ptr<NcclApi>> OpenNccl(int device, std::string algorithm);

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_OPEN_NCCL_H_
