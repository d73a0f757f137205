#include "gradsync/ddp/device_worker_optimizer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "core/base/status_macros.h"
#include "core/gpu/device_range_optimizer.h"
#include "core/gpu/gpu_resources.h"
#include "core/optim/optimizer_state.h"

namespace gradsync {
namespace {

// What the GPU and a callback on the host pass to each other when gradients are clipped.
struct Clipping {
  std::shared_ptr<GpuMemory> chunks;  // SquaresPiece each, by bucket and slot; pinned
  std::shared_ptr<GpuMemory> sums;    // double each, likewise
  std::shared_ptr<GpuMemory> factor;  // one float; pinned
  size_t slots = 0;
  std::atomic<double> norm{0};

  double Fold() {
    const double* const squares = static_cast<const double*>(sums->data());
    double sum = 0;
    for (size_t slot = 0; slot < slots; ++slot) sum += squares[slot];
    const double found = std::sqrt(sum);
    norm.store(found);
    return found;
  }

  void FindFactor(double max_norm) {
    const double scale = max_norm / (Fold() + 1e-6);
    *factor->floats() = scale < 1 ? static_cast<float>(scale) : 1.0f;
  }
};

class DeviceWorkerOptimizer : public WorkerOptimizer {
 public:
  DeviceWorkerOptimizer(const Plan& plan, std::vector<BucketMemory> memory,
                        std::shared_ptr<GpuApi> gpu)
      : plan_(plan),
        memory_(std::move(memory)),
        gpu_(std::move(gpu)),
        slot_names_(SlotNames(plan.optimizer())),
        clipping_(std::make_shared<Clipping>()) {
    for (size_t b = 0; b < memory_.size(); ++b) {
      optimizers_.emplace_back(gpu_, plan_.optimizer(), Whole(b),
                               plan_.GroupRanges(static_cast<int>(b), Whole(b)));
    }
  }

  // A callback that is still queued would be the last to hold pinned memory, and give it back on a
  // thread of the driver, which may not wait for the device.
  ~DeviceWorkerOptimizer() override {
    if (copied_.get() != nullptr) CopyAndWait(nullptr, nullptr, 0).IgnoreError();
  }

  absl::Status Allocate() {
    size_t largest = 0;
    std::vector<SquaresPiece> chunks;
    for (size_t b = 0; b < memory_.size(); ++b) {
      const StripeLayout& layout = plan_.buckets()[b].layout;
      for (int slot = 0; slot < layout.slots(); ++slot) {
        const ElementRange range = layout.range(slot);
        chunks.push_back({memory_[b].grad + range.begin, range.size()});
      }
      largest = std::max(largest, static_cast<size_t>(memory_[b].numel));
    }
    clipping_->slots = chunks.size();
    GS_ASSIGN_OR_RETURN(clipping_->chunks,
                        GpuMemory::Pinned(gpu_, clipping_->slots * sizeof(SquaresPiece)));
    std::copy(chunks.begin(), chunks.end(), static_cast<SquaresPiece*>(clipping_->chunks->data()));
    GS_ASSIGN_OR_RETURN(clipping_->sums,
                        GpuMemory::Pinned(gpu_, clipping_->slots * sizeof(double)));
    GS_ASSIGN_OR_RETURN(clipping_->factor, GpuMemory::Pinned(gpu_, sizeof(float)));
    GS_ASSIGN_OR_RETURN(staging_, GpuMemory::Pinned(gpu_, largest * sizeof(float)));
    GS_ASSIGN_OR_RETURN(copied_, ScopedEvent::Create(gpu_));
    return absl::OkStatus();
  }

  absl::StatusOr<double> GradientNorm() override {
    GS_RETURN_IF_ERROR(QueueSums());
    GS_RETURN_IF_ERROR(CopyAndWait(nullptr, nullptr, 0));
    return clipping_->Fold();
  }

