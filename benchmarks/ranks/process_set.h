#ifndef GRADSYNC_BENCHMARKS_RANKS_PROCESS_SET_H_
#define GRADSYNC_BENCHMARKS_RANKS_PROCESS_SET_H_

#include <atomic>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace gradsync {

// Starts the commands together (each argv[0] is a path) and blocks until all have ended. When one
// fails, when `timeout` has passed or when `*interrupt` is no longer 0 (null: never), the others
// get SIGTERM, so that launchers such as mpiexec take their ranks along, and three seconds later
// SIGKILL. No process is left behind, except ranks of a launcher that ignores SIGTERM. Errors:
// DEADLINE_EXCEEDED; CANCELLED when interrupted; ABORTED with the last lines that the process that
// failed first wrote and how it ended; those of Subprocess::Start().
absl::Status RunProcesses(const std::vector<std::vector<std::string>>& commands,
                          absl::Duration timeout, const std::atomic<int>* interrupt);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_RANKS_PROCESS_SET_H_
