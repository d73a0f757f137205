#include "allreduce/ring_owner.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "allreduce/payload_floats.h"
#include "allreduce/ring_frames.h"
#include "base/kernels.h"
#include "optim/state_mapping.h"
#include "plan/codec.h"

namespace gradsync {
namespace {

constexpr char kNoState = 0;
constexpr char kHasState = 1;

}  // namespace

RingOwner::RingOwner(const Plan& plan, int rank, UpdateSite update_site,
                     std::vector<BucketMemory> memory)
    : plan_(plan),
      memory_(std::move(memory)),
      chunks_(OwnedChunks(plan, rank)),
      first_(plan.buckets().size(), 0),
      squares_(chunks_.size(), 0.0) {
  for (size_t i = chunks_.size(); i-- > 0;) first_[chunks_[i].bucket] = i;
  if (update_site == UpdateSite::kWorker) return;
  for (SegmentId id : chunks_) {
    optimizers_.emplace_back(plan.optimizer(), range(id), plan.GroupRanges(id.bucket, range(id)));
  }
}

void RingOwner::CompleteMean(SegmentId id, const StepOptions& step, const Payload* last) {
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

void RingOwner::MeasureSquares(SegmentId id) {
  const ElementRange chunk = range(id);
  squares_[IndexOf(id)] = SumOfSquares(memory_[id.bucket].grad + chunk.begin, chunk.size());
}

void RingOwner::ScaleMean(SegmentId id, float scale) {
  const ElementRange chunk = range(id);
  Scale(memory_[id.bucket].grad + chunk.begin, chunk.size(), scale);
}

void RingOwner::Update(SegmentId id, const StepOptions& step) {
  const BucketMemory& bucket = memory_[id.bucket];
  const int64_t begin = range(id).begin;
  optimizers_[IndexOf(id)].Apply(bucket.param + begin, bucket.grad + begin, step.lr, step.step);
}

std::string RingOwner::ExportBucket(int bucket) const {
  std::string bytes;
  for (size_t i = 0; i < chunks_.size(); ++i) {
    if (chunks_[i].bucket != bucket) continue;
    const RangeOptimizer& optimizer = optimizers_[i];
    bytes.push_back(optimizer.has_state() ? kHasState : kNoState);
    if (!optimizer.has_state()) continue;
    for (size_t slot = 0; slot < optimizer.slot_names().size(); ++slot) {
      const absl::Span<const float> values = optimizer.slot(static_cast<int>(slot));
      bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    }
  }
  return bytes;
}

absl::Status RingOwner::Collect(int bucket, int rank, absl::string_view exported,
                                OptimizerState* state) const {
  const auto lost = [&](absl::string_view what) {
    return absl::DataLossError(
        absl::StrCat("optimizer state of bucket ", bucket, " from rank ", rank, ": ", what));
  };
  const StripeLayout& layout = plan_.buckets()[bucket].layout;
  std::vector<float> values;
  for (int slot = rank; slot < layout.slots(); slot += plan_.world_size()) {
    const ElementRange chunk = layout.range(slot);
    if (chunk.empty()) continue;
    if (exported.empty()) return lost("ends early");
    const bool has_state = exported.front() == kHasState;
    exported.remove_prefix(1);
    if (!has_state) continue;
    values.resize(chunk.size());
    const size_t bytes = values.size() * sizeof(float);
    for (const std::string& name : SlotNames(plan_.optimizer())) {
      if (exported.size() < bytes) return lost("ends early");
      std::memcpy(values.data(), exported.data(), bytes);
      exported.remove_prefix(bytes);
      ScatterSlot(plan_, bucket, chunk, name, values.data(), state);
    }
  }
  if (!exported.empty()) return lost(absl::StrCat(exported.size(), " bytes too many"));
  return absl::OkStatus();
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
