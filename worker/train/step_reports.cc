#include "worker/train/step_reports.h"

#include <algorithm>
#include <cmath>
#include <exception>

#include "absl/strings/str_cat.h"
#include "core/base/monotonic_time.h"
#include "core/base/process_resources.h"
#include "core/base/status_macros.h"
#include "worker/train/check_finite.h"

namespace gradsync {

absl::Status StepReports::AddFigures(const BatchFigures& figures) {
  try {
    losses_.Add(figures.loss);
    correct_.Add(figures.correct);
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("the loss of a step: LibTorch: ", e.what()));
  }
  return absl::OkStatus();
}

absl::Status StepReports::Take(size_t most_pending, const OnStep& on_step) {
  GS_RETURN_IF_ERROR(losses_.Take(most_pending, &read_losses_));
  GS_RETURN_IF_ERROR(correct_.Take(most_pending, &correct_counts_));
  while (!read_losses_.empty() && !correct_counts_.empty()) {
    // A loss is there before its step is done.
    GS_ASSIGN_OR_RETURN(const bool known, clock_.Known());
    if (!known && pending_.size() <= most_pending) break;
    GS_ASSIGN_OR_RETURN(const TrainingClock::StepTime time, clock_.Take());
    StepReport& report = pending_.front();
    report.loss = read_losses_.front();
    report.correct = std::llround(correct_counts_.front());
    read_losses_.pop_front();
    correct_counts_.pop_front();
    if (options_.check_finite) {
      GS_RETURN_IF_ERROR(CheckFinite(options_.where(report.step), report.loss));
    }
    GS_RETURN_IF_ERROR(FillTimes(time, &report));
    if (log_.added() == 0) first_loss_ = report.loss;
    log_.Add({report.step, report.loss, report.lr, report.end, report.times});
    tally_.Add(report.epoch, report.loss, static_cast<double>(report.correct), report.samples);
    if (report.epoch_end.has_value()) report.epoch_end = tally_.Current();
    on_step(report);
    pending_.pop_front();
  }
  return absl::OkStatus();
}

absl::Status StepReports::FillTimes(const TrainingClock::StepTime& time, StepReport* report) const {
  StepTimes& times = report->times;
  times.total = time.total;
  report->end = time.end;
  if (options_.exposed == nullptr) return absl::OkStatus();
  // The clock of the host says nothing of when a GPU did what.
  GS_ASSIGN_OR_RETURN(const absl::optional<absl::Duration> exposed, options_.exposed(report->step));
  times.exposed = exposed.value_or(times.exposed);
  times.backward = std::max(absl::ZeroDuration(), times.total - times.data - times.forward -
                                                      times.exposed - times.update);
  return absl::OkStatus();
}

Spent operator-(const Spent& a, const Spent& b) {
  return {a.time - b.time, a.cpu - b.cpu, a.wire - b.wire};
}

Spent SpentSoFar(const GradientSync& sync) {
  return {MonotonicTime::Now().since_origin(), ProcessCpuTime(), sync.wire_stats()};
}

}  // namespace gradsync
