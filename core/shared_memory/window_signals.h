// How processes that share windows wait for each other: counters in shared memory, and a futex.

#ifndef GRADSYNC_CORE_SHARED_MEMORY_WINDOW_SIGNALS_H_
#define GRADSYNC_CORE_SHARED_MEMORY_WINDOW_SIGNALS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/base/deadline.h"

namespace gradsync {

// The beginning of every member's window. What has one writer, the member, has a cache line of its
// own. Zeroed memory is a valid one.
struct WindowControl {
  enum Counter {
    kReady,     // launches whose gradient is complete at this member
    kMeasured,  // steps for which this member has published its sums of squares
    kCounters,
  };
  // Bits of `here`.
  enum Presence : uint32_t {
    kThreadAsleep = 1,  // the member's own thread waits for the bell
    kGuestAsleep = 2,   // the guest does
    kGuestHere = 4,     // a guest works, or waits, in the thread's stead
  };
  struct alignas(64) Line {
    std::atomic<uint32_t> value;
    // Of kReady's: what the launches of one step have in common (step number and options), as bits;
    // written before the counter grows, read after, which fetches both.
    std::array<std::atomic<uint64_t>, 4> note;
  };

  Line counters[kCounters];
  Line heartbeat;                          // grows while the process runs
  alignas(64) std::atomic<uint32_t> bell;  // rung by everybody: the member's futex
  std::atomic<uint32_t> here;              // Presence
};
static_assert(std::atomic<uint32_t>::is_always_lock_free &&
              std::atomic<uint64_t>::is_always_lock_free);

// Before it sleeps, a member's thread that has something under way looks for this long: a wake-up
// costs about as much, and the others are often that close. Longer would take the core from one
// that has to compute or to fold.
constexpr absl::Duration kWindowSpin = absl::Microseconds(20);

// One member's view of all members' control words. Counters only grow, and wrap around.
//
// A member that advances a counter wakes the others only when it was the last one to get there, so
// that nobody is woken in vain. Two threads per member may call Await() at the same time, one as
// each kind of sleeper; the rest is thread-safe. Nothing but Await() blocks.
class WindowSignals {
 public:
  // Members that keep each counter: `first`..`last` - 1.
  struct Holders {
    int first = 0;
    int last = 0;
  };

  // The member's own thread, and one that works in its stead for a while. As long as a guest is
  // here, rings are for the guest and let the thread sleep.
  enum Sleeper { kThread, kGuest };

  // `controls` by member, valid as long as this object is. `workers` keep kReady; `owners` keep
  // kMeasured, and are rung for both.
  WindowSignals(std::vector<WindowControl*> controls, int self, Holders workers, Holders owners);

  // The own note; the note of another.
  void SetNote(const std::array<uint64_t, 4>& note);
  std::array<uint64_t, 4> note(int member) const;

  // Sets the own counter. What this thread wrote before is visible to whoever sees it. Returns
  // whether all holders have reached `value` with it; then somebody must RingOwners().
  bool Publish(WindowControl::Counter counter, uint32_t value);

  // The same by a store with release, for callers that find out otherwise who is the last.
  void Announce(WindowControl::Counter counter, uint32_t value);

  // Begins to get the others' counters, which the last one looks at next.
  void FetchOthers(WindowControl::Counter counter) const;

  // All that this thread stored before is seen by who stores after what this thread loads next.
  static void Fence();

  // Whether all holders' counters have reached `value`.
  bool AllReached(WindowControl::Counter counter, uint32_t value) const;

  // How far beyond `value`, which they have reached, all holders' counters are.
  uint32_t Beyond(WindowControl::Counter counter, uint32_t value) const;

  // Makes the threads that sleep in Await() of these members look again; that of this member, too,
  // for owners, and not for workers. What makes them look was stored before, with release at least.
  // Touches the memory of none that is awake.
  void RingOwners();
  void RingOtherWorkers();

  // The same for some other members, by member.
  void RingMembers(absl::Span<const bool> whom);

  // The same for the guests of other workers, if they have any. Their threads sleep on.
  void RingOtherGuests();

  // The same, where what makes them look was stored before a fence, or before a change of any atomic value
  // that is sequentially consistent.
  void WakeOtherGuests();

  // The same for this member's thread and guest.
  void RingSelf();

  // Returns when `condition` holds, or at the deadline. It is looked at whenever the member is
  // rung. Before sleeping, spins for `spin`.
  void Await(Sleeper sleeper, absl::FunctionRef<bool()> condition, absl::Duration spin,
             Deadline deadline = Deadline::Never());

  // A guest comes; at most one at a time. When it leaves it must look whether there is work for the
  // thread, which was not rung meanwhile, and then RingSelf().
  void GuestComes();
  void GuestLeaves();
  bool guest_here() const {
    return (controls_[self_]->here.load(std::memory_order_seq_cst) & WindowControl::kGuestHere) !=
           0;
  }

 private:
  void Ring(int member);
  void RingGuest(int member);
  void Wake(WindowControl& control, uint32_t who);
  Holders HoldersOf(WindowControl::Counter counter) const {
    return counter == WindowControl::kReady ? workers_ : owners_;
  }

  const std::vector<WindowControl*> controls_;
  const int self_;
  const Holders workers_;
  const Holders owners_;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_SHARED_MEMORY_WINDOW_SIGNALS_H_
