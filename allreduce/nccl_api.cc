#include "allreduce/nccl_api.h"

#include "absl/strings/str_cat.h"

namespace gradsync {

absl::string_view NcclResultName(NcclResult result) {
  switch (result) {
    case NcclResult::kSuccess:
      return "ncclSuccess";
    case NcclResult::kUnhandledCudaError:
      return "ncclUnhandledCudaError";
    case NcclResult::kSystemError:
      return "ncclSystemError";
    case NcclResult::kInternalError:
      return "ncclInternalError";
    case NcclResult::kInvalidArgument:
      return "ncclInvalidArgument";
    case NcclResult::kInvalidUsage:
      return "ncclInvalidUsage";
    case NcclResult::kRemoteError:
      return "ncclRemoteError";
    case NcclResult::kInProgress:
      return "ncclInProgress";
  }
  return "an unknown result of NCCL";
}

absl::Status NcclStatus(NcclResult result, absl::string_view what, absl::string_view detail) {
  if (result == NcclResult::kSuccess) return absl::OkStatus();
  return absl::Status(
      result == NcclResult::kRemoteError ? absl::StatusCode::kUnavailable
                                         : absl::StatusCode::kInternal,
      absl::StrCat(what, ": ", NcclResultName(result), detail.empty() ? "" : ": ", detail));
}

}  // namespace gradsync
