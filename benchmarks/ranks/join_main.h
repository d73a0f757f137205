// How a rank that is measured joins the others. Only for main files, since flags are global.

#ifndef GRADSYNC_BENCHMARKS_RANKS_JOIN_MAIN_H_
#define GRADSYNC_BENCHMARKS_RANKS_JOIN_MAIN_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gradsync/join/join.h"
#include "proto/rank_spec.pb.h"

namespace gradsync {

// What the job of `spec`, the flags of rank_main.h and of core/program/security_flags.h, and
// --local_rank say. All ranks must have the same `run_id`. What NCCL is told by the environment is
// recorded. Errors: those of JobOfSpec() and CheckJoin().
absl::StatusOr<JoinOptions> JoinFromFlags(absl::string_view run_id, const proto::RankSpec& spec);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_RANKS_JOIN_MAIN_H_