  absl::Status ClipGradients(double max_norm) override {
    GS_RETURN_IF_ERROR(QueueSums());
    const GpuStream stream = gpu_->ComputeStream();
    GS_RETURN_IF_ERROR(gpu_->RunOnHost(
        [clipping = clipping_, max_norm] { clipping->FindFactor(max_norm); }, stream));
    for (const BucketMemory& bucket : memory_) {
      GS_RETURN_IF_ERROR(gpu_->ScaleBy(bucket.grad, static_cast<size_t>(bucket.numel),
                                       clipping_->factor->floats(), stream));
    }
    return absl::OkStatus();
  }

  double grad_norm() const override { return clipping_->norm.load(); }

  absl::Status Update(const StepOptions& step, int bucket) override {
    const BucketMemory& memory = memory_[bucket];
    return optimizers_[bucket].Apply(memory.param, memory.grad, step.lr, step.step,
                                     gpu_->ComputeStream());
  }

  absl::StatusOr<OptimizerState> Export(int64_t step) const override {
    OptimizerState state;
    state.step = step;
    for (size_t b = 0; b < optimizers_.size(); ++b) {
      if (!optimizers_[b].has_state()) continue;
      for (size_t s = 0; s < slot_names_.size(); ++s) {
        GS_RETURN_IF_ERROR(CopyAndWait(staging_->data(), optimizers_[b].slot(static_cast<int>(s)),
                                       memory_[b].numel));
        ScatterSlot(plan_, static_cast<int>(b), Whole(b), slot_names_[s], staging_->floats(),
                    &state);
      }
    }
    return state;
  }

  absl::Status Import(const OptimizerState& state) override {
    GS_RETURN_IF_ERROR(CheckState(plan_, state));
    // What is queued may still use the state that goes.
    GS_RETURN_IF_ERROR(CopyAndWait(nullptr, nullptr, 0));
    for (size_t b = 0; b < optimizers_.size(); ++b) {
      optimizers_[b].ClearState();
      if (state.slots.empty()) continue;
      GS_RETURN_IF_ERROR(optimizers_[b].EnsureState());
      for (size_t s = 0; s < slot_names_.size(); ++s) {
        GatherSlot(plan_, static_cast<int>(b), Whole(b), slot_names_[s], state, staging_->floats());
        GS_RETURN_IF_ERROR(CopyAndWait(optimizers_[b].slot(static_cast<int>(s)), staging_->data(),
                                       memory_[b].numel));
      }
    }
    return absl::OkStatus();
  }

 private:
  ElementRange Whole(size_t bucket) const { return {0, memory_[bucket].numel}; }

  absl::Status QueueSums() {
    return gpu_->SumsOfSquares(static_cast<const SquaresPiece*>(clipping_->chunks->data()),
                               clipping_->slots, static_cast<double*>(clipping_->sums->data()),
                               gpu_->ComputeStream());
  }

  // Between the device and staging_, after what is queued; of 0 elements: only waits.
  absl::Status CopyAndWait(void* to, const void* from, int64_t numel) const {
    const GpuStream stream = gpu_->ComputeStream();
    if (numel > 0) {
      GS_RETURN_IF_ERROR(gpu_->Copy(to, from, static_cast<size_t>(numel) * sizeof(float), stream));
    }
    GS_RETURN_IF_ERROR(gpu_->Record(copied_.get(), stream));
    return gpu_->Synchronize(copied_.get());
  }

  const Plan plan_;
  const std::vector<BucketMemory> memory_;
  const std::shared_ptr<GpuApi> gpu_;
  const std::vector<std::string> slot_names_;
  std::vector<DeviceRangeOptimizer> optimizers_;  // by bucket
  const std::shared_ptr<Clipping> clipping_;      // the callback's, too
  std::shared_ptr<GpuMemory> staging_;            // a bucket of state; pinned
  ScopedEvent copied_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerOptimizer>> CreateDeviceWorkerOptimizer(
    const Plan& plan, std::vector<BucketMemory> memory, std::shared_ptr<GpuApi> gpu) {
  auto optimizer = std::make_unique<DeviceWorkerOptimizer>(plan, std::move(memory), std::move(gpu));
  GS_RETURN_IF_ERROR(optimizer->Allocate());
  return optimizer;
}

}  // namespace gradsync
