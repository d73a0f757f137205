// How processes that share windows wait for each other: counters in shared memory, and a futex.

#ifndef GRADSYNC_LINKS_WINDOW_SIGNALS_H_
#define GRADSYNC_LINKS_WINDOW_SIGNALS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"

namespace gradsync {

// The beginning of every member's window. Each counter has one writer, the member, and a cache line
// of its own. Zeroed memory is a valid one.
struct WindowControl {
  enum Counter {
    kReady,     // launches whose gradient is complete at this member
    kDone,      // launches of which this member has written all that it owns
    kMeasured,  // steps for which this member has published its sums of squares
    kCounters,
  };
  struct alignas(64) Line {
    std::atomic<uint32_t> value;
  };

  Line counters[kCounters];
  Line heartbeat;                          // grows while the process runs
  alignas(64) std::atomic<uint32_t> bell;  // rung by everybody: the member's futex
  std::atomic<uint32_t> asleep;            // whether the member waits on it
  // What the launches of one step have in common (step number and options), as bits; written before
  // kReady grows, read after.
  alignas(64) std::array<std::atomic<uint64_t>, 4> note;
};
static_assert(std::atomic<uint32_t>::is_always_lock_free &&
              std::atomic<uint64_t>::is_always_lock_free);

// Before it sleeps, a member that has something under way looks for this long: a wake-up costs
// about as much, and the others are often that close. Longer would take the core from one that has
// to compute or to fold.
constexpr absl::Duration kWindowSpin = absl::Microseconds(20);

// One member's view of all members' control words. Counters only grow, and wrap around.
//
// A member that advances a counter wakes the others only when it was the last one to get there, so
// that nobody is woken in vain. One thread per member may call Await(); the rest is thread-safe.
// Nothing but Await() blocks.
class WindowSignals {
 public:
  // Members that keep each counter: `first`..`last` - 1.
  struct Keepers {
    int first = 0;
    int last = 0;
  };

  // `controls` by member, valid as long as this object is. `workers` keep kReady; `owners` keep
  // kDone and kMeasured.
  WindowSignals(std::vector<WindowControl*> controls, int self, Keepers workers, Keepers owners);

  // The own note; the note of another.
  void SetNote(const std::array<uint64_t, 4>& note);
  std::array<uint64_t, 4> note(int member) const;

  // Sets the own counter. What this thread wrote before is visible to whoever sees it.
  void Advance(WindowControl::Counter counter, uint32_t value);

  // Whether all keepers' counters have reached `value`.
  bool AllReached(WindowControl::Counter counter, uint32_t value) const;

  // Returns when `condition` holds. It is looked at whenever a counter was reached by all and at
  // each RingSelf(). Before sleeping, spins for `spin`.
  void Await(absl::FunctionRef<bool()> condition, absl::Duration spin);

  // Makes the thread in Await() look again.
  void RingSelf() { Ring(self_); }

 private:
  void Ring(int member);
  Keepers KeepersOf(WindowControl::Counter counter) const {
    return counter == WindowControl::kReady ? workers_ : owners_;
  }

  const std::vector<WindowControl*> controls_;
  const int self_;
  const Keepers workers_;
  const Keepers owners_;
};

}  // namespace gradsync

#endif  // GRADSYNC_LINKS_WINDOW_SIGNALS_H_
