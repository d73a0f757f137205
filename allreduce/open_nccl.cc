#include "allreduce/open_nccl.h"

#include "absl/status/status.h"

namespace gradsync {

int NcclVersion() { return 0; }

absl::StatusOr<std::shared_ptr<NcclApi>> OpenNccl(int /*device*/, std::string /*algorithm*/) {
  return absl::FailedPreconditionError(
      "this build has no NCCL: build with bazel build --config=cuda //worker, after tools/setup "
      "--cuda");
}

}  // namespace gradsync
