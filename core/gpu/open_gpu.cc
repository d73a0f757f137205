#include "core/gpu/open_gpu.h"

#include "absl/status/status.h"

namespace gradsync {

absl::Status CheckGpu(int /*device*/) {
  return absl::FailedPreconditionError(
      "this build has no CUDA: build with bazel build --config=cuda //worker, after tools/setup "
      "--cuda");
}

absl::StatusOr<std::shared_ptr<GpuApi>> OpenGpu(int device) { return CheckGpu(device); }

}  // namespace gradsync
