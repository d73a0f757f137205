// A small module for tests, from narrow headers.

#ifndef GRADSYNC_GRADSYNC_DDP_TINY_MODULE_H_
#define GRADSYNC_GRADSYNC_DDP_TINY_MODULE_H_

#include <memory>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/ops/linear.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/randn.h"
#include "ATen/ops/relu.h"
#include "ATen/ops/zeros.h"
#include "core/plan/plan.h"
#include "core/sync/buckets.h"
#include "gradsync/ddp/flat_parameters.h"
#include "torch/nn/module.h"

namespace gradsync {

// Two linear layers with a scale between them, and a buffer that counts forwards. Inputs are
// [batch, 4], outputs [batch, 3]. Parameters, in order of registration: first_weight, first_bias,
// scale, last_weight; backward completes them in about the reverse order.
struct TinyModule : torch::nn::Module {
  // Small enough that training at a learning rate of 0.1 is stable, so that rounding stays
  // rounding.
  static constexpr double kSpread = 0.3;

  TinyModule() {
    first_weight = register_parameter("first_weight", kSpread * at::randn({8, 4}));
    first_bias = register_parameter("first_bias", kSpread * at::randn({8}));
    scale = register_parameter("scale", kSpread * at::randn({8}));
    last_weight = register_parameter("last_weight", kSpread * at::randn({3, 8}));
    forwards = register_buffer("forwards", at::zeros({1}));
  }

  at::Tensor Forward(const at::Tensor& x) {
    {
      c10::NoGradGuard no_grad;
      forwards.add_(1);
    }
    return at::linear(at::relu(at::linear(x, first_weight, first_bias)) * scale, last_weight);
  }

  // A scalar whose gradient is different for every parameter element.
  at::Tensor Loss(const at::Tensor& x) { return Forward(x).pow(2).mean(); }

  at::Tensor first_weight, first_bias, scale, last_weight, forwards;
};

// A plan for the module: SGD with `lr` from the step, one group.
inline absl::StatusOr<Plan> PlanFor(const torch::nn::Module& module,
                                    const std::vector<std::vector<int>>& buckets,
                                    OptimizerSpec optimizer = {OptimizerKind::kSgd, {{}}},
                                    int world_size = 1) {
  absl::StatusOr<std::vector<TensorSpec>> specs = TensorSpecsOf(module);
  if (!specs.ok()) return specs.status();
  return Plan::FromBuckets(*std::move(specs), buckets, std::move(optimizer), world_size,
                           /*chunk_bytes=*/0);
}

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_DDP_TINY_MODULE_H_
