#include "core/plan/precision.h"

#include "core/base/errors.h"

namespace gradsync {

std::string PrecisionName(Precision precision) {
  switch (precision) {
    case Precision::kFp32:
      return "fp32";
    case Precision::kBf16:
      return "bf16";
    case Precision::kFp16:
      return "fp16";
  }
  return "unknown";
}

absl::StatusOr<Precision> ParsePrecision(absl::string_view text) {
  for (Precision precision : {Precision::kFp32, Precision::kBf16, Precision::kFp16}) {
    if (text == PrecisionName(precision)) return precision;
  }
  return FlagError("precision", "fp32, bf16 or fp16", text);
}

}  // namespace gradsync
