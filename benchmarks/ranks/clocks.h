// What the ranks of benchmarks measure time with. Thread-safe.

#ifndef GRADSYNC_BENCHMARKS_RANKS_CLOCKS_H_
#define GRADSYNC_BENCHMARKS_RANKS_CLOCKS_H_

#include <sys/resource.h>
#include <time.h>

namespace gradsync {

// CLOCK_MONOTONIC, which is the same for all processes of a host.
inline double MonotonicMicroseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

// User and system time of this process, all threads.
inline double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_RANKS_CLOCKS_H_
