// Programs as child processes: one that is run to its end, several that run together, and one that
// is talked to.

#ifndef GRADSYNC_BENCHMARKS_RANKS_PROCESSES_H_
#define GRADSYNC_BENCHMARKS_RANKS_PROCESSES_H_

#include <sys/types.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"

namespace gradsync {

// A program for what it leaves behind: runs `argv[0]`, a path, and blocks until it has ended; it is
// killed at the limit, and when `interrupt`, if there is one, is not 0. `output`, if there is one,
// gets what it prints on stdout. Errors: FAILED_PRECONDITION when it fails, in its own last words
// on stderr; DEADLINE_EXCEEDED; CANCELLED when interrupted; those of Subprocess::Start().
absl::Status RunProgram(const std::vector<std::string>& argv, absl::Duration limit,
                        std::string* output = nullptr, const std::atomic<int>* interrupt = nullptr);

// Starts the commands together (each argv[0] is a path) and blocks until all have ended. When one
// fails, when `timeout` has passed or when `*interrupt` is no longer 0 (null: never), the others
// get SIGTERM, so that launchers such as mpiexec take their ranks along, and three seconds later
// SIGKILL. No process is left behind, except ranks of a launcher that ignores SIGTERM. Errors:
// DEADLINE_EXCEEDED; CANCELLED when interrupted; ABORTED with the last lines that the process that
// failed first wrote and how it ended; those of Subprocess::Start().
absl::Status RunProcesses(const std::vector<std::vector<std::string>>& commands,
                          absl::Duration timeout, const std::atomic<int>* interrupt);

// A child that answers lines with lines, such as a peer that takes turns with us. Not thread-safe.
// Blocks while it waits for an answer.
class InteractiveProcess {
 public:
  // Starts `argv`, argv[0] being a path, with `environment`, NAME=value each, beside our own. Its
  // standard error is ours. Errors: UNAVAILABLE when it cannot be started.
  static absl::StatusOr<std::unique_ptr<InteractiveProcess>> Start(
      std::vector<std::string> argv, const std::vector<std::string>& environment = {});

  // Closes its standard input and waits for its end; kills it when that takes longer than kGrace.
  ~InteractiveProcess();

  InteractiveProcess(const InteractiveProcess&) = delete;
  InteractiveProcess& operator=(const InteractiveProcess&) = delete;

  // The next line that it prints, without its end. Errors: UNAVAILABLE when it has ended,
  // DEADLINE_EXCEEDED when none has come by then.
  absl::StatusOr<std::string> ReadLine(Deadline deadline = Deadline::Never());

  // Ends it at once.
  void Kill();

  // Errors: UNAVAILABLE when it has ended.
  absl::Status WriteLine(const std::string& line);

 private:
  static constexpr absl::Duration kGrace = absl::Seconds(5);

  InteractiveProcess(pid_t pid, FILE* to_child, int from_child)
      : pid_(pid), to_child_(to_child), from_child_(from_child) {}

  const pid_t pid_;
  FILE* const to_child_;
  const int from_child_;
  std::string unread_;  // has come, but was not returned yet
};

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_RANKS_PROCESSES_H_
