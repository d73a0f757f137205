#include "ps_server/step_progress.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace gradsync {
namespace {

bool SameBits(double a, double b) { return std::memcmp(&a, &b, sizeof(a)) == 0; }

// 17 digits, so that two values that differ look different.
std::string Describe(const StepOptions& step) {
  return absl::StrFormat("step %d, lr %.17g, max_norm %.17g, inverse_loss_scale %.17g", step.step,
                         step.lr, step.max_norm, step.inverse_loss_scale);
}

}  // namespace

absl::Status StepProgress::Enter(int rank, const StepOptions& step) {
  MutexLock lock(&mutex_);
  if (unfinished_ > 0) {
    if (step == step_) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("ranks disagree about the step: rank ",
                                                   first_rank_, " pushed ", Describe(step_),
                                                   "; rank ", rank, " pushed ", Describe(step)));
  }
  if (step.step <= step_.step) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " pushed step ", step.step,
                                                   ", expected one after step ", step_.step));
  }
  step_ = step;
  first_rank_ = rank;
  ++steps_begun_;
  unfolded_ = chunks_;
  unfinished_ = chunks_;
  std::fill(norms_.begin(), norms_.end(), absl::nullopt);
  return absl::OkStatus();
}

bool StepProgress::ChunkFolded() {
  MutexLock lock(&mutex_);
  return --unfolded_ == 0;
}

absl::StatusOr<bool> StepProgress::AddNorm(int rank, int64_t step, double norm) {
  MutexLock lock(&mutex_);
  if (unfinished_ == 0 || unfolded_ != 0 || step != step_.step || norms_[rank].has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", rank, " gave a norm for step ", step,
        ", expected one, once, after all chunks of step ", step_.step, " were folded"));
  }
  norms_[rank] = norm;
  int answered = 0;
  for (size_t other = 0; other < norms_.size(); ++other) {
    if (!norms_[other].has_value()) continue;
    ++answered;
    if (!SameBits(*norms_[other], norm)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "ranks disagree about the gradient norm of step %d: rank %d has %.17g, rank %d has %.17g",
          step, other, *norms_[other], rank, norm));
    }
  }
  return answered == static_cast<int>(norms_.size());
}

void StepProgress::ChunkFinished() {
  MutexLock lock(&mutex_);
  --unfinished_;
}

void StepProgress::SetLastStep(int64_t step) {
  MutexLock lock(&mutex_);
  step_ = StepOptions();
  step_.step = step;
}

bool StepProgress::idle() const {
  MutexLock lock(&mutex_);
  return unfinished_ == 0;
}

int64_t StepProgress::steps_begun() const {
  MutexLock lock(&mutex_);
  return steps_begun_;
}

StepOptions StepProgress::step() const {
  MutexLock lock(&mutex_);
  return step_;
}

absl::Status PushSequence::Check(size_t next, ChunkId found) const {
  if (next >= order_->size()) {
    return absl::InvalidArgumentError(absl::StrCat("connection ", connection_,
                                                   ": expected nothing, found bucket ",
                                                   found.bucket, " slot ", found.slot));
  }
  const ChunkId expected = order_->At(rank_, next);
  if (expected == found) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("connection ", connection_, ": expected bucket ", expected.bucket, " slot ",
                   expected.slot, " (number ", next, " of ", order_->size(), "), found bucket ",
                   found.bucket, " slot ", found.slot));
}

void PushSequence::Advance(size_t& next) const {
  next += connections_;
  if (next >= order_->size()) next = connection_;
}

absl::Status PushSequence::Push(ChunkId found, int64_t step) {
  absl::Status status = Check(next_push_, found);
  if (!status.ok()) return status;
  if (next_parameters_ != connection_) {
    return absl::InvalidArgumentError(
        absl::StrCat("connection ", connection_, ": expected the rest of the parameters, found a ",
                     "gradient of step ", step));
  }
  const bool begins = next_push_ == connection_;
  if (begins ? step <= step_ : step != step_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "connection ", connection_, ": expected step ", step_,
        begins ? " to be followed by a later one" : " to go on", ", found step ", step));
  }
  step_ = step;
  Advance(next_push_);
  return absl::OkStatus();
}

absl::Status PushSequence::Parameters(ChunkId found) {
  absl::Status status = Check(next_parameters_, found);
  if (!status.ok()) return status;
  if (next_push_ != connection_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "connection ", connection_, ": expected the rest of step ", step_, ", found parameters"));
  }
  Advance(next_parameters_);
  return absl::OkStatus();
}

}  // namespace gradsync
