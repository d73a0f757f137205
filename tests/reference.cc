#include "tests/reference.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "core/base/kernels.h"
#include "core/optim/optimizer_state.h"
#include "core/optim/range_optimizer.h"

namespace gradsync {
namespace {

// SplitMix64 (Steele, Lea, Flood 2014): the state is the seed plus a counter, so any element can be
// had directly.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

FlatValues RandomValues(const Plan& plan, uint64_t seed) {
  FlatValues values;
  for (size_t b = 0; b < plan.buckets().size(); ++b) {
    std::vector<float>& flat = values.emplace_back(plan.buckets()[b].numel, 0.0f);
    for (const PlacedTensor& placed : plan.buckets()[b].tensors) {
      const int64_t numel = plan.tensors()[placed.tensor].numel();
      for (int64_t i = placed.offset; i < placed.offset + numel; ++i) {
        const uint64_t bits = Mix(seed * 1000003 + b * 7919 + static_cast<uint64_t>(i));
        // Different exponents, so that the order of additions shows in the bits.
        const float scale = static_cast<float>(1 << (bits % 8)) / 128.0f;
        flat[i] = scale * (static_cast<float>(bits >> 40) / static_cast<float>(1 << 23) - 1.0f);
      }
    }
  }
  return values;
}

FlatValues ReferenceMean(const Plan& plan, const std::vector<FlatValues>& per_rank,
                         double inverse_loss_scale) {
  const int n = plan.world_size();
  FlatValues mean;
  for (size_t b = 0; b < plan.buckets().size(); ++b) {
    const StripeLayout& layout = plan.buckets()[b].layout;
    std::vector<float>& flat = mean.emplace_back(plan.buckets()[b].numel, 0.0f);
    for (int slot = 0; slot < layout.slots(); ++slot) {
      const int chunk = layout.chunk_of(slot);
      const ElementRange range = layout.range(slot);
      for (int64_t i = range.begin; i < range.end; ++i) {
        volatile float sum = per_rank[FoldRank(chunk, 0, n)][b][i];
        for (int position = 1; position < n; ++position) {
          sum = sum + per_rank[FoldRank(chunk, position, n)][b][i];
        }
        volatile float scaled = sum * (1.0f / static_cast<float>(n));
        flat[i] = scaled * static_cast<float>(inverse_loss_scale);
      }
    }
  }
  return mean;
}

struct ReferenceOptimizer::Impl {
  std::vector<std::unique_ptr<RangeOptimizer>> buckets;
  int64_t steps = 0;
};

ReferenceOptimizer::ReferenceOptimizer(const Plan& plan)
    : plan_(plan), impl_(std::make_unique<Impl>()) {
  for (size_t b = 0; b < plan.buckets().size(); ++b) {
    const int64_t numel = plan.buckets()[b].numel;
    impl_->buckets.push_back(
        std::make_unique<RangeOptimizer>(plan.optimizer(), ElementRange{0, numel},
                                         plan.GroupRanges(static_cast<int>(b), {0, numel})));
  }
}

ReferenceOptimizer::~ReferenceOptimizer() = default;

void ReferenceOptimizer::Apply(const StepOptions& step, FlatValues mean, FlatValues* params) {
  if (step.max_norm > 0) {
    double squares = 0;
    for (size_t b = 0; b < plan_.buckets().size(); ++b) {
      const StripeLayout& layout = plan_.buckets()[b].layout;
      for (int slot = 0; slot < layout.slots(); ++slot) {
        const ElementRange range = layout.range(slot);
        squares += SumOfSquares(mean[b].data() + range.begin, range.size());
      }
    }
    const double scale = step.max_norm / (std::sqrt(squares) + 1e-6);
    if (scale < 1) {
      for (std::vector<float>& flat : mean) {
        for (float& x : flat) x = x * static_cast<float>(scale);
      }
    }
  }
  for (size_t b = 0; b < plan_.buckets().size(); ++b) {
    impl_->buckets[b]->Apply((*params)[b].data(), mean[b].data(), step.lr, step.step);
  }
  impl_->steps = step.step;
}

OptimizerState ReferenceOptimizer::Export() const {
  OptimizerState state;
  state.step = impl_->steps;
  const std::vector<std::string> names = SlotNames(plan_.optimizer());
  for (size_t b = 0; b < plan_.buckets().size(); ++b) {
    for (size_t s = 0; s < names.size(); ++s) {
      ScatterSlot(plan_, static_cast<int>(b), {0, plan_.buckets()[b].numel}, names[s],
                  impl_->buckets[b]->slot(static_cast<int>(s)).data(), &state);
    }
  }
  return state;
}

}  // namespace gradsync
