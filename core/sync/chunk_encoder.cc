#include "core/sync/chunk_encoder.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "core/base/kernels.h"

namespace gradsync {
namespace {

absl::Span<const char> BytesOf(const float* values, int64_t n) {
  return {reinterpret_cast<const char*>(values), static_cast<size_t>(n) * sizeof(float)};
}

}  // namespace

ChunkEncoder::ChunkEncoder(const Plan& plan) : plan_(plan), buckets_(plan.buckets().size()) {
  if (!plan_.codec().compresses()) return;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    const StripeLayout& layout = plan_.buckets()[b].layout;
    Bucket& bucket = buckets_[b];
    int64_t bytes = 0;
    for (int slot = 0; slot < layout.slots(); ++slot) {
      bucket.begin.push_back(bytes);
      bytes += GradientForm(plan_.codec(), layout.range(slot).size()).bytes();
    }
    bucket.payloads.resize(bytes);
    if (!plan_.codec().sparse()) continue;
    bucket.residual.resize(plan_.buckets()[b].numel, 0.0f);
    bucket.residual_scale.resize(layout.slots(), 1.0);
  }
}

absl::Span<const char> ChunkEncoder::EncodeGradient(ChunkId id, const float* grad,
                                                    double inverse_loss_scale) {
  const ElementRange range = Range(id);
  if (!plan_.codec().compresses()) return BytesOf(grad, range.size());
  const ChunkForm form = GradientForm(plan_.codec(), range.size());
  char* const to = PlaceOf(id);
  const absl::Span<const char> payload(to, static_cast<size_t>(form.bytes()));
  if (!plan_.codec().sparse()) {
    EncodeChunk(form, grad, to,
                inverse_loss_scale == 1 ? Overflow::kSaturates : Overflow::kInfinite);
    return payload;
  }
  Bucket& bucket = buckets_[id.bucket];
  float* const residual = bucket.residual.data() + range.begin;
  double& scale = bucket.residual_scale[id.slot];
  if (scale != inverse_loss_scale) {
    Scale(residual, range.size(), static_cast<float>(scale / inverse_loss_scale));
    scale = inverse_loss_scale;
  }
  Add(residual, grad, range.size());
  EncodeChunk(form, residual, to);
  ForgetEncoded(form, to, residual);
  return payload;
}

absl::Span<const char> ChunkEncoder::EncodeReturned(ChunkId id, const float* values,
                                                    Returned returned) {
  const ElementRange range = Range(id);
  const ChunkForm form = ReturnedForm(plan_.codec(), range.size(), plan_.world_size(), returned);
  if (form.kind == ChunkForm::Kind::kFp32) return BytesOf(values, range.size());
  char* const to = PlaceOf(id);
  EncodeChunk(form, values, to);
  return {to, static_cast<size_t>(form.bytes())};
}

RankState ChunkEncoder::Residuals() const {
  RankState state;
  for (size_t b = 0; plan_.codec().sparse() && b < buckets_.size(); ++b) {
    std::vector<float> values = buckets_[b].residual;
    const StripeLayout& layout = plan_.buckets()[b].layout;
    for (int slot = 0; slot < layout.slots(); ++slot) {
      const ElementRange range = layout.range(slot);
      const double scale = buckets_[b].residual_scale[slot];
      if (scale != 1) {
        Scale(values.data() + range.begin, range.size(), static_cast<float>(scale));
      }
    }
    for (const PlacedTensor& placed : plan_.buckets()[b].tensors) {
      const TensorSpec& tensor = plan_.tensors()[placed.tensor];
      const auto begin = values.begin() + placed.offset;
      state.residuals[tensor.name].assign(begin, begin + tensor.numel());
    }
  }
  return state;
}

void ChunkEncoder::SetResiduals(const RankState& state) {
  Reset();
  for (size_t b = 0; b < buckets_.size(); ++b) {
    std::vector<double>& scales = buckets_[b].residual_scale;
    std::fill(scales.begin(), scales.end(), 1.0);
    for (const PlacedTensor& placed : plan_.buckets()[b].tensors) {
      const auto found = state.residuals.find(plan_.tensors()[placed.tensor].name);
      if (found == state.residuals.end()) continue;
      std::copy(found->second.begin(), found->second.end(),
                buckets_[b].residual.begin() + placed.offset);
    }
  }
}

void ChunkEncoder::Reset() {
  for (Bucket& bucket : buckets_) std::fill(bucket.residual.begin(), bucket.residual.end(), 0.0f);
}

}  // namespace gradsync
