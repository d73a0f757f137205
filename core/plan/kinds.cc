#include "core/plan/kinds.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/errors.h"

namespace gradsync {

std::string PlacementName(Placement placement) {
  switch (placement) {
    case Placement::kNone:
      return "";
    case Placement::kDedicated:
      return "dedicated";
    case Placement::kColocated:
      return "colocated";
    case Placement::kMixed:
      return "mixed";
  }
  return "unknown";
}

absl::StatusOr<Placement> ParsePlacement(absl::string_view text) {
  for (Placement placement : {Placement::kDedicated, Placement::kColocated, Placement::kMixed}) {
    if (text == PlacementName(placement)) return placement;
  }
  return FlagError("placement", "dedicated, colocated or mixed", text);
}

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

std::string ConsistencyName(Consistency consistency) {
  switch (consistency.kind) {
    case Consistency::Kind::kBsp:
      return "bsp";
    case Consistency::Kind::kSsp:
      return absl::StrCat("ssp:", consistency.bound);
    case Consistency::Kind::kAsp:
      return "asp";
  }
  return "";
}

absl::StatusOr<Consistency> ParseConsistency(absl::string_view text) {
  Consistency consistency;
  if (text.empty() || text == "bsp") return consistency;
  if (text == "asp") {
    consistency.kind = Consistency::Kind::kAsp;
    return consistency;
  }
  consistency.kind = Consistency::Kind::kSsp;
  absl::string_view bound = text;
  const bool digits = absl::ConsumePrefix(&bound, "ssp:") && !bound.empty() &&
                      std::all_of(bound.begin(), bound.end(), absl::ascii_isdigit);
  if (digits && absl::SimpleAtoi(bound, &consistency.bound) &&
      consistency.bound <= kMaxStalenessBound) {
    return consistency;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("expected bsp, ssp:S with a whole number S from 0 to ", kMaxStalenessBound,
                   ", or asp, found \"", text, "\""));
}

}  // namespace gradsync
