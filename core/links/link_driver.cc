#include "core/links/link_driver.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "core/base/monotonic_time.h"

namespace gradsync {
namespace {

// After so many looks in vain the core is offered to others.
constexpr int kLooksPerYield = 4;

// A thread that has had to wait longer than this for its core shares it. It does not look for some
// calls then: for twice as many as the last time, at most for so many.
constexpr absl::Duration kSharedCore = absl::Microseconds(20);
constexpr int kMostSkipped = 128;

}  // namespace

void LinkDriver::Drive(absl::FunctionRef<bool()> done, Deadline deadline) {
  if (calls_to_skip_ > 0) {
    --calls_to_skip_;
    return;
  }
  Drivables drivables;
  add_(&drivables);
  drivables.erase(std::remove_if(drivables.begin(), drivables.end(),
                                 [](const auto& each) { return !each->BeginDriving(); }),
                  drivables.end());
  if (drivables.empty()) return;
  if (Look(drivables, done, deadline)) {
    last_skipped_ = last_skipped_ / 2;
  } else {
    last_skipped_ = std::min(2 * last_skipped_ + 1, kMostSkipped);
    calls_to_skip_ = last_skipped_.load();
  }
  const bool idle = !done();
  for (const auto& each : drivables) each->EndDriving(idle);
}

// Returns whether the core was this thread's own.
bool LinkDriver::Look(const Drivables& drivables, absl::FunctionRef<bool()> done,
                      Deadline deadline) const {
  MonotonicTime now = MonotonicTime::Now();
  MonotonicTime until = now + spin_;
  for (int looks = 1; !done() && now < until && !deadline.passed(); ++looks) {
    bool any = false;
    for (const auto& each : drivables) any = each->Poll() || any;
    now = MonotonicTime::Now();
    if (any) {
      until = now + spin_;
    } else if (looks % kLooksPerYield == 0) {
      sched_yield();
      const MonotonicTime before = std::exchange(now, MonotonicTime::Now());
      if (now - before > kSharedCore) return false;
    }
  }
  return true;
}

}  // namespace gradsync
