#ifndef GRADSYNC_CORE_BASE_THREAD_H_
#define GRADSYNC_CORE_BASE_THREAD_H_

#include <functional>
#include <thread>
#include <utility>

#include "core/base/scheduler.h"

namespace gradsync {

// std::thread, or one of the simulation in which it is made (core/base/scheduler.h). Movable,
// thread-compatible; must be joined before it is destroyed, as a std::thread must.
class Thread {
 public:
  Thread() = default;
  explicit Thread(std::function<void()> body) : scheduler_(Scheduler::current()) {
    if (scheduler_ != nullptr) {
      simulated_ = scheduler_->Start(std::move(body));
    } else {
      thread_ = std::thread(std::move(body));
    }
  }
  Thread(Thread&& other) noexcept
      : scheduler_(other.scheduler_),
        simulated_(std::exchange(other.simulated_, 0)),
        thread_(std::move(other.thread_)) {}
  Thread& operator=(Thread&& other) noexcept {
    scheduler_ = other.scheduler_;
    simulated_ = std::exchange(other.simulated_, 0);
    thread_ = std::move(other.thread_);
    return *this;
  }

  bool joinable() const { return simulated_ != 0 || thread_.joinable(); }

  void join() {
    if (simulated_ != 0) return scheduler_->Join(std::exchange(simulated_, 0));
    thread_.join();
  }

  // Whether it is the one that asks.
  bool IsCurrent() const {
    if (simulated_ != 0) return scheduler_->this_thread() == simulated_;
    return thread_.get_id() == std::this_thread::get_id();
  }

 private:
  Scheduler* scheduler_ = nullptr;
  Scheduler::ThreadId simulated_ = 0;
  std::thread thread_;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_THREAD_H_
