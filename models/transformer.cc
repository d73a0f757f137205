#include "models/transformer.h"

#include <cmath>
#include <limits>
#include <utility>

#include "ATen/ops/add.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/gelu.h"
#include "ATen/ops/linear.h"
#include "ATen/ops/masked_fill.h"
#include "ATen/ops/matmul.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/softmax.h"
#include "ATen/ops/triu.h"
#include "ATen/ops/zeros.h"
#include "c10/core/GradMode.h"

namespace gradsync {
namespace {

constexpr double kGptDeviation = 0.02;
constexpr double kVitBiasDeviation = 1e-6;

// Layers add up on the residual, so what each adds starts smaller the more there are.
double ResidualDeviation(const TransformerOptions& options) {
  return kGptDeviation / std::sqrt(2.0 * static_cast<double>(options.residual_layers));
}

}  // namespace

SelfAttention::SelfAttention(const TransformerOptions& options, std::shared_ptr<StepRandom> random,
                             at::Generator& generator)
    : heads_(options.heads), causal_(options.causal) {
  in_weight_ = register_parameter("in_proj_weight", at::empty({3 * options.width, options.width}));
  in_bias_ = register_parameter("in_proj_bias", at::zeros({3 * options.width}));
  out_ = register_module("out_proj",
                         std::make_shared<Linear>(options.width, options.width, generator));
  dropout_ =
      register_module("dropout", std::make_shared<Dropout>(options.dropout, std::move(random)));
  c10::NoGradGuard no_grad;
  if (options.gpt_weights) {
    in_weight_.normal_(0, kGptDeviation, generator);
    out_->InitNormal(ResidualDeviation(options), generator);
  } else {
    DrawXavier(in_weight_, generator);
    out_->InitBiasZero();
  }
}

at::Tensor SelfAttention::forward(const at::Tensor& x) const {
  const int64_t batch = x.size(0), length = x.size(1), width = x.size(2);
  const int64_t head_width = width / heads_;
  const at::Tensor all = at::linear(x, in_weight_, in_bias_)
                             .view({batch, length, 3, heads_, head_width})
                             .permute({2, 0, 3, 1, 4});
  const at::Tensor query = all.select(0, 0).div(std::sqrt(static_cast<double>(head_width)));
  const at::Tensor key = all.select(0, 1), value = all.select(0, 2);
  at::Tensor scores = at::matmul(query, key.transpose(-2, -1));  // [B, heads, T, T]
  if (causal_) {
    const at::Tensor later = at::ones({length, length}, x.options().dtype(at::kBool)).triu(1);
    scores = at::masked_fill(scores, later, -std::numeric_limits<double>::infinity());
  }
  const at::Tensor weights = dropout_->forward(at::softmax(scores, -1));
  const at::Tensor mixed = at::matmul(weights, value).transpose(1, 2);
  return out_->forward(mixed.reshape({batch, length, width}));
}

TransformerLayer::TransformerLayer(const TransformerOptions& options,
                                   const std::shared_ptr<StepRandom>& random,
                                   at::Generator& generator)
    : tanh_gelu_(options.tanh_gelu) {
  norm1_ = register_module("ln_1", std::make_shared<LayerNorm>(options.width, options.eps));
  attention_ = register_module("self_attention",
                               std::make_shared<SelfAttention>(options, random, generator));
  dropout1_ = register_module("dropout", std::make_shared<Dropout>(options.dropout, random));
  norm2_ = register_module("ln_2", std::make_shared<LayerNorm>(options.width, options.eps));
  const auto mlp = register_module("mlp", std::make_shared<torch::nn::Module>());
  wide_ = mlp->register_module(
      "0", std::make_shared<Linear>(options.width, options.mlp_width, generator));
  narrow_ = mlp->register_module(
      "3", std::make_shared<Linear>(options.mlp_width, options.width, generator));
  dropout2_ = mlp->register_module("4", std::make_shared<Dropout>(options.dropout, random));
  if (options.gpt_weights) {
    wide_->InitNormal(kGptDeviation, generator);
    narrow_->InitNormal(ResidualDeviation(options), generator);
  } else {
    wide_->InitXavier(kVitBiasDeviation, generator);
    narrow_->InitXavier(kVitBiasDeviation, generator);
  }
}

at::Tensor TransformerLayer::forward(const at::Tensor& x) const {
  const at::Tensor y = at::add(dropout1_->forward(attention_->forward(norm1_->forward(x))), x);
  const at::Tensor wide =
      at::gelu(wide_->forward(norm2_->forward(y)), tanh_gelu_ ? "tanh" : "none");
  return at::add(y, dropout2_->forward(narrow_->forward(wide)));
}

}  // namespace gradsync
