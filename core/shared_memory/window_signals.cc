#include "core/shared_memory/window_signals.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace gradsync {
namespace {

// Not the private futexes: other processes wake. `who` is a set of WindowControl::Presence.
void FutexWait(std::atomic<uint32_t>* word, uint32_t seen, uint32_t who, Deadline deadline) {
  const bool endless = deadline.never();
  const timespec until = endless ? timespec{} : absl::ToTimespec(deadline.time().since_origin());
  // An absolute time by CLOCK_MONOTONIC, as MonotonicTime is.
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT_BITSET, seen,
          endless ? nullptr : &until, nullptr, who);
}

void FutexWake(std::atomic<uint32_t>* word, uint32_t who) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE_BITSET,
          std::numeric_limits<int>::max(), nullptr, nullptr, who);
}

bool HasReached(uint32_t counter, uint32_t value) {
  return static_cast<int32_t>(counter - value) >= 0;
}

}  // namespace

WindowSignals::WindowSignals(std::vector<WindowControl*> controls, int self, Holders workers,
                             Holders owners)
    : controls_(std::move(controls)), self_(self), workers_(workers), owners_(owners) {}

void WindowSignals::SetNote(const std::array<uint64_t, 4>& note) {
  for (size_t i = 0; i < note.size(); ++i) {
    controls_[self_]->counters[WindowControl::kReady].note[i].store(note[i],
                                                                    std::memory_order_relaxed);
  }
}

std::array<uint64_t, 4> WindowSignals::note(int member) const {
  std::array<uint64_t, 4> note;
  for (size_t i = 0; i < note.size(); ++i) {
    note[i] =
        controls_[member]->counters[WindowControl::kReady].note[i].load(std::memory_order_relaxed);
  }
  return note;
}

// Of two members that publish at the same time at least one sees both counters, because store and
// loads are sequentially consistent.
bool WindowSignals::Publish(WindowControl::Counter counter, uint32_t value) {
  controls_[self_]->counters[counter].value.store(value, std::memory_order_seq_cst);
  return AllReached(counter, value);
}

void WindowSignals::Announce(WindowControl::Counter counter, uint32_t value) {
  controls_[self_]->counters[counter].value.store(value, std::memory_order_release);
}

void WindowSignals::FetchOthers(WindowControl::Counter counter) const {
  const Holders holders = HoldersOf(counter);
  for (int member = holders.first; member < holders.last; ++member) {
    if (member != self_) __builtin_prefetch(&controls_[member]->counters[counter]);
  }
}

void WindowSignals::Fence() {
#ifdef GRADSYNC_THREAD_SANITIZER  // knows of no fences
  static std::atomic<int> any;
  any.fetch_add(0, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

bool WindowSignals::AllReached(WindowControl::Counter counter, uint32_t value) const {
  const Holders holders = HoldersOf(counter);
  for (int member = holders.first; member < holders.last; ++member) {
    if (!HasReached(controls_[member]->counters[counter].value.load(std::memory_order_seq_cst),
                    value)) {
      return false;
    }
  }
  return true;
}

uint32_t WindowSignals::Beyond(WindowControl::Counter counter, uint32_t value) const {
  const Holders holders = HoldersOf(counter);
  uint32_t least = std::numeric_limits<uint32_t>::max();
  for (int member = holders.first; member < holders.last; ++member) {
    least = std::min(least, controls_[member]->counters[counter].value.load() - value);
  }
  return least;
}

// Others first: this member may lose its core to its own thread.
void WindowSignals::RingOwners() {
  Fence();
  for (int member = owners_.first; member < owners_.last; ++member) {
    if (member != self_) Ring(member);
  }
  if (self_ >= owners_.first && self_ < owners_.last) Ring(self_);
}

void WindowSignals::RingOtherWorkers() {
  Fence();
  for (int member = workers_.first; member < workers_.last; ++member) {
    if (member != self_) Ring(member);
  }
}

void WindowSignals::RingMembers(absl::Span<const bool> whom) {
  Fence();
  for (size_t member = 0; member < whom.size(); ++member) {
    if (whom[member]) Ring(static_cast<int>(member));
  }
}

void WindowSignals::RingOtherGuests() {
  Fence();
  WakeOtherGuests();
}

void WindowSignals::WakeOtherGuests() {
  for (int member = workers_.first; member < workers_.last; ++member) {
    if (member != self_) RingGuest(member);
  }
}

void WindowSignals::RingSelf() {
  WindowControl& own = *controls_[self_];
  own.bell.fetch_add(1, std::memory_order_seq_cst);
  FutexWake(&own.bell, WindowControl::kThreadAsleep | WindowControl::kGuestAsleep);
}

void WindowSignals::Await(Sleeper sleeper, absl::FunctionRef<bool()> condition, absl::Duration spin,
                          Deadline deadline) {
  if (condition()) return;
  if (spin > absl::ZeroDuration()) {
    const Deadline end = Deadline::In(spin);
    do {
      for (int i = 0; i < 16; ++i) __builtin_ia32_pause();
      if (condition()) return;
      sched_yield();  // whoever is waited for may want this core
    } while (!end.passed());
  }
  WindowControl& own = *controls_[self_];
  const uint32_t asleep =
      sleeper == kThread ? WindowControl::kThreadAsleep : WindowControl::kGuestAsleep;
  while (true) {
    const uint32_t seen = own.bell.load(std::memory_order_seq_cst);
    // Told before the condition is looked at: who makes it true after that sees it, or changes the
    // bell, which the kernel compares.
    own.here.fetch_or(asleep, std::memory_order_seq_cst);
    if (condition() || deadline.passed()) break;
    FutexWait(&own.bell, seen, asleep, deadline);
  }
  own.here.fetch_and(~asleep, std::memory_order_seq_cst);
}

void WindowSignals::GuestComes() {
  controls_[self_]->here.fetch_or(WindowControl::kGuestHere, std::memory_order_seq_cst);
}

void WindowSignals::GuestLeaves() {
  controls_[self_]->here.fetch_and(~uint32_t{WindowControl::kGuestHere}, std::memory_order_seq_cst);
}

// Whoever is not known to sleep here looks at what made this member ring before it does: that was
// stored before, and all of these are sequentially consistent.
void WindowSignals::Ring(int member) {
  WindowControl& control = *controls_[member];
  const uint32_t here = control.here.load(std::memory_order_seq_cst);
  const uint32_t whom = (here & WindowControl::kGuestHere) != 0 ? WindowControl::kGuestAsleep
                                                                : WindowControl::kThreadAsleep;
  if ((here & whom) != 0) Wake(control, whom);
}

void WindowSignals::RingGuest(int member) {
  WindowControl& control = *controls_[member];
  if ((control.here.load(std::memory_order_seq_cst) & WindowControl::kGuestAsleep) != 0) {
    Wake(control, WindowControl::kGuestAsleep);
  }
}

// The bell is for one that has told that it sleeps and does not yet.
void WindowSignals::Wake(WindowControl& control, uint32_t who) {
  control.bell.fetch_add(1, std::memory_order_seq_cst);
  FutexWake(&control.bell, who);
}

}  // namespace gradsync
