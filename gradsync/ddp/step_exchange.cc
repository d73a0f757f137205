#include "gradsync/ddp/step_exchange.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "ATen/Parallel.h"
#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "core/base/activity.h"
#include "core/base/kernels.h"
#include "core/base/monotonic_time.h"
#include "core/base/status_macros.h"
#include "core/base/trace_recorder.h"
#include "core/gpu/gpu_api.h"
#include "core/optim/optimizer_state.h"
#include "core/optim/range_optimizer.h"
#include "core/sync/gradient_sync.h"
#include "gradsync/ddp/device_worker_optimizer.h"

namespace gradsync {
namespace {

// 1 MiB of parameters: large against the cost of handing a piece to a thread, small against a
// bucket.
constexpr int64_t kPieceElements = int64_t{1} << 18;

class HostWorkerOptimizer : public WorkerOptimizer {
 public:
  HostWorkerOptimizer(const Plan& plan, std::vector<BucketMemory> memory);
  absl::StatusOr<double> GradientNorm() override;
  absl::Status ClipGradients(double max_norm) override;
  double grad_norm() const override { return grad_norm_; }
  absl::Status Update(const StepOptions& step, int bucket) override;
  absl::StatusOr<OptimizerState> Export(int64_t step) const override;
  absl::Status Import(const OptimizerState& state) override;

 private:
  // A part of a bucket that one thread updates.
  struct Piece {
    ElementRange range;
    RangeOptimizer optimizer;
  };

  const Plan plan_;
  const std::vector<BucketMemory> memory_;
  const std::vector<std::string> slot_names_;
  std::vector<std::vector<Piece>> pieces_;  // by bucket
  double grad_norm_ = 0;
};

HostWorkerOptimizer::HostWorkerOptimizer(const Plan& plan, std::vector<BucketMemory> memory)
    : plan_(plan), memory_(std::move(memory)), slot_names_(SlotNames(plan.optimizer())) {
  for (size_t b = 0; b < plan_.buckets().size(); ++b) {
    std::vector<Piece>& pieces = pieces_.emplace_back();
    const int64_t numel = plan_.buckets()[b].numel;
    for (int64_t begin = 0; begin < numel; begin += kPieceElements) {
      const ElementRange range = {begin, std::min(begin + kPieceElements, numel)};
      pieces.push_back({range, RangeOptimizer(plan_.optimizer(), range,
                                              plan_.GroupRanges(static_cast<int>(b), range))});
    }
  }
}

absl::StatusOr<double> HostWorkerOptimizer::GradientNorm() {
  double sum = 0;
  for (size_t b = 0; b < memory_.size(); ++b) {
    const StripeLayout& layout = plan_.buckets()[b].layout;
    const float* grad = memory_[b].grad;
    std::vector<double> squares(layout.slots());
    at::parallel_for(0, layout.slots(), /*grain_size=*/4, [&](int64_t begin, int64_t end) {
      for (int64_t slot = begin; slot < end; ++slot) {
        const ElementRange range = layout.range(static_cast<int>(slot));
        squares[slot] = SumOfSquares(grad + range.begin, range.size());
      }
    });
    for (double square : squares) sum += square;
  }
  grad_norm_ = std::sqrt(sum);
  return grad_norm_;
}

absl::Status HostWorkerOptimizer::ClipGradients(double max_norm) {
  GS_ASSIGN_OR_RETURN(const double norm, GradientNorm());
  const double scale = max_norm / (norm + 1e-6);
  if (scale < 1) {
    for (const BucketMemory& bucket : memory_) {
      at::parallel_for(0, bucket.numel, kPieceElements, [&](int64_t begin, int64_t end) {
        Scale(bucket.grad + begin, end - begin, static_cast<float>(scale));
      });
    }
  }
  return absl::OkStatus();
}

absl::Status HostWorkerOptimizer::Update(const StepOptions& step, int bucket) {
  std::vector<Piece>& pieces = pieces_[bucket];
  const BucketMemory& memory = memory_[bucket];
  at::parallel_for(0, pieces.size(), /*grain_size=*/1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t offset = pieces[i].range.begin;
      pieces[i].optimizer.Apply(memory.param + offset, memory.grad + offset, step.lr, step.step);
    }
  });
  return absl::OkStatus();
}

absl::StatusOr<OptimizerState> HostWorkerOptimizer::Export(int64_t step) const {
  OptimizerState state;
  state.step = step;
  for (size_t b = 0; b < pieces_.size(); ++b) {
    for (const Piece& piece : pieces_[b]) {
      if (!piece.optimizer.has_state()) continue;
      for (size_t s = 0; s < slot_names_.size(); ++s) {
        ScatterSlot(plan_, static_cast<int>(b), piece.range, slot_names_[s],
                    piece.optimizer.slot(static_cast<int>(s)).data(), &state);
      }
    }
  }
  return state;
}

absl::Status HostWorkerOptimizer::Import(const OptimizerState& state) {
  GS_RETURN_IF_ERROR(CheckState(plan_, state));
  for (size_t b = 0; b < pieces_.size(); ++b) {
    for (Piece& piece : pieces_[b]) {
      piece.optimizer.ClearState();
      if (state.slots.empty()) continue;
      for (size_t s = 0; s < slot_names_.size(); ++s) {
        GatherSlot(plan_, static_cast<int>(b), piece.range, slot_names_[s], state,
                   piece.optimizer.mutable_slot(static_cast<int>(s)).data());
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<WorkerOptimizer> CreateWorkerOptimizer(const Plan& plan,
                                                       std::vector<BucketMemory> memory) {
  return std::make_unique<HostWorkerOptimizer>(plan, std::move(memory));
}

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
    if (options_.after_exchange != nullptr) {
      GS_RETURN_IF_ERROR(options_.after_exchange(static_cast<int>(b)));
    }
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
