#include "gradsync/ddp/step_exchange.h"

#include <cmath>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "core/base/activity.h"
#include "core/base/monotonic_time.h"
#include "core/base/status_macros.h"
#include "core/base/trace_recorder.h"
#include "core/gpu/gpu_api.h"
#include "core/sync/gradient_sync.h"
#include "gradsync/ddp/device_worker_optimizer.h"

namespace gradsync {

absl::StatusOr<std::unique_ptr<StepExchange>> StepExchange::Create(
    const Plan& plan, const DdpEngineOptions& options, const std::vector<GradBucket>& buckets,
    const FlatParameters& parameters, GradientSync* sync) {
  auto exchange = absl::WrapUnique(new StepExchange(plan, options, parameters, sync));
  GS_RETURN_IF_ERROR(exchange->MakeOptimizer(buckets));
  return exchange;
}

absl::Status StepExchange::MakeOptimizer(const std::vector<GradBucket>& buckets) {
  const std::shared_ptr<GpuApi> gpu = sync_->gpu();
  const bool at_worker = sync_->update_site() == UpdateSite::kWorker && options_.updates;
  if (gpu == nullptr) {
    if (at_worker) optimizer_ = CreateWorkerOptimizer(plan_, MemoryOf(buckets));
    return absl::OkStatus();
  }
  GS_ASSIGN_OR_RETURN(stream_timer_, StreamTimer::Create(gpu, buckets.size()));
  if (!at_worker) return absl::OkStatus();
  GS_ASSIGN_OR_RETURN(optimizer_, CreateDeviceWorkerOptimizer(plan_, MemoryOf(buckets), gpu));
  return absl::OkStatus();
}

absl::Status StepExchange::Check(const StepOptions& step) const {
  if (step.step <= step_.step) {
    return absl::InvalidArgumentError(
        absl::StrCat("step: expected a number above ", step_.step, ", found ", step.step));
  }
  if (!std::isfinite(step.lr) || !(step.max_norm >= 0) || !std::isfinite(step.inverse_loss_scale)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "step ", step.step,
        ": expected finite lr and inverse_loss_scale and max_norm of at least 0, found ", step.lr,
        ", ", step.inverse_loss_scale, ", ", step.max_norm));
  }
  return CheckClipping(step);
}

absl::Status StepExchange::CheckClipping(const StepOptions& step) const {
  if (plan_.slots().gradients == 0 || step.max_norm == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "step ", step.step, ": max_norm: expected 0 where buckets share their gradients' memory, ",
      "because a norm needs all gradients at once, found ", step.max_norm));
}

void StepExchange::Begin(const StepOptions& step) {
  step_ = step;
  room_wait_ = absl::ZeroDuration();
  handles_.clear();
}

StallNotice StepExchange::StallOf(int bucket) const {
  StallNotice stall;
  if (options_.on_stall == nullptr) return stall;
  stall.after = options_.stall_after;
  stall.say = [this, bucket](absl::Duration waited) {
    options_.on_stall(step_.step, bucket, waited);
  };
  return stall;
}

// Of the bucket that had the memory before nothing is needed once it has resolved.
absl::Status StepExchange::MakeRoom(int bucket) {
  const Activity::Wait wait(options_.activity);
  const int before = bucket - plan_.slots().gradients;
  const RecordedSpan span(options_.recorder.get(), TraceSpan::kExposed, step_.step, before);
  const MonotonicTime start = MonotonicTime::Now();
  GS_RETURN_IF_ERROR(handles_[before].Wait(Deadline::In(options_.timeout), StallOf(before)));
  room_wait_ += MonotonicTime::Now() - start;
  return absl::OkStatus();
}

void StepExchange::Launch(int bucket) {
  // From here on the owner may write the parameters, while backward goes on.
  if (sync_->update_site() == UpdateSite::kOwner) parameters_.BumpVersions(bucket);
  { const RecordedSpan ready(options_.recorder.get(), TraceSpan::kReady, step_.step, bucket); }
  handles_.push_back(sync_->Launch(step_, bucket));
}

void StepExchange::EndBackward() {
  timing_ = StepTiming();
  timing_.exposed = timing_.in_backward = room_wait_;
}

