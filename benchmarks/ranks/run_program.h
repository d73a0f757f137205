// A program that is run to its end for what it leaves behind.

#ifndef GRADSYNC_BENCHMARKS_RANKS_RUN_PROGRAM_H_
#define GRADSYNC_BENCHMARKS_RANKS_RUN_PROGRAM_H_

#include <atomic>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace gradsync {

// Runs `argv[0]`, a path, and blocks until it has ended; it is killed at the limit, and when
// `interrupt`, if there is one, is not 0. `output`, if there is one, gets what it prints on stdout.
// Errors: FAILED_PRECONDITION when it fails, in its own last words on stderr; DEADLINE_EXCEEDED;
// CANCELLED when interrupted; those of Subprocess::Start().
absl::Status RunProgram(const std::vector<std::string>& argv, absl::Duration limit,
                        std::string* output = nullptr, const std::atomic<int>* interrupt = nullptr);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_RANKS_RUN_PROGRAM_H_
