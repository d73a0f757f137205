#ifndef GRADSYNC_BENCHMARKS_REPLAY_REPLAY_CLOCK_H_
#define GRADSYNC_BENCHMARKS_REPLAY_REPLAY_CLOCK_H_

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
  double Now() override;
  void SleepUntil(double us) override;
};

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_REPLAY_REPLAY_CLOCK_H_
