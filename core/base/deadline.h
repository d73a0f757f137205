#ifndef GRADSYNC_CORE_BASE_DEADLINE_H_
#define GRADSYNC_CORE_BASE_DEADLINE_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>

#include "absl/time/time.h"
#include "core/base/monotonic_time.h"

namespace gradsync {

// When a wait ends. It goes by MonotonicTime, so neither a step of the wall clock nor a machine
// that was suspended makes a wait shorter or longer. A value, copied freely.
//
// For this process only: another one gets remaining(), a duration.
class Deadline {
 public:
  // `patience` from now; infinite is Never(), and nothing or less is Now().
  static Deadline In(absl::Duration patience) { return Deadline(MonotonicTime::Now() + patience); }
  // It has passed already: to look once, without waiting.
  static Deadline Now() { return Deadline(MonotonicTime::Now()); }
  static constexpr Deadline Never() { return Deadline(MonotonicTime::InfiniteFuture()); }
  static constexpr Deadline At(MonotonicTime time) { return Deadline(time); }

  constexpr MonotonicTime time() const { return time_; }
  constexpr bool never() const { return time_ == MonotonicTime::InfiniteFuture(); }
  bool passed() const { return MonotonicTime::Now() >= time_; }

  // Never negative; infinite for Never().
  absl::Duration remaining() const {
    return std::max(time_ - MonotonicTime::Now(), absl::ZeroDuration());
  }

  // What remains for poll(2): milliseconds, rounded up so that the deadline has passed when poll()
  // says it has, and -1 for Never().
  int PollTimeout() const {
    if (never()) return -1;
    const int64_t left = absl::ToInt64Milliseconds(absl::Ceil(remaining(), absl::Milliseconds(1)));
    return static_cast<int>(std::min<int64_t>(left, std::numeric_limits<int>::max()));
  }

  // For condition variables; not for Never(), which no such time is.
  std::chrono::steady_clock::time_point ToSteady() const {
    return std::chrono::steady_clock::time_point(absl::ToChronoNanoseconds(time_.since_origin()));
  }

  // Later by `more`.
  friend Deadline operator+(Deadline deadline, absl::Duration more) {
    return Deadline(deadline.time_ + more);
  }

  // The earlier one is less.
  friend constexpr bool operator==(Deadline a, Deadline b) { return a.time_ == b.time_; }
  friend constexpr bool operator!=(Deadline a, Deadline b) { return a.time_ != b.time_; }
  friend constexpr bool operator<(Deadline a, Deadline b) { return a.time_ < b.time_; }
  friend constexpr bool operator>(Deadline a, Deadline b) { return a.time_ > b.time_; }
  friend constexpr bool operator<=(Deadline a, Deadline b) { return a.time_ <= b.time_; }
  friend constexpr bool operator>=(Deadline a, Deadline b) { return a.time_ >= b.time_; }

 private:
  explicit constexpr Deadline(MonotonicTime time) : time_(time) {}

  MonotonicTime time_;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_DEADLINE_H_
