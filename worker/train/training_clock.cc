#include "worker/train/training_clock.h"

#include "absl/time/time.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

// What a straggler sleeps is longer; what the clock shows without one, shorter.
constexpr absl::Duration kNoStraggler = absl::Microseconds(50);

void AddSpan(TraceRecorder* recorder, TraceSpan what, int64_t step, MonotonicTime begin,
             MonotonicTime end) {
  TraceEvent event;
  event.what = what;
  event.step = step;
  event.begin = begin;
  event.end = end;
  recorder->Add(event);
}

}  // namespace

absl::StatusOr<TrainingClock::SharedEvent> TrainingClock::Mark() {
  GS_ASSIGN_OR_RETURN(ScopedEvent event, ScopedEvent::Create(gpu_));
  GS_RETURN_IF_ERROR(gpu_->Record(event.get(), gpu_->ComputeStream()));
  return std::make_shared<ScopedEvent>(std::move(event));
}

absl::Status TrainingClock::BeginStep() {
  Step step;
  if (gpu_ == nullptr) {
    step.begin = MonotonicTime::Now();
    if (first_begin_ == MonotonicTime::InfinitePast()) {
      first_begin_ = step.begin;
    } else if (paused_) {
      pauses_ += step.begin - paused_at_;
    }
  } else {
    if (paused_) {
      GS_ASSIGN_OR_RETURN(last_, Mark());
    }
    step.from = last_;
  }
  paused_ = false;
  steps_.push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status TrainingClock::EndStep() {
  Step& step = steps_.back();
  if (gpu_ == nullptr) {
    step.end = MonotonicTime::Now();
    step.pauses = pauses_;
    return absl::OkStatus();
  }
  GS_ASSIGN_OR_RETURN(last_, Mark());
  step.to = last_;
  return absl::OkStatus();
}

void TrainingClock::Pause() {
  if (paused_) return;
  paused_ = true;
  paused_at_ = MonotonicTime::Now();
}

absl::Status TrainingClock::Drain() {
  Pause();
  if (gpu_ == nullptr) return absl::OkStatus();
  GS_ASSIGN_OR_RETURN(const SharedEvent now, Mark());
  return gpu_->Synchronize(now->get());
}

absl::StatusOr<bool> TrainingClock::Known() {
  if (gpu_ == nullptr) return true;
  return gpu_->Done(steps_.front().to->get());
}

absl::StatusOr<TrainingClock::StepTime> TrainingClock::Take() {
  const Step step = std::move(steps_.front());
  steps_.pop_front();
  if (gpu_ == nullptr) {
    return StepTime{step.end - step.begin, step.end - first_begin_ - step.pauses};
  }
  GS_ASSIGN_OR_RETURN(const bool done, gpu_->Done(step.to->get()));
  if (!done) GS_RETURN_IF_ERROR(gpu_->Synchronize(step.to->get()));
  GS_ASSIGN_OR_RETURN(const absl::Duration total, gpu_->Elapsed(step.from->get(), step.to->get()));
  taken_ += total;
  return StepTime{total, taken_};
}

void RecordBatch(TraceRecorder* recorder, int64_t step, const BatchPoints& points) {
  if (!Records(recorder, step)) return;
  AddSpan(recorder, TraceSpan::kData, step, points.begin, points.have_data);
  AddSpan(recorder, TraceSpan::kForward, step, points.have_data, points.forward_done);
  AddSpan(recorder, TraceSpan::kBackward, step, points.forward_done, points.backward_done);
}

void RecordReplicas(TraceRecorder* recorder, int64_t step, const ReplicaPoints& points) {
  if (!Records(recorder, step)) return;
  AddSpan(recorder, TraceSpan::kData, step, points.begin, points.have_data);
  AddSpan(recorder, TraceSpan::kReplicate, step, points.have_data, points.replicated);
  AddSpan(recorder, TraceSpan::kScatter, step, points.replicated, points.scattered);
  AddSpan(recorder, TraceSpan::kForward, step, points.scattered, points.forward_done);
  AddSpan(recorder, TraceSpan::kBackward, step, points.forward_done, points.applied);
  AddSpan(recorder, TraceSpan::kGather, step, points.applied, points.gathered);
  AddSpan(recorder, TraceSpan::kReduce, step, points.gathered, points.reduced);
}

void RecordStep(TraceRecorder* recorder, int64_t step, MonotonicTime begin,
                MonotonicTime finished) {
  if (!Records(recorder, step)) return;
  const MonotonicTime now = MonotonicTime::Now();
  AddSpan(recorder, TraceSpan::kStep, step, begin, now);
  if (now - finished > kNoStraggler) AddSpan(recorder, TraceSpan::kUpdate, step, finished, now);
}

}  // namespace gradsync
