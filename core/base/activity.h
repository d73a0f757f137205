#ifndef GRADSYNC_CORE_BASE_ACTIVITY_H_
#define GRADSYNC_CORE_BASE_ACTIVITY_H_

#include <atomic>
#include <cstdint>

namespace gradsync {

// What a process of a job has done, and whether it is at work: what others judge it by who ask
// whether it is stuck (core/group/liveness.h). Those who work count what they have done, a batch
// that was loaded, a bucket that was launched, and say when they merely wait for others. Nobody is
// judged who does not work, so a process that never says that it works never counts as stuck.
//
// Thread-safe. Counting is one relaxed addition; it orders nothing.
class Activity {
 public:
  Activity() = default;
  Activity(const Activity&) = delete;
  Activity& operator=(const Activity&) = delete;

  // One more thing is done.
  void Add() { done_.fetch_add(1, std::memory_order_relaxed); }

  int64_t done() const { return done_.load(std::memory_order_relaxed); }

  // This process has done a whole round of what it does, a step, so what it needs is made, and how
  // long things take is known. Before that it does not count as stuck.
  void Prove() { proven_.store(true, std::memory_order_relaxed); }
  bool proven() const { return proven_.load(std::memory_order_relaxed); }

  // More threads are at work than wait.
  bool working() const { return at_work_.load(std::memory_order_relaxed) > 0; }

  // For a scope, the calling thread is at work: it should count something every now and then. Its
  // beginning and end count too. `activity` may be null, and must outlive the scope.
  class Work {
   public:
    explicit Work(Activity* activity) : activity_(activity) { Shift(activity_, 1); }
    ~Work() { Shift(activity_, -1); }
    Work(const Work&) = delete;
    Work& operator=(const Work&) = delete;

   private:
    Activity* const activity_;
  };

  // For a scope, inside one of Work or not, the calling thread waits for others, or does what may
  // take as long as it takes, such as writing a file. Beginning and end count too.
  class Wait {
   public:
    explicit Wait(Activity* activity) : activity_(activity) { Shift(activity_, -1); }
    ~Wait() { Shift(activity_, 1); }
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    Activity* const activity_;
  };

 private:
  // Counted before: who reads both sees no work without the count that led to it.
  static void Shift(Activity* activity, int by) {
    if (activity == nullptr) return;
    activity->Add();
    activity->at_work_.fetch_add(by, std::memory_order_relaxed);
  }

  std::atomic<int64_t> done_{0};
  std::atomic<int> at_work_{0};
  std::atomic<bool> proven_{false};
};

// Counts where somebody asked for it: `activity` may be null.
inline void CountActivity(Activity* activity) {
  if (activity != nullptr) activity->Add();
}

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_ACTIVITY_H_
