#include "worker/train/spent.h"

#include "core/base/monotonic_time.h"
#include "core/base/process_resources.h"

namespace gradsync {

Spent operator-(const Spent& a, const Spent& b) {
  return {a.time - b.time, a.cpu - b.cpu, a.wire - b.wire};
}

Spent SpentSoFar(const GradientSync& sync) {
  return {MonotonicTime::Now().since_origin(), ProcessCpuTime(), sync.wire_stats()};
}

}  // namespace gradsync
