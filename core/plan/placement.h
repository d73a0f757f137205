#ifndef GRADSYNC_CORE_PLAN_PLACEMENT_H_
#define GRADSYNC_CORE_PLAN_PLACEMENT_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradsync {

// Which hosts parameter servers run on. Every worker has a host of its own.
enum class Placement {
  kNone,       // there are no servers
  kDedicated,  // each server has a host of its own
  kColocated,  // server s is beside worker s; there are at most as many as workers
  kMixed,      // one server is beside each worker, and further ones have hosts of their own
};

// As flags and records spell them: "dedicated", and "" for kNone.
std::string PlacementName(Placement placement);

// Errors: INVALID_ARGUMENT naming --placement, what was expected and what came.
absl::StatusOr<Placement> ParsePlacement(absl::string_view text);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PLAN_PLACEMENT_H_
