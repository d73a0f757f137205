// What a job says of its steps, each when its loss and its times are known: on a GPU that is some
// steps later, since nobody waits for it.

#ifndef GRADSYNC_WORKER_TRAIN_STEP_REPORTS_H_
#define GRADSYNC_WORKER_TRAIN_STEP_REPORTS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "core/group/wire_stats.h"
#include "core/sync/gradient_sync.h"
#include "worker/train/batch_figures.h"
#include "worker/train/loss_reader.h"
#include "worker/train/training_clock.h"
#include "worker/train/training_record.h"

namespace gradsync {

struct StepReportsOptions {
  // An INTERNAL error instead of a report where the loss is not finite. `where` says, for the
  // message, which step of which rank.
  bool check_finite = true;
  std::function<std::string(int64_t step)> where;

  // On a GPU: for how long its compute stream stood still for the step's buckets, where that is
  // known. Null without a GPU, whose host knows the times of a step itself.
  std::function<absl::StatusOr<absl::optional<absl::Duration>>(int64_t step)> exposed;
};

// Not thread-safe.
class StepReports {
 public:
  // May be on their way when the next step begins. Few, so that reports are not late; enough that a
  // GPU always has the next step queued.
  static constexpr size_t kMostPending = 4;

  using OnStep = std::function<void(const StepReport&)>;

  // `clock`, which measures the steps, must outlive this object.
  StepReports(StepReportsOptions options, TrainingClock* clock)
      : options_(std::move(options)), clock_(*clock) {}

  // The figures of the step under way, once each step. Does not wait for the device. Errors:
  // INTERNAL when LibTorch throws.
  absl::Status AddFigures(const BatchFigures& figures);

  // The step that `clock` has just ended, and all that is known of it by now.
  void Add(StepReport report) { pending_.push_back(std::move(report)); }

  // Hands on the steps whose losses have come and that are done, in order; all but `most_pending`
  // are waited for. Errors: those of the clock and of the options; INTERNAL when LibTorch throws.
  absl::Status Take(size_t most_pending, const OnStep& on_step);

  // Of all steps that were handed on.
  const StepLog& log() const { return log_; }
  const EpochTally& tally() const { return tally_; }
  double first_loss() const { return first_loss_; }

 private:
  absl::Status FillTimes(const TrainingClock::StepTime& time, StepReport* report) const;

  const StepReportsOptions options_;
  TrainingClock& clock_;
  LossReader losses_;
  LossReader correct_;                 // counts of right predictions
  std::deque<double> read_losses_;     // that have come, of steps that were not handed on
  std::deque<double> correct_counts_;  // likewise
  std::deque<StepReport> pending_;     // whose losses or ends are on their way
  double first_loss_ = 0;
  StepLog log_;
  EpochTally tally_;
};

// What this process has spent since some moment. A value.
struct Spent {
  absl::Duration time;
  absl::Duration cpu;  // user and system time
  WireStats wire;
};

Spent operator-(const Spent& a, const Spent& b);

// Until now, since a moment that is the same for all calls; of the wire what `sync` counts.
Spent SpentSoFar(const GradientSync& sync);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_STEP_REPORTS_H_