absl::Status StepExchange::Complete(Deadline deadline) {
  // The norm needs all means first; without it, a bucket's update runs while later buckets are
  // still on their way.
  const bool needs_norm =
      optimizer_ != nullptr && (step_.max_norm > 0 || options_.skip_nonfinite_steps);
  if (stream_timer_ != nullptr) GS_RETURN_IF_ERROR(stream_timer_->BeginStep(step_.step));
  for (size_t b = 0; b < handles_.size(); ++b) {
    GS_RETURN_IF_ERROR(WaitForBucket(static_cast<int>(b), deadline));
    if (optimizer_ != nullptr && !needs_norm) GS_RETURN_IF_ERROR(UpdateBucket(static_cast<int>(b)));
  }
  if (stream_timer_ != nullptr) {
    GS_ASSIGN_OR_RETURN(const StreamTimer::StandStill newest, stream_timer_->Newest());
    timing_.exposed = newest.time;
    timing_.exposed_step = newest.step;
  } else {
    timing_.exposed_step = step_.step;
  }
  return needs_norm ? UpdateByNorm() : absl::OkStatus();
}

absl::Status StepExchange::WaitForBucket(int bucket, Deadline deadline) {
  if (stream_timer_ != nullptr) GS_RETURN_IF_ERROR(stream_timer_->BeforeWait());
  const RecordedSpan span(options_.recorder.get(), TraceSpan::kExposed, step_.step, bucket);
  const MonotonicTime start = MonotonicTime::Now();
  GS_RETURN_IF_ERROR(handles_[bucket].Wait(deadline, StallOf(bucket)));
  timing_.exposed += MonotonicTime::Now() - start;
  return stream_timer_ != nullptr ? stream_timer_->AfterWait() : absl::OkStatus();
}

absl::Status StepExchange::UpdateBucket(int bucket) {
  const RecordedSpan span(options_.recorder.get(), TraceSpan::kUpdate, step_.step, bucket);
  const MonotonicTime start = MonotonicTime::Now();
  StepOptions step = step_;
  step.step -= skipped_steps_;
  GS_RETURN_IF_ERROR(optimizer_->Update(step, bucket));
  parameters_.BumpVersions(bucket);
  timing_.update += MonotonicTime::Now() - start;
  return absl::OkStatus();
}

absl::Status StepExchange::UpdateByNorm() {
  GS_RETURN_IF_ERROR(ApplyNorm());
  for (size_t b = 0; !skipped_ && b < handles_.size(); ++b) {
    GS_RETURN_IF_ERROR(UpdateBucket(static_cast<int>(b)));
  }
  return absl::OkStatus();
}

// Of all means: what a step that clips, or may be skipped, needs before its updates.
absl::Status StepExchange::ApplyNorm() {
  const RecordedSpan span(options_.recorder.get(), TraceSpan::kUpdate, step_.step);
  const MonotonicTime start = MonotonicTime::Now();
  if (options_.skip_nonfinite_steps) {
    GS_ASSIGN_OR_RETURN(const double norm, optimizer_->GradientNorm());
    skipped_ = !std::isfinite(norm);
    skipped_steps_ += skipped_;
  }
  if (skipped_) return absl::OkStatus();
  if (step_.max_norm > 0) GS_RETURN_IF_ERROR(optimizer_->ClipGradients(step_.max_norm));
  timing_.update += MonotonicTime::Now() - start;
  return absl::OkStatus();
}

absl::StatusOr<absl::optional<absl::Duration>> StepExchange::Exposed(int64_t step) const {
  if (stream_timer_ != nullptr) return stream_timer_->Of(step);
  if (step != timing_.exposed_step) return absl::optional<absl::Duration>();
  return absl::make_optional(timing_.exposed);
}

absl::StatusOr<OptimizerState> StepExchange::ExportState(Deadline deadline) {
  if (optimizer_ != nullptr) return optimizer_->Export(step_.step - skipped_steps_);
  return sync_->ExportOptimizerState(deadline);
}

absl::Status StepExchange::ImportState(const OptimizerState& state, Deadline deadline,
                                       int64_t skipped_steps) {
  GS_RETURN_IF_ERROR(optimizer_ != nullptr ? optimizer_->Import(state)
                                           : sync_->ImportOptimizerState(state, deadline));
  step_.step = state.step + skipped_steps;
  skipped_steps_ = skipped_steps;
  return absl::OkStatus();
}

}  // namespace gradsync
