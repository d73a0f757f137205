#ifndef GRADSYNC_BENCHMARKS_REPLAY_REPLAY_CLOCK_H_
#define GRADSYNC_BENCHMARKS_REPLAY_REPLAY_CLOCK_H_

#include <errno.h>
#include <time.h>

#include "benchmarks/ranks/start_line.h"

namespace gradsync {

// What a replayed step takes its time from; a seam for tests. Microseconds on one clock.
class ReplayClock {
 public:
  virtual ~ReplayClock() = default;

  virtual double Now() = 0;

  // Blocks until Now() is at least `us`; returns at once when it is already.
  virtual void SleepUntil(double us) = 0;
};

// CLOCK_MONOTONIC: sleeps to an absolute time shortly before, then spins, so that the kernel's
// timer slack does not make every bucket late. Thread-safe.
class MonotonicReplayClock : public ReplayClock {
 public:
  double Now() override { return MonotonicMicroseconds(); }
  void SleepUntil(double us) override {
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

 private:
  // The kernel wakes a sleeper up to 50 us late (timer slack) and takes some to switch to it.
  // Longer spins would take cores from the exchange.
  static constexpr double kSpinUs = 60;
};

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_REPLAY_REPLAY_CLOCK_H_
