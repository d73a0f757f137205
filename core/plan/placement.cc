#include "core/plan/placement.h"

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

}  // namespace gradsync
