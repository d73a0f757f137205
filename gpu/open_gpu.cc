#include "gpu/open_gpu.h"

#include "absl/status/status.h"

namespace gradsync {

absl::StatusOr<std::shared_ptr<GpuApi>> OpenGpu(int /*device*/) {
  return absl::FailedPreconditionError(
      "this build has no CUDA: build with bazel build --config=cuda //worker, after tools/setup "
      "--cuda");
}

}  // namespace gradsync
