#ifndef GRADSYNC_CORE_BASE_MONOTONIC_TIME_H_
#define GRADSYNC_CORE_BASE_MONOTONIC_TIME_H_

#include <chrono>

#include "absl/time/time.h"
#include "core/base/scheduler.h"

namespace gradsync {

// A point in time for measuring how long something takes: what two of them differ by. Unlike
// absl::Now(), which is for dates, it goes by a clock that nobody sets, forwards or back, and that
// stands still while the machine is suspended: CLOCK_MONOTONIC, which std::chrono::steady_clock is
// here, or by that of a simulation (core/base/scheduler.h). Processes of one host share that clock;
// those of different hosts do not, so no point may cross a network.
class MonotonicTime {
 public:
  // The clock's origin, some time ago.
  constexpr MonotonicTime() = default;

  static MonotonicTime Now() {
    if (Scheduler* const scheduler = Scheduler::current()) return MonotonicTime(scheduler->Now());
    return MonotonicTime(absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch()));
  }
  // Before and after all others.
  static constexpr MonotonicTime InfinitePast() { return MonotonicTime(-absl::InfiniteDuration()); }
  static constexpr MonotonicTime InfiniteFuture() {
    return MonotonicTime(absl::InfiniteDuration());
  }

  constexpr absl::Duration since_origin() const { return since_origin_; }

  MonotonicTime& operator+=(absl::Duration duration) {
    since_origin_ += duration;
    return *this;
  }
  MonotonicTime& operator-=(absl::Duration duration) {
    since_origin_ -= duration;
    return *this;
  }
  friend MonotonicTime operator+(MonotonicTime time, absl::Duration duration) {
    return time += duration;
  }
  friend MonotonicTime operator-(MonotonicTime time, absl::Duration duration) {
    return time -= duration;
  }
  friend absl::Duration operator-(MonotonicTime a, MonotonicTime b) {
    return a.since_origin_ - b.since_origin_;
  }

  friend constexpr bool operator==(MonotonicTime a, MonotonicTime b) {
    return a.since_origin_ == b.since_origin_;
  }
  friend constexpr bool operator!=(MonotonicTime a, MonotonicTime b) { return !(a == b); }
  friend constexpr bool operator<(MonotonicTime a, MonotonicTime b) {
    return a.since_origin_ < b.since_origin_;
  }
  friend constexpr bool operator>(MonotonicTime a, MonotonicTime b) { return b < a; }
  friend constexpr bool operator<=(MonotonicTime a, MonotonicTime b) { return !(b < a); }
  friend constexpr bool operator>=(MonotonicTime a, MonotonicTime b) { return !(a < b); }

 private:
  explicit constexpr MonotonicTime(absl::Duration since_origin) : since_origin_(since_origin) {}

  absl::Duration since_origin_;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_MONOTONIC_TIME_H_
