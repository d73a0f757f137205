#include "ddp/stream_timer.h"

#include "base/status_macros.h"

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

void StreamTimer::BeginStep() {
  current_ ^= 1;
  steps_[current_].used = 0;
}

absl::Status StreamTimer::BeforeWait() {
  Step& step = steps_[current_];
  return gpu_->Record(step.waits[step.used].begin.get(), gpu_->ComputeStream());
}

absl::Status StreamTimer::AfterWait() {
  Step& step = steps_[current_];
  return gpu_->Record(step.waits[step.used++].end.get(), gpu_->ComputeStream());
}

absl::StatusOr<absl::Duration> StreamTimer::LastKnown() {
  for (const int index : {current_, current_ ^ 1}) {
    const Step& step = steps_[index];
    if (step.used == 0) continue;
    GS_ASSIGN_OR_RETURN(const bool done, gpu_->Done(step.waits[step.used - 1].end.get()));
    if (!done) continue;
    absl::Duration sum;
    for (size_t i = 0; i < step.used; ++i) {
      GS_ASSIGN_OR_RETURN(const absl::Duration wait,
                          gpu_->Elapsed(step.waits[i].begin.get(), step.waits[i].end.get()));
      sum += wait;
    }
    last_known_ = sum;
    break;
  }
  return last_known_;
}

}  // namespace gradsync
