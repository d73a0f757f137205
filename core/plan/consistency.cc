#include "core/plan/consistency.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace gradsync {

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
