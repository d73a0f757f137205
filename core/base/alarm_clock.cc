#include "core/base/alarm_clock.h"

#include <algorithm>

#include "core/base/deadline.h"

namespace gradsync {

AlarmClock::AlarmClock() : thread_([this] { Run(); }) {}

AlarmClock::~AlarmClock() {
  {
    MutexLock lock(&mutex_);
    closing_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

AlarmClock::Ticket AlarmClock::Set(Deadline deadline, std::function<void()> callback) {
  MutexLock lock(&mutex_);
  const Ticket ticket = ++last_ticket_;
  if (deadline.never()) return ticket;
  const MonotonicTime now = MonotonicTime::Now();
  NoticeStop(now);
  next_look_ = std::min(next_look_, now + PatientDeadline::kLook);
  deadline = deadline + -stopped_;
  const auto alarm = alarms_.emplace(std::make_pair(deadline, ticket), std::move(callback)).first;
  deadlines_.emplace(ticket, deadline);
  if (alarm == alarms_.begin()) changed_.SignalAll();
  return ticket;
}

void AlarmClock::Cancel(Ticket ticket) {
  std::function<void()> cancelled;  // destroyed without the mutex
  MutexLock lock(&mutex_);
  const auto deadline = deadlines_.find(ticket);
  if (deadline != deadlines_.end()) {
    const auto alarm = alarms_.find({deadline->second, ticket});
    cancelled = std::move(alarm->second);
    alarms_.erase(alarm);
    deadlines_.erase(deadline);
  }
  if (thread_.IsCurrent()) return;
  while (ticket != 0 && running_ == ticket) changed_.Wait(&mutex_);
}

void AlarmClock::NoticeStop(MonotonicTime now) {
  if (now - next_look_ <= PatientDeadline::kLate) return;
  stopped_ += now - next_look_;
  next_look_ = now;
}

void AlarmClock::Run() {
  mutex_.Lock();
  while (!closing_) {
    const MonotonicTime now = MonotonicTime::Now();
    NoticeStop(now);
    if (alarms_.empty()) {
      next_look_ = MonotonicTime::InfiniteFuture();
      changed_.Wait(&mutex_);
      continue;
    }
    const auto first = alarms_.begin();
    const MonotonicTime due = (first->first.first + stopped_).time();
    next_look_ = std::max(now, std::min(due, now + PatientDeadline::kLook));
    if (now < due) {
      changed_.WaitWithDeadline(&mutex_, Deadline::At(next_look_));
      continue;
    }
    running_ = first->first.second;
    std::function<void()> callback = std::move(first->second);
    deadlines_.erase(running_);
    alarms_.erase(first);
    mutex_.Unlock();
    callback();
    callback = nullptr;
    mutex_.Lock();
    running_ = 0;
    changed_.SignalAll();
  }
  mutex_.Unlock();
}

}  // namespace gradsync
