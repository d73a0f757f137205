#include "benchmarks/replay/replay_clock.h"

#include <errno.h>
#include <time.h>

#include "benchmarks/ranks/clocks.h"

namespace gradsync {
namespace {

// The kernel wakes a sleeper up to 50 us late (timer slack) and takes some to switch to it. Longer
// spins would take cores from the exchange.
constexpr double kSpinUs = 60;

}  // namespace

double MonotonicReplayClock::Now() { return MonotonicMicroseconds(); }

void MonotonicReplayClock::SleepUntil(double us) {
  const double wake = us - kSpinUs;
  if (Now() < wake) {
    timespec time;
    time.tv_sec = static_cast<time_t>(wake * 1e-6);
    time.tv_nsec = static_cast<long>((wake - static_cast<double>(time.tv_sec) * 1e6) * 1e3);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr) == EINTR) {
    }
  }
  while (Now() < us) {
  }
}

}  // namespace gradsync
