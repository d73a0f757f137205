#include "links/window_signals.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

#include "absl/time/clock.h"

namespace gradsync {
namespace {

// Not the private futexes: other processes wake.
void FutexWait(std::atomic<uint32_t>* word, uint32_t seen) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT, seen, nullptr, nullptr, 0);
}

void FutexWake(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

bool HasReached(uint32_t counter, uint32_t value) {
  return static_cast<int32_t>(counter - value) >= 0;
}

}  // namespace

WindowSignals::WindowSignals(std::vector<WindowControl*> controls, int self, Keepers workers,
                             Keepers owners)
    : controls_(std::move(controls)), self_(self), workers_(workers), owners_(owners) {}

void WindowSignals::SetNote(const std::array<uint64_t, 4>& note) {
  for (size_t i = 0; i < note.size(); ++i) {
    controls_[self_]->note[i].store(note[i], std::memory_order_relaxed);
  }
}

std::array<uint64_t, 4> WindowSignals::note(int member) const {
  std::array<uint64_t, 4> note;
  for (size_t i = 0; i < note.size(); ++i) {
    note[i] = controls_[member]->note[i].load(std::memory_order_relaxed);
  }
  return note;
}

// Of two members that advance at the same time at least one sees both counters, because store and
// loads are sequentially consistent; it rings.
void WindowSignals::Advance(WindowControl::Counter counter, uint32_t value) {
  controls_[self_]->counters[counter].value.store(value, std::memory_order_seq_cst);
  if (!AllReached(counter, value)) return;
  const Keepers wait_for_it = counter == WindowControl::kDone ? workers_ : owners_;
  for (int member = wait_for_it.first; member < wait_for_it.last; ++member) {
    if (member != self_) Ring(member);
  }
  if (self_ >= wait_for_it.first && self_ < wait_for_it.last) Ring(self_);
}

bool WindowSignals::AllReached(WindowControl::Counter counter, uint32_t value) const {
  const Keepers keepers = KeepersOf(counter);
  for (int member = keepers.first; member < keepers.last; ++member) {
    if (!HasReached(controls_[member]->counters[counter].value.load(std::memory_order_seq_cst),
                    value)) {
      return false;
    }
  }
  return true;
}

void WindowSignals::Await(absl::FunctionRef<bool()> condition, absl::Duration spin) {
  if (condition()) return;
  if (spin > absl::ZeroDuration()) {
    const int64_t end = absl::GetCurrentTimeNanos() + absl::ToInt64Nanoseconds(spin);
    do {
      for (int i = 0; i < 16; ++i) __builtin_ia32_pause();
      if (condition()) return;
    } while (absl::GetCurrentTimeNanos() < end);
  }
  WindowControl& own = *controls_[self_];
  while (true) {
    const uint32_t seen = own.bell.load(std::memory_order_seq_cst);
    // Told before the condition is looked at: who makes it true after that sees it, or changes the
    // bell, which the kernel compares.
    own.asleep.store(1, std::memory_order_seq_cst);
    if (condition()) break;
    FutexWait(&own.bell, seen);
  }
  own.asleep.store(0, std::memory_order_relaxed);
}

void WindowSignals::Ring(int member) {
  WindowControl& control = *controls_[member];
  control.bell.fetch_add(1, std::memory_order_seq_cst);
  if (control.asleep.load(std::memory_order_seq_cst) != 0) FutexWake(&control.bell);
}

}  // namespace gradsync
