// What the ranks of benchmarks measure time with. Thread-safe.

#ifndef GRADSYNC_BENCHMARKS_RANKS_CLOCKS_H_
#define GRADSYNC_BENCHMARKS_RANKS_CLOCKS_H_

#include <time.h>

#include "absl/time/time.h"
#include "core/base/process_resources.h"

namespace gradsync {

// CLOCK_MONOTONIC, which is the same for all processes of a host.
inline double MonotonicMicroseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

// Of this process, all threads.
inline double CpuSeconds() { return absl::ToDoubleSeconds(ProcessCpuTime()); }

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_RANKS_CLOCKS_H_
