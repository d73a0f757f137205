#ifndef GRADSYNC_BENCHMARKS_RANKS_INTERACTIVE_PROCESS_H_
#define GRADSYNC_BENCHMARKS_RANKS_INTERACTIVE_PROCESS_H_

#include <sys/types.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"

namespace gradsync {

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

#endif  // GRADSYNC_BENCHMARKS_RANKS_INTERACTIVE_PROCESS_H_
