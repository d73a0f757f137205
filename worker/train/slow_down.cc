#include "worker/train/slow_down.h"

#include "absl/time/clock.h"

namespace gradsync {

SlowDown::SlowDown() : clock_{MonotonicTime::Now, absl::SleepFor} {}

void SlowDown::Begin(double factor) {
  factor_ = factor;
  if (factor_ <= 1) return;
  begin_ = clock_.now();
  slept_ = absl::ZeroDuration();
}

void SlowDown::CatchUp() { SleepWhatIsOwed(absl::Milliseconds(1)); }

void SlowDown::End() { SleepWhatIsOwed(absl::Nanoseconds(1)); }

absl::Duration SlowDown::Stretch(absl::Duration computed) {
  if (factor_ <= 1) return absl::ZeroDuration();
  const MonotonicTime start = clock_.now();
  clock_.sleep((factor_ - 1) * computed);
  return clock_.now() - start;
}

void SlowDown::SleepWhatIsOwed(absl::Duration least) {
  if (factor_ <= 1) return;
  const MonotonicTime now = clock_.now();
  const absl::Duration elapsed = now - begin_;
  const absl::Duration owed = factor_ * (elapsed - slept_) - elapsed;
  if (owed < least) return;
  clock_.sleep(owed);
  slept_ += clock_.now() - now;
}

}  // namespace gradsync
