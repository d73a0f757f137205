#ifndef GRADSYNC_CORE_BASE_PATIENT_DEADLINE_H_
#define GRADSYNC_CORE_BASE_PATIENT_DEADLINE_H_

#include <algorithm>

#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/monotonic_time.h"

namespace gradsync {

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

#endif  // GRADSYNC_CORE_BASE_PATIENT_DEADLINE_H_
