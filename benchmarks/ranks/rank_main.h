// What the mains of rank programs have in common: flags that say who and where a rank is, a file
// that says what to do, and how a rank ends. Only for main files, since flags are global.

#ifndef GRADSYNC_BENCHMARKS_RANKS_RANK_MAIN_H_
#define GRADSYNC_BENCHMARKS_RANKS_RANK_MAIN_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gradsync/join/meet.h"
#include "proto/rank_spec.pb.h"

// Set by RunLocalJob().
ABSL_DECLARE_FLAG(int, rank);
ABSL_DECLARE_FLAG(int, world_size);
ABSL_DECLARE_FLAG(std::string, master);
ABSL_DECLARE_FLAG(std::string, port_file);
ABSL_DECLARE_FLAG(std::string, metrics_json);
ABSL_DECLARE_FLAG(std::vector<std::string>, servers);

// Set by the benchmark (rank_spec.h).
ABSL_DECLARE_FLAG(std::string, spec);

namespace gradsync {

// The file that --spec names. Errors: those of ReadJson(); INVALID_ARGUMENT naming the file when it
// is not for the kind of rank that `part` stands for.
absl::StatusOr<proto::RankSpec> SpecFromFlags(proto::RankSpec::PartCase part);

// How this rank finds the others, who must have the same `run_id`.
MeetOptions MeetFromFlags(absl::string_view run_id, const proto::RankSpec& spec);

// What waits for the other ranks at the start line of `spec` (start_line.h), for its timeout at
// most. Errors: those of StartLine::Open().
absl::StatusOr<std::function<absl::Status()>> OpenStartLine(const proto::RankSpec& spec);

// The exit code of a rank that ended with `status`: 0; 2 for INVALID_ARGUMENT; 1. Unless it is 0,
// prints a line on stderr that begins with the benchmark's name and the rank.
int RankExitCode(absl::string_view benchmark, const absl::Status& status);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_RANKS_RANK_MAIN_H_
