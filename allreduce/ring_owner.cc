#include "allreduce/ring_owner.h"

#include <utility>

#include "allreduce/ring_tokens.h"
#include "core/base/kernels.h"
#include "core/optim/optimizer_state.h"
#include "core/plan/codec.h"

namespace gradsync {
namespace {

std::vector<ElementRange> RangesOf(const Plan& plan, int bucket, int rank) {
  const StripeLayout& layout = plan.buckets()[bucket].layout;
  std::vector<ElementRange> ranges;
  for (int slot = rank; slot < layout.slots(); slot += plan.world_size()) {
    if (!layout.range(slot).empty()) ranges.push_back(layout.range(slot));
  }
  return ranges;
}

}  // namespace

RingOwner::RingOwner(const Plan& plan, int rank, UpdateSite update_site,
                     std::vector<BucketMemory> memory)
    : plan_(plan),
      memory_(std::move(memory)),
      chunks_(OwnedChunks(plan, rank)),
      first_(plan.buckets().size(), 0),
      squares_(chunks_.size(), 0.0) {
  for (size_t i = chunks_.size(); i-- > 0;) {
    first_[chunks_[i].bucket] = static_cast<int64_t>(i) - chunks_[i].slot / plan.world_size();
  }
  if (update_site == UpdateSite::kWorker) return;
  for (ChunkId id : chunks_) {
    optimizers_.emplace_back(plan.optimizer(), range(id), plan.GroupRanges(id.bucket, range(id)));
  }
}

void RingOwner::CompleteMean(ChunkId id, const StepOptions& step, const Payload* last) {
  const ElementRange chunk = range(id);
  float* const mean = memory_[id.bucket].grad + chunk.begin;
  const float inverse_n = 1.0f / static_cast<float>(plan_.world_size());
  const float inverse_loss_scale = static_cast<float>(step.inverse_loss_scale);
  if (last == nullptr) {
    ScaleTwice(mean, chunk.size(), inverse_n, inverse_loss_scale);
  } else {
    AddPayloadAndScale(*last, GradientForm(plan_.codec(), chunk.size()), mean, inverse_n,
                       inverse_loss_scale);
  }
  RoundMean(plan_.codec(), mean, chunk.size());
}

void RingOwner::MeasureSquares(ChunkId id) {
  const ElementRange chunk = range(id);
  squares_[IndexOf(id)] = SumOfSquares(memory_[id.bucket].grad + chunk.begin, chunk.size());
}

void RingOwner::ScaleMean(ChunkId id, float scale) {
  const ElementRange chunk = range(id);
  Scale(memory_[id.bucket].grad + chunk.begin, chunk.size(), scale);
}

void RingOwner::Update(ChunkId id, const StepOptions& step) {
  Update(id, step, memory_[id.bucket].param + range(id).begin);
}

void RingOwner::Update(ChunkId id, const StepOptions& step, float* param) {
  UpdateAt(IndexOf(id), param, memory_[id.bucket].grad + range(id).begin, step);
}

void RingOwner::UpdateAt(size_t index, float* param, const float* mean, const StepOptions& step) {
  optimizers_[index].Apply(param, mean, step.lr, step.step);
}

StateBytes RingOwner::ExportBucket(int bucket) const {
  StateBytes bytes;
  for (size_t i = 0; i < chunks_.size(); ++i) {
    if (chunks_[i].bucket != bucket) continue;
    const RangeOptimizer& optimizer = optimizers_[i];
    bytes.BeginRange(optimizer.has_state());
    if (!optimizer.has_state()) continue;
    for (size_t slot = 0; slot < optimizer.slot_names().size(); ++slot) {
      bytes.AppendSlot(optimizer.slot(static_cast<int>(slot)).data(), range(chunks_[i]).size());
    }
  }
  return bytes;
}

absl::StatusOr<OptimizerState> RingOwner::Export(int64_t steps, SideChannel& side_channel,
                                                 Deadline deadline) const {
  return CollectState(plan_,
                      {[this](int bucket) { return ExportBucket(bucket); },
                       [this](int bucket, int rank) { return RangesOf(plan_, bucket, rank); }},
                      steps, side_channel, deadline);
}

void RingOwner::Import(const OptimizerState& state) {
  for (size_t i = 0; i < chunks_.size(); ++i) {
    RangeOptimizer& optimizer = optimizers_[i];
    optimizer.ClearState();
    if (!HasState(plan_, chunks_[i].bucket, range(chunks_[i]), state)) continue;
    for (size_t slot = 0; slot < optimizer.slot_names().size(); ++slot) {
      GatherSlot(plan_, chunks_[i].bucket, range(chunks_[i]), optimizer.slot_names()[slot], state,
                 optimizer.mutable_slot(static_cast<int>(slot)).data());
    }
  }
}

}  // namespace gradsync
