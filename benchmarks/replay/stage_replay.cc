#include "benchmarks/replay/stage_replay.h"

#include <algorithm>
#include <utility>

#include "ATen/ops/zeros.h"
#include "base/deadline.h"
#include "base/status_macros.h"
#include "pipeline/tensor_frames.h"

namespace gradsync {
namespace {

using Neighbour = StageLink::Neighbour;

// What was there already is received faster.
constexpr double kWaitedUs = 100;

at::Tensor Floats(int64_t bytes) { return at::zeros({(bytes + 3) / 4}, at::kFloat); }

}  // namespace

StageReplay::StageReplay(RecordedStage recorded, PipelineSchedule schedule, int64_t micro_batches,
                         int stage, int stages, StageLink* link, ReplayClock* clock,
                         absl::Duration timeout)
    : recorded_(std::move(recorded)),
      actions_(ActionsOf(schedule, stages, stage, micro_batches)),
      micro_batches_(micro_batches),
      stage_(stage),
      stages_(stages),
      link_(link),
      clock_(*clock),
      timeout_(timeout),
      output_(Floats(recorded_.each.output_bytes)),
      last_output_(Floats(recorded_.last.output_bytes)),
      gradient_(Floats(recorded_.each.input_bytes)),
      last_gradient_(Floats(recorded_.last.input_bytes)) {}

bool StageReplay::HasNeighbour(Neighbour neighbour) const {
  return neighbour == Neighbour::kBefore ? stage_ > 0 : stage_ + 1 < stages_;
}

absl::Status StageReplay::Connect(const std::string& fingerprint) {
  if (link_ == nullptr) return absl::OkStatus();
  return link_->Connect(fingerprint, Deadline::In(timeout_));
}

absl::Status StageReplay::Finish() {
  if (link_ == nullptr) return absl::OkStatus();
  return link_->Finish(Deadline::In(timeout_));
}

// `due`: when the computation before this ended, as recorded times have it; moved to when the
// tensor came, if that is later.
absl::Status StageReplay::Await(Neighbour from, const TensorKey& key, double* due,
                                ReplayedParts* parts) {
  if (!HasNeighbour(from)) return absl::OkStatus();
  const double asked = clock_.Now();
  GS_RETURN_IF_ERROR(link_->Receive(from, key, Deadline::In(timeout_)).status());
  const double came = clock_.Now();
  if (came - asked < kWaitedUs) return absl::OkStatus();
  parts->waited += came - asked;
  *due = came;
  return absl::OkStatus();
}

absl::Status StageReplay::Run(int64_t step, double factor, const std::function<void(int)>& launch,
                              ReplayedParts* parts) {
  double due = clock_.Now();
  for (const StageAction action : actions_) {
    const bool forward = action.kind == StageAction::kForward;
    const bool last = action.micro_batch + 1 == micro_batches_;
    const RecordedPass& pass = last ? recorded_.last : recorded_.each;
    const TensorKey activation = {TensorKey::kActivation, step, action.micro_batch};
    const TensorKey gradient = {TensorKey::kGradient, step, action.micro_batch};
    GS_RETURN_IF_ERROR(forward ? Await(Neighbour::kBefore, activation, &due, parts)
                               : Await(Neighbour::kBehind, gradient, &due, parts));
    const double begin = due;
    const double length = factor * (forward ? pass.forward_us : pass.backward_us);
    due += length;
    (forward ? parts->forward : parts->backward) += length;
    for (size_t b = 0; last && !forward && b < recorded_.bucket_ready_us.size(); ++b) {
      // What the launch before took, an exchange may well take; only waking up late is the clock's.
      const double ready = std::max(begin + factor * recorded_.bucket_ready_us[b], clock_.Now());
      clock_.SleepUntil(ready);
      parts->late = std::max(parts->late, clock_.Now() - ready);
      launch(static_cast<int>(b));
    }
    clock_.SleepUntil(due);
    if (forward && HasNeighbour(Neighbour::kBehind)) {
      link_->Send(Neighbour::kBehind, activation, last ? last_output_ : output_);
    }
    if (!forward && HasNeighbour(Neighbour::kBefore)) {
      link_->Send(Neighbour::kBefore, gradient, last ? last_gradient_ : gradient_);
    }
  }
  return absl::OkStatus();
}

}  // namespace gradsync
