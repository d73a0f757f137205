#ifndef GRADSYNC_CORE_BASE_ALARM_CLOCK_H_
#define GRADSYNC_CORE_BASE_ALARM_CLOCK_H_

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "core/base/deadline.h"
#include "core/base/monotonic_time.h"
#include "core/base/mutex.h"
#include "core/base/thread.h"

namespace gradsync {

// Calls back at deadlines, on a thread of its own.
//
// gRPC's timers do the same, but their thread sleeps until a time of the wall clock, and when that
// is set back by an hour all of them are an hour late. So where it matters that a wait ends, this
// ends it.
//
// A process that is stopped as a whole and goes on later finds its alarms later by as much: those
// of its waits that would end meanwhile are given the time that they had left.
//
// Thread-safe. Callbacks run one after another and should be short. Those whose time has not come
// when it is destroyed never run; it must not be destroyed by one.
class AlarmClock {
 public:
  // Names an alarm; never 0.
  using Ticket = int64_t;

  AlarmClock();
  ~AlarmClock();
  AlarmClock(const AlarmClock&) = delete;
  AlarmClock& operator=(const AlarmClock&) = delete;

  // `callback` runs once, after the deadline; never, for Deadline::Never().
  Ticket Set(Deadline deadline, std::function<void()> callback);

  // Afterwards the callback does not run any more: blocks while it does, unless it is the one that
  // calls. Does nothing for 0 or for an alarm that is over.
  void Cancel(Ticket ticket);

 private:
  void Run();
  void NoticeStop(MonotonicTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  CondVar changed_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  Ticket last_ticket_ ABSL_GUARDED_BY(mutex_) = 0;
  Ticket running_ ABSL_GUARDED_BY(mutex_) = 0;
  // When the thread means to look at the clock at the latest: now, while a callback runs, and never,
  // without alarms. Whoever finds that it passed some time ago knows that the process was stopped.
  MonotonicTime next_look_ ABSL_GUARDED_BY(mutex_) = MonotonicTime::InfiniteFuture();
  // For how long the thread was stopped while it had alarms, ever. Deadlines below are less that.
  absl::Duration stopped_ ABSL_GUARDED_BY(mutex_);
  std::map<std::pair<Deadline, Ticket>, std::function<void()>> alarms_ ABSL_GUARDED_BY(mutex_);
  std::map<Ticket, Deadline> deadlines_ ABSL_GUARDED_BY(mutex_);  // of alarms_
  Thread thread_;                                                 // last: uses all of the above
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_ALARM_CLOCK_H_
