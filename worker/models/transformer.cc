#include "worker/models/transformer.h"

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
#include "worker/models/slice_exchange.h"
#include "worker/models/slice_functions.h"

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
    : head_width_(options.width / options.heads), causal_(options.causal), heads_(options.heads) {
  in_weight_ = register_parameter("in_proj_weight", at::empty({3 * options.width, options.width}));
  in_bias_ = register_parameter("in_proj_bias", at::zeros({3 * options.width}));
  out_ = register_module("out_proj",
                         std::make_shared<Linear>(options.width, options.width, generator));
  dropout_ = register_module(
      "dropout", std::make_shared<Dropout>(options.attention_dropout, std::move(random)));
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
  const at::Tensor input = EnterSlices(x, slice_);
  const int64_t batch = input.size(0), length = input.size(1);
  const at::Tensor all = at::linear(input, in_weight_, in_bias_)
                             .view({batch, length, 3, heads_, head_width_})
                             .permute({2, 0, 3, 1, 4});
  const at::Tensor query = all.select(0, 0).div(std::sqrt(static_cast<double>(head_width_)));
  const at::Tensor key = all.select(0, 1), value = all.select(0, 2);
  at::Tensor scores = at::matmul(query, key.transpose(-2, -1));  // [B, heads, T, T]
  if (causal_) {
    const at::Tensor later = at::ones({length, length}, x.options().dtype(at::kBool)).triu(1);
    scores = at::masked_fill(scores, later, -std::numeric_limits<double>::infinity());
  }
  const at::Tensor shares = at::softmax(scores, -1);
  const at::Tensor weights =
      slice_.whole()
          ? dropout_->forward(shares)
          : dropout_->ForwardPart(shares, 1, slice_.exchange->slice(), slice_.exchange->slices());
  const at::Tensor mixed = at::matmul(weights, value).transpose(1, 2);
  return LinearOfSlices(mixed.reshape({batch, length, heads_ * head_width_}), out_->weight(),
                        out_->bias(), slice_);
}

void SelfAttention::BecomeSlice(const SliceOf& of) {
  slice_ = of;
  heads_ /= of.exchange->slices();
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
  if (options.mlp_dropout > 0) {
    wide_dropout_ =
        mlp->register_module("2", std::make_shared<Dropout>(options.mlp_dropout, random));
  }
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
  const at::Tensor mixed = attention_->forward(NormaliseSlice(*norm1_, x, slice_));
  const at::Tensor y = at::add(DropSlice(*dropout1_, mixed, slice_), x);
  const at::Tensor input = EnterSlices(NormaliseSlice(*norm2_, y, slice_), slice_);
  at::Tensor wide = at::gelu(wide_->forward(input), tanh_gelu_ ? "tanh" : "none");
  if (wide_dropout_ != nullptr) {
    wide = slice_.whole() ? wide_dropout_->forward(wide)
                          : wide_dropout_->ForwardPart(wide, 2, slice_.exchange->slice(),
                                                       slice_.exchange->slices());
  }
  const at::Tensor narrow = LinearOfSlices(wide, narrow_->weight(), narrow_->bias(), slice_);
  return at::add(y, DropSlice(*dropout2_, narrow, slice_));
}

std::map<std::string, int64_t> TransformerLayer::SlicedParameters(
    const TransformerOptions& options) {
  return {{"self_attention.in_proj_weight", 3},
          {"self_attention.in_proj_bias", 3},
          {"self_attention.out_proj.weight", options.width},
          {"mlp.0.weight", 1},
          {"mlp.0.bias", 1},
          {"mlp.3.weight", options.width}};
}

void TransformerLayer::BecomeSlice(const SliceOf& of) {
  slice_ = of;
  attention_->BecomeSlice(of);
}

}  // namespace gradsync
