// What the mains of rank programs have in common: the flags that every benchmark gives its ranks,
// and how a rank ends. Only for main files, since flags are global.

#ifndef GRADSYNC_BENCHMARKS_RANKS_RANK_MAIN_H_
#define GRADSYNC_BENCHMARKS_RANKS_RANK_MAIN_H_

#include <string>

#include "absl/flags/declare.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "join/meet.h"

// Set by RunLocalJob().
ABSL_DECLARE_FLAG(int, rank);
ABSL_DECLARE_FLAG(int, world_size);
ABSL_DECLARE_FLAG(std::string, master);
ABSL_DECLARE_FLAG(std::string, port_file);
ABSL_DECLARE_FLAG(std::string, metrics_json);

// Set by the benchmark.
ABSL_DECLARE_FLAG(std::string, start_line);
ABSL_DECLARE_FLAG(absl::Duration, timeout);

namespace gradsync {

// How this rank finds the others, who must have the same `run_id`.
MeetOptions MeetFromFlags(absl::string_view run_id);

// The exit code of a rank that ended with `status`: 0; 2 for INVALID_ARGUMENT; 1. Unless it is 0,
// prints a line on stderr that begins with the benchmark's name and the rank.
int RankExitCode(absl::string_view benchmark, const absl::Status& status);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_RANKS_RANK_MAIN_H_
