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
  if (step % options_.every != 0 && step != 1 && step != report.steps) return "";
  std::string line = absl::StrFormat("step %d/%d", step, report.steps);
  if (const int64_t epoch = options_.steps_per_epoch; epoch > 0) {
    absl::StrAppendFormat(&line, " epoch %d/%d", (step - 1) / epoch + 1,
                          (report.steps - 1) / epoch + 1);
  }
  absl::StrAppendFormat(&line, " loss %.4f", report.loss);
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
    const absl::Duration left = (now - begin_) / step * (report.steps - step);
    absl::StrAppend(&line, ", ", FormatTimeLeft(left), " left");
  }
  last_time_ = now;
  last_step_ = step;
  return line;
}

}  // namespace gradsync
