// How the ranks of benchmarks begin together and measure time.

#ifndef GRADSYNC_BENCHMARKS_RANKS_START_LINE_H_
#define GRADSYNC_BENCHMARKS_RANKS_START_LINE_H_

#include <time.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/process_resources.h"

namespace gradsync {

// Thread-safe, as the next: CLOCK_MONOTONIC, which is the same for all processes of a host.
inline double MonotonicMicroseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

// Of this process, all threads.
inline double CpuSeconds() { return absl::ToDoubleSeconds(ProcessCpuTime()); }

// Where the processes of one host wait for each other, so that all begin an iteration within some
// microseconds: a barrier through the network would end at different times on different ranks,
// which a time from the first start to the last end would count. A page of shared memory and a
// futex, with a short spin before it.
//
// One object per participant. Not thread-safe.
class StartLine {
 public:
  // `path` names a file for this job alone, made by the rank that comes first and removed by
  // whoever started the job; the same on all ranks, as is `ranks`. Errors: the errno's code, naming
  // the file.
  static absl::StatusOr<std::unique_ptr<StartLine>> Open(const std::string& path, int ranks);
  ~StartLine();

  StartLine(const StartLine&) = delete;
  StartLine& operator=(const StartLine&) = delete;

  // Blocks until all ranks have called it as often as this one.
  // Errors: DEADLINE_EXCEEDED saying how many came; no further call makes sense then.
  absl::Status Wait(Deadline deadline);

 private:
  struct Shared;

  StartLine(Shared* shared, int ranks) : shared_(shared), ranks_(ranks) {}

  Shared* const shared_;
  const int ranks_;
};

// Computes for 50 ms. Ranks come to their first iteration from sleep, several of them maybe on one
// core, where short exchanges with their short waits would keep them; where all compute, as in
// training, the kernel gives each its own.
void SpreadOverCores();

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_RANKS_START_LINE_H_
