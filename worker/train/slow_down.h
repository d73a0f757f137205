#ifndef GRADSYNC_WORKER_TRAIN_SLOW_DOWN_H_
#define GRADSYNC_WORKER_TRAIN_SLOW_DOWN_H_

#include <functional>
#include <utility>

#include "absl/time/time.h"
#include "core/base/monotonic_time.h"

namespace gradsync {

// Makes computation take `factor` times as long, as on a slower machine, by sleeping beside it.
//
// The sleep is spread: whoever computes calls CatchUp() often, here after each gradient, so that
// buckets become ready as late as on such a machine. One sleep at the end of backward would make
// the step as long, but would let all but the last bucket's exchange finish before peers notice.
//
// All time is measured in which computation is under way, so time for which others have the core is
// stretched too, as it would be. Not thread-safe: one thread at a time. Blocks as long as it must.
class SlowDown {
 public:
  // A seam for tests.
  struct Clock {
    std::function<MonotonicTime()> now;
    std::function<void(absl::Duration)> sleep;
  };

  // The system's.
  SlowDown();
  explicit SlowDown(Clock clock) : clock_(std::move(clock)) {}

  // Computation begins. A factor of 1 makes the other methods do nothing.
  void Begin(double factor);

  // Sleeps until the time since Begin() is the factor times what was computed in it; not for less
  // than a millisecond, which is left for the next call, because short sleeps take longer than
  // asked for.
  void CatchUp();

  // As CatchUp(), however short, and computation ends.
  void End();

  // Sleeps for what `computed`, which was measured elsewhere, would have taken longer, and returns
  // for how long that was. With the factor of the last Begin().
  absl::Duration Stretch(absl::Duration computed);

 private:
  void SleepWhatIsOwed(absl::Duration least);

  const Clock clock_;
  double factor_ = 1;
  MonotonicTime begin_;
  absl::Duration slept_;  // since begin_
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_SLOW_DOWN_H_
