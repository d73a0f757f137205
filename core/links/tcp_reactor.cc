#include "core/links/tcp_reactor.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/base/deadline.h"

namespace gradsync {
namespace {

// How late a tick is when the process did not run, and not merely had to wait for a core.
constexpr absl::Duration kStopped = absl::Seconds(1);

// How long the reactor's thread stays away after a thread drove.
constexpr absl::Duration kPark = absl::Microseconds(500);

constexpr int kEvents = 64;

}  // namespace

TcpReactor::TcpReactor()
    : state_(std::make_shared<State>()), thread_([state = state_] { state->Run(); }) {}

TcpReactor::~TcpReactor() {
  state_->Stop();
  if (IsCurrent()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

TcpReactor::State::State()
    : epoll_(epoll_create1(EPOLL_CLOEXEC)), wakeup_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.fd = wakeup_;
  epoll_ctl(epoll_, EPOLL_CTL_ADD, wakeup_, &event);
}

TcpReactor::State::~State() {
  close(epoll_);
  close(wakeup_);
}

void TcpReactor::State::Wake() {
  if (driven_) return;  // that thread looks before it goes
  if (parked_) return unparked_.Signal();
  if (!asleep_) return;
  asleep_ = false;
  const uint64_t one = 1;
  // It can fail only where the thread has been woken already.
  if (write(wakeup_, &one, sizeof(one)) < 0) return;
}

void TcpReactor::State::Add(int descriptor, std::shared_ptr<Handler> handler) {
  MutexLock lock(&mutex_);
  added_.emplace_back(descriptor, std::move(handler));
  Wake();
}

void TcpReactor::State::Attend(const std::shared_ptr<Handler>& handler) {
  if (handler->awaits_attention_.exchange(true)) return;
  MutexLock lock(&mutex_);
  attend_.push_back(handler);
  Wake();
}

void TcpReactor::State::Remove(int descriptor) {
  epoll_ctl(epoll_, EPOLL_CTL_DEL, descriptor, nullptr);
  watched_.erase(descriptor);
}

void TcpReactor::State::Stop() {
  MutexLock lock(&mutex_);
  stopping_ = true;
  driven_ = false;
  Wake();
}

bool TcpReactor::State::HasWork() const { return !added_.empty() || !attend_.empty() || more_; }

// Keeps the reactor's thread away while another one drives, and for a while after.
void TcpReactor::State::Park(uint64_t* drives_seen) {
  MutexLock lock(&mutex_);
  while (!stopping_ && (driven_ || (drives_ != *drives_seen && !goes_idle_ && !HasWork()))) {
    *drives_seen = drives_;
    parked_ = true;
    unparked_.WaitWithDeadline(&mutex_, Deadline::In(kPark));
    parked_ = false;
  }
}

// For how long epoll_wait(2) may sleep. False when the thread is to end.
bool TcpReactor::State::BeginSleep(int* timeout) {
  {
    turn_awaited_ = true;
    MutexLock turn(&turn_);
    turn_awaited_ = false;
    *timeout = Timeout();
  }
  MutexLock lock(&mutex_);
  if (HasWork()) *timeout = 0;
  asleep_ = *timeout != 0;
  return !stopping_;
}

void TcpReactor::State::Run() {
  epoll_event events[kEvents];
  uint64_t drives_seen = 0;
  for (;;) {
    int timeout;
    Park(&drives_seen);
    if (!BeginSleep(&timeout)) return;
    const int count = epoll_wait(epoll_, events, kEvents, timeout);
    {
      MutexLock lock(&mutex_);
      asleep_ = false;
    }
    turn_awaited_ = true;
    MutexLock turn(&turn_);
    turn_awaited_ = false;
    Handle(events, count);
  }
}

bool TcpReactor::State::BeginDriving() {
  MutexLock lock(&mutex_);
  if (driven_ || stopping_) return false;
  driven_ = true;
  goes_idle_ = false;
  ++drives_;
  return true;
}

void TcpReactor::State::EndDriving(bool idle) {
  MutexLock lock(&mutex_);
  driven_ = false;
  goes_idle_ = idle;
  if (stopping_ || HasWork()) return Wake();
  if (idle && parked_) unparked_.Signal();
}

bool TcpReactor::State::Poll() {
  // Whose turn it is next must not be up to chance: this thread comes back at once.
  if (turn_awaited_ || !turn_.TryLock()) return false;
  epoll_event events[kEvents];
  const int count = epoll_wait(epoll_, events, kEvents, 0);
  const bool any = Handle(events, count);
  turn_.Unlock();
  return any;
}

bool TcpReactor::State::Handle(const epoll_event* events, int count) {
  current_ = std::this_thread::get_id();
  bool any = TakeMail();
  for (int i = 0; i < count; ++i) {
    if (events[i].data.fd == wakeup_) {
      uint64_t times;
      if (read(wakeup_, &times, sizeof(times)) < 0) continue;
    } else {
      any = true;
      const uint32_t what = events[i].events;
      Call(events[i].data.fd, (what & ~static_cast<uint32_t>(EPOLLOUT)) != 0,
           (what & EPOLLOUT) != 0, (what & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0);
    }
  }
  any = any || !with_more_.empty();
  CallThoseWithMore();
  Tick();
  more_ = !with_more_.empty();
  current_ = std::thread::id();
  return any;
}

int TcpReactor::State::Timeout() const {
  if (!with_more_.empty()) return 0;
  return Deadline::At(next_tick_).PollTimeout();
}

bool TcpReactor::State::TakeMail() {
  std::vector<std::pair<int, std::shared_ptr<Handler>>> added;
  {
    MutexLock lock(&mutex_);
    added.swap(added_);
    attended_.swap(attend_);
  }
  for (auto& [descriptor, handler] : added) {
    watched_[descriptor] = {std::move(handler), false};
    epoll_event event = {};
    event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
    event.data.fd = descriptor;
    epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &event);
    Call(descriptor, true, true, /*ends=*/false);
  }
  for (const std::shared_ptr<Handler>& handler : attended_) {
    handler->awaits_attention_ = false;
    handler->OnAttention();
  }
  const bool any = !added.empty() || !attended_.empty();
  attended_.clear();
  return any;
}

void TcpReactor::State::Call(int descriptor, bool readable, bool writable, bool ends) {
  const auto found = watched_.find(descriptor);
  if (found == watched_.end()) return;
  const std::shared_ptr<Handler> handler = found->second.handler;
  if (!handler->OnReady(readable, writable, ends)) return;
  const auto still = watched_.find(descriptor);
  if (still == watched_.end() || still->second.handler != handler || still->second.more_to_read) {
    return;
  }
  still->second.more_to_read = true;
  with_more_.push_back(descriptor);
}

void TcpReactor::State::CallThoseWithMore() {
  called_again_.swap(with_more_);
  for (int descriptor : called_again_) {
    const auto found = watched_.find(descriptor);
    if (found == watched_.end() || !found->second.more_to_read) continue;
    found->second.more_to_read = false;
    Call(descriptor, true, false, /*ends=*/false);
  }
  called_again_.clear();
}

void TcpReactor::State::Tick() {
  const MonotonicTime now = MonotonicTime::Now();
  if (now < next_tick_) return;
  const absl::Duration late = now - next_tick_;
  std::vector<std::shared_ptr<Handler>> handlers;
  handlers.reserve(watched_.size());
  for (const auto& [descriptor, watched] : watched_) handlers.push_back(watched.handler);
  for (const auto& handler : handlers) {
    handler->OnTick(now, late > kStopped ? late : absl::ZeroDuration());
  }
  next_tick_ = now + kTick;
}

}  // namespace gradsync
