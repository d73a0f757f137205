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

// A deadline that does not pass while the whole process is stopped, as a job is that a user or a
// scheduler suspends. The clock goes on meanwhile, so without this every wait of a resumed process
// would end at once, and it would blame others for what nobody did. Here a wait is cut into looks:
// who comes back from one much later than asked was not running, and the deadline moves by that.
//
//   PatientDeadline patience(deadline);
//   while (!done) {
//     condition.WaitWithDeadline(&mutex, patience.next_look());
//     if (!done && patience.Passed()) return too late;
//   }
//
// A value of one wait; not thread-safe. Nothing blocks.
class PatientDeadline {
 public:
  // Between two looks, at most. A pause is measured up to one of these too short.
  static constexpr absl::Duration kLook = absl::Seconds(1);
  // What a busy machine may be late by without it being a pause.
  static constexpr absl::Duration kLate = absl::Milliseconds(500);

  explicit PatientDeadline(Deadline deadline) : deadline_(deadline) { Plan(MonotonicTime::Now()); }

  // Until when to wait now.
  Deadline next_look() const { return next_look_; }

  // To be asked after each wait for next_look(), late or early. Moves the deadline.
  bool Passed() { return PassedAt(MonotonicTime::Now()); }

  // The same at a time that the caller has.
  bool PassedAt(MonotonicTime now) {
    const absl::Duration late = now - next_look_.time();
    if (late > kLate && !deadline_.never()) deadline_ = deadline_ + late;
    Plan(now);
    return now >= deadline_.time();
  }

 private:
  void Plan(MonotonicTime now) {
    next_look_ = deadline_.never() ? deadline_ : std::min(deadline_, Deadline::At(now + kLook));
  }

  Deadline deadline_;
  Deadline next_look_ = Deadline::Never();
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_DEADLINE_H_
