#ifndef GRADSYNC_CORE_GPU_FOLD_OPERANDS_H_
#define GRADSYNC_CORE_GPU_FOLD_OPERANDS_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/gpu/kernel_operands.h"

namespace gradsync {

// What every GpuApi::FoldMean() says of its operands. Errors: INVALID_ARGUMENT.
inline absl::Status CheckFoldOperands(size_t sources, size_t destinations) {
  if (sources >= 1 && sources <= kMostFoldOperands && destinations >= 1 &&
      destinations <= kMostFoldOperands) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("fold on a GPU: expected 1 to ", kMostFoldOperands,
                                                 " sources and as many destinations, found ",
                                                 sources, " and ", destinations));
}

}  // namespace gradsync

#endif  // GRADSYNC_CORE_GPU_FOLD_OPERANDS_H_
