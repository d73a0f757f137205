// How a rank that is measured joins the others: as //worker does, from flags of the same names.
// Only for main files, since flags are global.

#ifndef GRADSYNC_BENCHMARKS_RANKS_JOIN_MAIN_H_
#define GRADSYNC_BENCHMARKS_RANKS_JOIN_MAIN_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "join/join.h"

namespace gradsync {

// What the flags of rank_main.h, of join/sync_flags.h, --device and --local_rank say. All ranks
// must have the same `run_id`. What NCCL is told by the environment is recorded.
// Errors: INVALID_ARGUMENT naming the flag, what was expected and what came.
absl::StatusOr<JoinOptions> JoinFromFlags(absl::string_view run_id);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_RANKS_JOIN_MAIN_H_
