#include "worker/train/step_graph.h"

#include <algorithm>
#include <cstdint>
#include <exception>

#include "ATen/ops/empty_like.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

bool Alike(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides() && a.scalar_type() == b.scalar_type();
}

absl::Status Thrown(const StepOptions& step, const std::exception& e) {
  return absl::InternalError(absl::StrCat("step ", step.step, ": LibTorch: ", e.what()));
}

}  // namespace

absl::StatusOr<BatchFigures> StepGraph::Run(const StepOptions& step, const Batch& batch) {
  const int64_t samples = batch.images.size(0);
  most_samples_ = std::max(most_samples_, samples);
  if (!enabled_ || steps_ < kStepsBefore) return RunAsItIs(step, batch);
  // The last one of an epoch may be short, and is followed by many that are not.
  if (!have_ && samples < most_samples_) return RunAsItIs(step, batch);
  try {
    if (!have_) GS_RETURN_IF_ERROR(CaptureFor(batch));
    if (!Fits(batch)) return RunAsItIs(step, batch);
    inputs_.images.copy_(batch.images, /*non_blocking=*/true);
    inputs_.labels.copy_(batch.labels, /*non_blocking=*/true);
  } catch (const std::exception& e) {
    return Thrown(step, e);
  }
  GS_RETURN_IF_ERROR(ddp_->ReplayStep(step));
  return figures_;
}

absl::StatusOr<BatchFigures> StepGraph::RunAsItIs(const StepOptions& step, const Batch& batch) {
  GS_RETURN_IF_ERROR(ddp_->BeginStep(step));
  ++steps_;
  try {
    return forward_backward_(batch);
  } catch (const std::exception& e) {
    return Thrown(step, e);
  }
}

absl::Status StepGraph::CaptureFor(const Batch& batch) {
  inputs_.images = at::empty_like(batch.images);
  inputs_.labels = at::empty_like(batch.labels);
  const absl::Status captured = ddp_->Capture([&]() -> absl::Status {
    try {
      figures_ = forward_backward_(inputs_);
    } catch (const std::exception& e) {
      return absl::InternalError(absl::StrCat("LibTorch: ", e.what()));
    }
    return absl::OkStatus();
  });
  have_ = captured.ok();
  if (have_) return captured;
  return absl::Status(
      captured.code(),
      absl::StrCat("the step cannot be captured as a CUDA graph (--cuda_graph=false "
                   "goes without): ",
                   captured.message()));
}

bool StepGraph::Fits(const Batch& batch) const {
  return Alike(batch.images, inputs_.images) && Alike(batch.labels, inputs_.labels);
}

}  // namespace gradsync
