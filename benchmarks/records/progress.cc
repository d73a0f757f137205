#include "benchmarks/records/progress.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace gradsync {
namespace {

constexpr absl::Duration kRewriteInterval = absl::Milliseconds(100);
// Long jobs show signs of life in log files too.
constexpr absl::Duration kLogInterval = absl::Seconds(30);
// Of the first job: before, its start-up would pass for the pace of its steps.
constexpr double kPartForEstimate = 0.2;
constexpr absl::string_view kRewrite = "\r\x1b[K";

}  // namespace

Progress::Progress(ProgressOptions options)
    : options_(std::move(options)), begin_(options_.clock()) {
  for (double weight : options_.weights) total_weight_ += weight;
}

void Progress::Start(std::string label) {
  ++job_;
  label_ = std::move(label);
  job_part_ = 0;
  job_begin_ = options_.clock();
  WriteLine(options_.terminal ? absl::StrCat(Head(), ": starting; ", Times())
                              : absl::StrCat(Head(), "; ", Times()),
            !options_.terminal);
}

void Progress::Step(int64_t step, int64_t steps) {
  job_part_ = static_cast<double>(step) / static_cast<double>(steps);
  const absl::Duration interval = options_.terminal ? kRewriteInterval : kLogInterval;
  if (options_.clock() - last_write_ < interval) return;
  WriteLine(absl::StrCat(Head(), ": step ", step, "/", steps, "; ", Times()), !options_.terminal);
}

void Progress::Finish(absl::string_view result) {
  WriteLine(absl::StrCat(Head(), ": ", result, " (took ",
                         FormatClock(options_.clock() - job_begin_), ")"),
            true);
  done_weight_ += options_.weights[job_ - 1];
}

std::string Progress::Head() const {
  return absl::StrCat("[", job_, "/", options_.weights.size(), "] ", label_);
}

std::string Progress::Times() const {
  const absl::Duration elapsed = options_.clock() - begin_;
  const double done = done_weight_ + job_part_ * options_.weights[job_ - 1];
  std::string text = absl::StrCat(FormatClock(elapsed), " elapsed");
  if (done_weight_ > 0 || job_part_ >= kPartForEstimate) {
    absl::StrAppend(&text, ", about ", FormatClock(elapsed * ((total_weight_ - done) / done)),
                    " left");
  }
  return text;
}

void Progress::WriteLine(const std::string& line, bool stays) {
  last_write_ = options_.clock();
  options_.write(absl::StrCat(options_.terminal ? kRewrite : "", line, stays ? "\n" : ""));
}

std::string FormatClock(absl::Duration duration) {
  const int64_t seconds = absl::ToInt64Seconds(duration + absl::Milliseconds(500));
  if (seconds < 3600) return absl::StrFormat("%d:%02d", seconds / 60, seconds % 60);
  return absl::StrFormat("%d:%02d:%02d", seconds / 3600, seconds / 60 % 60, seconds % 60);
}

}  // namespace gradsync
