#ifndef GRADSYNC_CORE_GPU_TIMED_GPU_H_
#define GRADSYNC_CORE_GPU_TIMED_GPU_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/time/time.h"
#include "core/base/monotonic_time.h"
#include "core/gpu/queued_gpu.h"

namespace gradsync {

// A QueuedGpu whose work takes as long as the test says: Elapsed() goes by a clock of its own,
// which nothing but Work() moves on.
class TimedGpu : public QueuedGpu {
 public:
  TimedGpu() {
    SetClock([clock = clock_] { return MonotonicTime() + absl::Nanoseconds(clock->load()); });
  }

  // Queues work on the compute stream.
  void Work(absl::Duration time) {
    Enqueue(ComputeStream(), [clock = clock_, time] { *clock += absl::ToInt64Nanoseconds(time); });
  }

 private:
  const std::shared_ptr<std::atomic<int64_t>> clock_ = std::make_shared<std::atomic<int64_t>>(0);
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_GPU_TIMED_GPU_H_
