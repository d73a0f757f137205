#ifndef GRADSYNC_CORE_PLAN_PRECISION_H_
#define GRADSYNC_CORE_PLAN_PRECISION_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradsync {

// Of convolutions and matrix products, and of what passes between them. Parameters, gradients,
// buckets and the loss are fp32 in each. worker/train/compute_options.h says which devices offer which.
enum class Precision { kFp32, kBf16, kFp16 };

// "fp32", "bf16" or "fp16".
std::string PrecisionName(Precision precision);

// Errors: INVALID_ARGUMENT naming --precision, what was expected and what came.
absl::StatusOr<Precision> ParsePrecision(absl::string_view text);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PLAN_PRECISION_H_
