#include "allreduce/device_owner.h"

#include <algorithm>

#include "core/base/status_macros.h"
#include "core/optim/optimizer_state.h"

namespace gradsync {
namespace {

size_t Bytes(ElementRange range) { return static_cast<size_t>(range.size()) * sizeof(float); }

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceOwner>> DeviceOwner::Create(std::shared_ptr<GpuApi> gpu,
                                                                 const Plan& plan, int rank,
                                                                 std::vector<Bucket> buckets) {
  std::unique_ptr<DeviceOwner> owner(new DeviceOwner(gpu, plan, std::move(buckets)));
  for (int b = 0; b < static_cast<int>(owner->buckets_.size()); ++b) {
    std::vector<Part>& parts = owner->parts_.emplace_back();
    for (const ElementRange range : owner->buckets_[b].ranges[rank]) {
      parts.push_back(
          {range, DeviceRangeOptimizer(gpu, plan.optimizer(), range, plan.GroupRanges(b, range))});
    }
  }
  GS_ASSIGN_OR_RETURN(owner->copied_, ScopedEvent::Create(gpu));
  return owner;
}

absl::Status DeviceOwner::Update(int bucket, const StepOptions& step, GpuStream stream) {
  const Bucket& memory = buckets_[bucket];
  for (Part& part : parts_[bucket]) {
    GS_RETURN_IF_ERROR(part.optimizer.Apply(memory.param + part.range.begin,
                                            memory.grad + part.range.begin, step.lr, step.step,
                                            stream));
  }
  return absl::OkStatus();
}

absl::Status DeviceOwner::Scale(int bucket, const float* factor, GpuStream stream) {
  for (const Part& part : parts_[bucket]) {
    GS_RETURN_IF_ERROR(gpu_->ScaleBy(buckets_[bucket].grad + part.range.begin,
                                     static_cast<size_t>(part.range.size()), factor, stream));
  }
  return absl::OkStatus();
}

absl::Status DeviceOwner::CopyAndWait(void* to, const void* from, size_t bytes, GpuStream stream) {
  GS_RETURN_IF_ERROR(gpu_->Copy(to, from, bytes, stream));
  GS_RETURN_IF_ERROR(gpu_->Record(copied_.get(), stream));
  return gpu_->Synchronize(copied_.get());
}

absl::StatusOr<std::shared_ptr<GpuMemory>> DeviceOwner::NewStage() const {
  size_t largest = 0;
  for (const std::vector<Part>& parts : parts_) {
    for (const Part& part : parts) largest = std::max(largest, Bytes(part.range));
  }
  return GpuMemory::Pinned(gpu_, largest);
}

absl::StatusOr<StateBytes> DeviceOwner::ExportBucket(int bucket, GpuStream stream) {
  StateBytes bytes;
  for (const Part& part : parts_[bucket]) {
    const DeviceRangeOptimizer& optimizer = part.optimizer;
    bytes.BeginRange(optimizer.has_state());
    if (!optimizer.has_state()) continue;
    for (size_t slot = 0; slot < optimizer.slot_names().size(); ++slot) {
      GS_RETURN_IF_ERROR(CopyAndWait(stage_->data(), optimizer.slot(static_cast<int>(slot)),
                                     Bytes(part.range), stream));
      bytes.AppendSlot(stage_->floats(), part.range.size());
    }
  }
  return bytes;
}

absl::StatusOr<OptimizerState> DeviceOwner::Export(int64_t steps, GpuStream stream,
                                                   SideChannel& side_channel, Deadline deadline) {
  GS_ASSIGN_OR_RETURN(stage_, NewStage());
  absl::StatusOr<OptimizerState> state =
      CollectState(plan_,
                   {[&](int bucket) { return ExportBucket(bucket, stream); },
                    [&](int bucket, int rank) { return buckets_[bucket].ranges[rank]; }},
                   steps, side_channel, deadline);
  stage_ = nullptr;
  return state;
}

absl::Status DeviceOwner::Import(const OptimizerState& state, GpuStream stream) {
  GS_ASSIGN_OR_RETURN(stage_, NewStage());
  for (int b = 0; b < static_cast<int>(parts_.size()); ++b) {
    for (Part& part : parts_[b]) {
      DeviceRangeOptimizer& optimizer = part.optimizer;
      optimizer.ClearState();
      if (!HasState(plan_, b, part.range, state)) continue;
      GS_RETURN_IF_ERROR(optimizer.EnsureState());
      for (size_t slot = 0; slot < optimizer.slot_names().size(); ++slot) {
        GatherSlot(plan_, b, part.range, optimizer.slot_names()[slot], state, stage_->floats());
        GS_RETURN_IF_ERROR(CopyAndWait(optimizer.slot(static_cast<int>(slot)), stage_->data(),
                                       Bytes(part.range), stream));
      }
    }
  }
  stage_ = nullptr;
  return absl::OkStatus();
}

}  // namespace gradsync
