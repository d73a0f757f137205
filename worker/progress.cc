#include "worker/progress.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace gradsync {

std::string FormatTimeLeft(absl::Duration left) {
  const int64_t seconds = absl::ToInt64Seconds(left + absl::Milliseconds(500));
  if (seconds < 60) return absl::StrCat(seconds, " s");
  if (seconds < 3600) return absl::StrCat(seconds / 60, " min ", seconds % 60, " s");
  return absl::StrCat(seconds / 3600, " h ", seconds / 60 % 60, " min");
}

std::string Progress::Line(const StepReport& report, MonotonicTime now) {
  const int64_t step = report.step;
  if (options_.every == 0) return "";
  if (first_step_ == 0) {
    first_step_ = step;
    last_step_ = step - 1;
  }
  if (report.epoch != epoch_) correct_ = samples_ = 0;
  epoch_ = report.epoch;
  correct_ += report.correct;
  samples_ += report.samples;
  if (step % options_.every != 0 && step != first_step_ && step != report.steps) return "";
  std::string line = absl::StrFormat("step %d/%d", step, report.steps);
  if (const int64_t epoch = options_.steps_per_epoch; epoch > 0) {
    absl::StrAppendFormat(&line, " epoch %d/%d", (step - 1) / epoch + 1,
                          (report.steps - 1) / epoch + 1);
  }
  absl::StrAppendFormat(&line, " loss %.4f", report.loss);
  if (samples_ > 0) {
    absl::StrAppendFormat(&line, " accuracy %.1f %%",
                          100 * static_cast<double>(correct_) / static_cast<double>(samples_));
  }
  const double seconds = absl::ToDoubleSeconds(now - last_time_);
  if (seconds > 0) {
    const int64_t samples = (step - last_step_) * options_.samples_per_step;
    absl::StrAppendFormat(&line, " %.0f samples/s", static_cast<double>(samples) / seconds);
  }
  absl::StrAppendFormat(&line, " data %.1f exposed %.1f step %.1f ms",
                        absl::ToDoubleMilliseconds(report.times.data),
                        absl::ToDoubleMilliseconds(report.times.exposed),
                        absl::ToDoubleMilliseconds(report.times.total));
  if (step < report.steps) {
    const absl::Duration left = (now - begin_) / (step - first_step_ + 1) * (report.steps - step);
    absl::StrAppend(&line, ", ", FormatTimeLeft(left), " left");
  }
  last_time_ = now;
  last_step_ = step;
  return line;
}

}  // namespace gradsync
