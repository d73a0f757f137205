#include "worker/train/training_record.h"

#include "core/base/status_macros.h"

namespace gradsync {

void EpochTally::Add(int64_t epoch, double loss, double correct, int64_t samples) {
  if (epochs_.empty() || epochs_.back().epoch != epoch) {
    epochs_.emplace_back();
    epochs_.back().epoch = epoch;
  }
  Sums& sums = epochs_.back();
  ++sums.steps;
  sums.samples += samples;
  sums.loss += loss * static_cast<double>(samples);
  sums.correct += correct;
}

EpochPoint EpochTally::PointOf(const Sums& sums) {
  EpochPoint point;
  point.epoch = sums.epoch;
  point.steps = sums.steps;
  point.samples = sums.samples;
  point.loss = sums.loss / static_cast<double>(sums.samples);
  point.accuracy = sums.correct / static_cast<double>(sums.samples);
  return point;
}

absl::StatusOr<std::vector<EpochPoint>> EpochTally::Share(SideChannel& side_channel,
                                                          Deadline deadline) const {
  std::vector<double> own;
  for (const Sums& sums : epochs_) {
    own.insert(own.end(), {sums.loss, sums.correct, static_cast<double>(sums.samples)});
  }
  GS_ASSIGN_OR_RETURN(const std::vector<double> all, side_channel.SumDoubles(own, deadline));
  std::vector<EpochPoint> points;
  for (size_t i = 0; i < epochs_.size(); ++i) {
    EpochPoint& point = points.emplace_back(PointOf(epochs_[i]));
    point.global_loss = all[3 * i] / all[3 * i + 2];
    point.global_accuracy = all[3 * i + 1] / all[3 * i + 2];
  }
  return points;
}

void StepLog::Add(const LoggedStep& step) {
  if (++added_ % stride_ != 0) return;
  kept_.push_back(step);
  if (kept_.size() < most_) return;
  for (size_t i = 0; i < most_ / 2; ++i) kept_[i] = kept_[2 * i + 1];
  kept_.resize(most_ / 2);
  stride_ *= 2;
}

}  // namespace gradsync
