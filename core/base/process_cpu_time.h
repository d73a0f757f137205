#ifndef GRADSYNC_CORE_BASE_PROCESS_CPU_TIME_H_
#define GRADSYNC_CORE_BASE_PROCESS_CPU_TIME_H_

#include <sys/resource.h>

#include "absl/time/time.h"

namespace gradsync {

// User and system time of this process so far, all threads. Thread-safe.
inline absl::Duration ProcessCpuTime() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return absl::DurationFromTimeval(usage.ru_utime) + absl::DurationFromTimeval(usage.ru_stime);
}

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_PROCESS_CPU_TIME_H_
