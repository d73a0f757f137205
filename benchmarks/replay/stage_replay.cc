#include "benchmarks/replay/stage_replay.h"

#include <algorithm>
#include <utility>

#include "ATen/ops/zeros.h"
#include "core/base/status_macros.h"
#include "worker/pipeline/stage_step.h"
#include "worker/pipeline/tensor_frames.h"

namespace gradsync {
namespace {

using Neighbour = StageLink::Neighbour;

// What was there already is received faster.
constexpr double kWaitedUs = 100;

at::Tensor Floats(int64_t bytes) { return at::zeros({(bytes + 3) / 4}, at::kFloat); }

}  // namespace

StageReplay::StageReplay(ReplayedStage stage, ReplayClock* clock)
    : stage_(std::move(stage)),
      clock_(*clock),
      output_(Floats(stage_.recorded.each.output_bytes)),
      last_output_(Floats(stage_.recorded.last.output_bytes)),
      gradient_(Floats(stage_.recorded.each.input_bytes)),
      last_gradient_(Floats(stage_.recorded.last.input_bytes)) {
  if (!is_slice()) return;
  for (const RecordedPass* pass : {&stage_.recorded.each, &stage_.recorded.last}) {
    MakeTensors(pass->forward_meetings);
    MakeTensors(pass->backward_meetings);
  }
}

void StageReplay::MakeTensors(const std::vector<RecordedMeeting>& meetings) {
  const int64_t slices = stage_.slices->slices();
  for (const RecordedMeeting& at : meetings) {
    const SliceMeeting& meeting = at.meeting;
    const std::vector<int64_t> sizes = meeting.call == SliceCall::kSumPart
                                           ? std::vector<int64_t>{slices, meeting.numbers / slices}
                                           : std::vector<int64_t>{meeting.numbers};
    brought_.emplace(std::make_pair(meeting.call, meeting.numbers), at::zeros(sizes, at::kFloat));
  }
}

bool StageReplay::HasNeighbour(Neighbour neighbour) const {
  return neighbour == Neighbour::kBefore ? stage_.stage > 0 : stage_.stage + 1 < stage_.stages;
}

absl::Status StageReplay::Connect(const std::string& fingerprint) {
  if (is_slice()) return stage_.slices->Connect(fingerprint, NewDeadline());
  if (stage_.link == nullptr) return absl::OkStatus();
  return stage_.link->Connect(fingerprint, NewDeadline());
}

absl::Status StageReplay::Finish() {
  if (is_slice()) return stage_.slices->Finish(NewDeadline());
  if (stage_.link == nullptr) return absl::OkStatus();
  return stage_.link->Finish(NewDeadline());
}

int64_t StageReplay::bytes_sent() const {
  if (is_slice()) return stage_.slices->bytes_sent();
  return stage_.link == nullptr ? 0 : stage_.link->bytes_sent();
}

int64_t StageReplay::bytes_received() const {
  if (is_slice()) return stage_.slices->bytes_received();
  return stage_.link == nullptr ? 0 : stage_.link->bytes_received();
}

// A wait for a tensor has ended. `due`: when the computation before it ended, as recorded times
// have it; moved to when the tensor came, if that is later.
void StageReplay::Waited(double asked, double* due, ReplayedParts* parts) {
  const double came = clock_.Now();
  if (came - asked < kWaitedUs) return;
  parts->waited += came - asked;
  *due = came;
}

absl::Status StageReplay::Await(Neighbour from, const TensorKey& key, double* due,
                                ReplayedParts* parts) {
  if (!HasNeighbour(from)) return absl::OkStatus();
  const double asked = clock_.Now();
  GS_RETURN_IF_ERROR(stage_.link->Receive(from, key, NewDeadline()).status());
  Waited(asked, due, parts);
  return absl::OkStatus();
}

// With nobody to wait for, whatever the order allows.
absl::StatusOr<StageAction> StageReplay::Next(const StageOrder& order, int64_t step, double* due,
                                              ReplayedParts* parts) {
  if (stage_.link == nullptr) return *order.Next(/*input_here=*/true, /*gradient_here=*/true);
  const double asked = clock_.Now();
  GS_ASSIGN_OR_RETURN(const StageAction next, NextAction(*stage_.link, order, step, NewDeadline()));
  Waited(asked, due, parts);
  return next;
}

absl::Status StageReplay::Meet(const SliceMeeting& meeting) {
  const at::Tensor& own = brought_.at({meeting.call, meeting.numbers});
  switch (meeting.call) {
    case SliceCall::kSum:
      return stage_.slices->Sum(own, NewDeadline()).status();
    case SliceCall::kSumPart:
      return stage_.slices->SumPart(own, NewDeadline()).status();
    case SliceCall::kGather:
      return stage_.slices->Gather(own, NewDeadline()).status();
  }
  return absl::OkStatus();
}

// What the launch before took, an exchange may well take; only waking up late is the clock's.
void StageReplay::LaunchAt(double due, int bucket, const Launcher& launch, ReplayedParts* parts) {
  due = std::max(due, clock_.Now());
  clock_.SleepUntil(due);
  parts->late = std::max(parts->late, clock_.Now() - due);
  launch(bucket);
}

// From `due` on, which is moved to its end.
absl::Status StageReplay::Compute(StageAction action, double factor, const Launcher& launch,
                                  double* due, ReplayedParts* parts) {
  const bool forward = action.kind == StageAction::kForward;
  const RecordedPass& pass = PassOf(action);
  const std::vector<double> no_buckets;
  const std::vector<double>& ready =
      IsLast(action) && !forward ? stage_.recorded.bucket_ready_us : no_buckets;
  double begin = *due;
  size_t bucket = 0;
  for (const RecordedMeeting& meeting : forward ? pass.forward_meetings : pass.backward_meetings) {
    for (; bucket < ready.size() && ready[bucket] <= meeting.after_us; ++bucket) {
      LaunchAt(begin + factor * ready[bucket], static_cast<int>(bucket), launch, parts);
    }
    clock_.SleepUntil(begin + factor * meeting.after_us);
    const double asked = clock_.Now();
    GS_RETURN_IF_ERROR(Meet(meeting.meeting));
    const double took = clock_.Now() - asked;
    parts->waited += took;
    begin += took;
  }
  for (; bucket < ready.size(); ++bucket) {
    LaunchAt(begin + factor * ready[bucket], static_cast<int>(bucket), launch, parts);
  }
  const double length = factor * (forward ? pass.forward_us : pass.backward_us);
  (forward ? parts->forward : parts->backward) += length;
  *due = begin + length;
  clock_.SleepUntil(*due);
  return absl::OkStatus();
}

absl::Status StageReplay::Run(int64_t step, double factor, const Launcher& launch,
                              ReplayedParts* parts) {
  double due = clock_.Now();
  StageOrder order(stage_.schedule, stage_.stages, stage_.stage, stage_.micro_batches);
  while (!order.done()) {
    GS_ASSIGN_OR_RETURN(const StageAction action, Next(order, step, &due, parts));
    const bool forward = action.kind == StageAction::kForward;
    const TensorKey activation = {TensorKey::kActivation, step, action.micro_batch};
    const TensorKey gradient = {TensorKey::kGradient, step, action.micro_batch};
    GS_RETURN_IF_ERROR(forward ? Await(Neighbour::kBefore, activation, &due, parts)
                               : Await(Neighbour::kBehind, gradient, &due, parts));
    GS_RETURN_IF_ERROR(Compute(action, factor, launch, &due, parts));
    const bool last = IsLast(action);
    if (forward && HasNeighbour(Neighbour::kBehind)) {
      stage_.link->Send(Neighbour::kBehind, activation, last ? last_output_ : output_);
    }
    if (!forward && HasNeighbour(Neighbour::kBefore)) {
      stage_.link->Send(Neighbour::kBefore, gradient, last ? last_gradient_ : gradient_);
    }
    order.Did(action.kind);
  }
  return absl::OkStatus();
}

}  // namespace gradsync
