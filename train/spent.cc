#include "train/spent.h"

#include <sys/resource.h>

#include "base/monotonic_time.h"

namespace gradsync {
namespace {

absl::Duration ProcessCpuTime() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return absl::DurationFromTimeval(usage.ru_utime) + absl::DurationFromTimeval(usage.ru_stime);
}

}  // namespace

Spent operator-(const Spent& a, const Spent& b) {
  return {a.time - b.time, a.cpu - b.cpu, a.wire - b.wire};
}

Spent SpentSoFar(const GradientSync& sync) {
  return {MonotonicTime::Now().since_origin(), ProcessCpuTime(), sync.wire_stats()};
}

}  // namespace gradsync
