#include "gradsync/ddp/stream_timer.h"

#include "core/base/status_macros.h"

namespace gradsync {

absl::StatusOr<std::unique_ptr<StreamTimer>> StreamTimer::Create(std::shared_ptr<GpuApi> gpu,
                                                                 size_t waits) {
  std::unique_ptr<StreamTimer> timer(new StreamTimer(std::move(gpu)));
  for (Step& step : timer->steps_) {
    for (size_t i = 0; i < waits; ++i) {
      Wait& wait = step.waits.emplace_back();
      GS_ASSIGN_OR_RETURN(wait.begin, ScopedEvent::Create(timer->gpu_));
      GS_ASSIGN_OR_RETURN(wait.end, ScopedEvent::Create(timer->gpu_));
    }
  }
  return timer;
}

absl::Status StreamTimer::BeginStep(int64_t step) {
  const size_t next = (current_ + 1) % kSteps;
  GS_ASSIGN_OR_RETURN(measuring_, Done(steps_[next]));
  if (!measuring_) return absl::OkStatus();
  current_ = next;
  steps_[current_].number = step;
  steps_[current_].used = 0;
  return absl::OkStatus();
}

absl::Status StreamTimer::BeforeWait() {
  if (!measuring_) return absl::OkStatus();
  Step& step = steps_[current_];
  return gpu_->Record(step.waits[step.used].begin.get(), gpu_->ComputeStream());
}

absl::Status StreamTimer::AfterWait() {
  if (!measuring_) return absl::OkStatus();
  Step& step = steps_[current_];
  return gpu_->Record(step.waits[step.used++].end.get(), gpu_->ComputeStream());
}

absl::StatusOr<StreamTimer::StandStill> StreamTimer::Newest() const {
  for (size_t age = 0; age < kSteps; ++age) {
    const Step& step = steps_[(current_ + kSteps - age) % kSteps];
    if (step.used == 0) continue;
    GS_ASSIGN_OR_RETURN(const bool done, Done(step));
    if (!done) continue;
    GS_ASSIGN_OR_RETURN(const absl::Duration time, Sum(step));
    return StandStill{step.number, time};
  }
  return StandStill();
}

absl::StatusOr<absl::optional<absl::Duration>> StreamTimer::Of(int64_t number) const {
  for (const Step& step : steps_) {
    if (step.number != number || step.used == 0) continue;
    GS_ASSIGN_OR_RETURN(const bool done, Done(step));
    if (!done) break;
    GS_ASSIGN_OR_RETURN(const absl::Duration time, Sum(step));
    return absl::make_optional(time);
  }
  return absl::optional<absl::Duration>();
}

absl::StatusOr<bool> StreamTimer::Done(const Step& step) const {
  // The stream's order makes the last event stand for all.
  return step.used == 0 ? true : gpu_->Done(step.waits[step.used - 1].end.get());
}

absl::StatusOr<absl::Duration> StreamTimer::Sum(const Step& step) const {
  absl::Duration sum;
  for (size_t i = 0; i < step.used; ++i) {
    GS_ASSIGN_OR_RETURN(const absl::Duration wait,
                        gpu_->Elapsed(step.waits[i].begin.get(), step.waits[i].end.get()));
    sum += wait;
  }
  return sum;
}

}  // namespace gradsync
