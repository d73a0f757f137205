#include "worker/models/transformer.h"

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ops/add.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/embedding.h"
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
#include "c10/util/Exception.h"
#include "worker/models/dropout.h"
#include "worker/models/layers.h"
#include "worker/models/slices.h"

namespace gradsync {
namespace {

constexpr double kGptDeviation = 0.02;
constexpr double kVitBiasDeviation = 1e-6;

// Layers add up on the residual, so what each adds starts smaller the more there are.
double ResidualDeviation(const TransformerOptions& options) {
  return kGptDeviation / std::sqrt(2.0 * static_cast<double>(options.residual_layers));
}

using Module = torch::nn::Module;

class Gpt : public Model, public SliceableModel {
 public:
  Gpt(const GptOptions& options, at::Generator generator) : context_(options.context) {
    tokens_ = register_module(
        "tokens",
        std::make_shared<Embedding>(options.vocabulary, options.width, kGptDeviation, generator));
    positions_ = register_module(
        "positions",
        std::make_shared<Embedding>(options.context, options.width, kGptDeviation, generator));
    dropout_ = register_module("dropout", std::make_shared<Dropout>(options.dropout, random()));
    AddBlock(
        {"embedding", {"tokens", "positions"}, [this](const at::Tensor& x) { return Embed(x); }});
    AddLayers(options, generator);
    norm_ = register_module("ln", std::make_shared<LayerNorm>(options.width, /*eps=*/1e-5));
    const auto head = register_module("head", std::make_shared<Module>());
    head_ = head->register_parameter(
        "weight",
        at::empty({options.vocabulary, options.width}).normal_(0, kGptDeviation, generator));
    AddBlock({"head", {"ln", "head"}, [this](const at::Tensor& x) {
                return at::linear(EnterSlices(NormaliseSlice(*norm_, x, slice_), slice_), head_);
              }});
  }

  std::map<std::string, int64_t> SlicedParameters() const override {
    std::map<std::string, int64_t> sliced = {{"tokens.weight", 1}, {"head.weight", 1}};
    for (size_t i = 0; i < layers_.size(); ++i) {
      for (const auto& [name, groups] : TransformerLayer::SlicedParameters(layer_)) {
        sliced["layers." + std::to_string(i) + "." + name] = groups;
      }
    }
    return sliced;
  }

  void BecomeSlice(const SliceOf& of) override {
    slice_ = of;
    for (const auto& layer : layers_) layer->BecomeSlice(of);
  }

 private:
  void AddLayers(const GptOptions& options, at::Generator& generator) {
    TransformerOptions& layer = layer_;
    layer.width = options.width;
    layer.heads = options.heads;
    layer.mlp_width = 4 * options.width;
    layer.causal = true;
    layer.tanh_gelu = true;
    layer.dropout = layer.attention_dropout = options.dropout;
    layer.gpt_weights = true;
    layer.residual_layers = options.layers;
    const auto layers = register_module("layers", std::make_shared<Module>());
    for (int64_t i = 0; i < options.layers; ++i) {
      const std::string name = std::to_string(i);
      const auto module = layers->register_module(
          name, std::make_shared<TransformerLayer>(layer, random(), generator));
      layers_.push_back(module);
      AddBlock({"layers." + name,
                {"layers." + name},
                [module](const at::Tensor& x) { return module->forward(x); },
                /*recompute=*/true});
    }
  }

  at::Tensor Embed(const at::Tensor& tokens) const {
    TORCH_CHECK(tokens.dim() == 2 && tokens.size(1) <= context_,
                "expected tokens [batch, at most the context of ", context_, "], found shape ",
                tokens.sizes());
    const at::Tensor of_places =
        at::embedding(SharedBySlices(positions_->weight(), slice_), Places(tokens));
    const at::Tensor of_tokens = EmbeddingOfSlices(tokens_->weight(), tokens, slice_);
    return DropSlice(*dropout_, at::add(of_tokens, of_places), slice_);
  }

  // Of the tokens of this slice's part of the sequence.
  at::Tensor Places(const at::Tensor& tokens) const {
    const at::Tensor all = at::arange(tokens.size(1), tokens.options());
    if (!slice_.has_part_of_sequence()) return all;
    const int64_t length = tokens.size(1) / slice_.exchange->slices();
    return all.narrow(0, length * slice_.exchange->slice(), length);
  }

  const int64_t context_;
  std::shared_ptr<Embedding> tokens_, positions_;
  std::shared_ptr<Dropout> dropout_;
  std::shared_ptr<LayerNorm> norm_;
  at::Tensor head_;
  TransformerOptions layer_;
  std::vector<std::shared_ptr<TransformerLayer>> layers_;
  SliceOf slice_;
};

class Vit : public Model {
 public:
  Vit(const VitOptions& options, at::Generator generator) {
    ConvOptions conv;
    conv.in = 3;
    conv.out = options.width;
    conv.kernel = conv.stride = options.patch;
    conv.bias = true;
    class_token_ = register_parameter("class_token", at::zeros({1, 1, options.width}));
    patches_ = register_module("conv_proj", std::make_shared<Conv2d>(conv, generator));
    const auto encoder = register_module("encoder", std::make_shared<Module>());
    const int64_t side = options.image_size / options.patch;
    positions_ = encoder->register_parameter(
        "pos_embedding",
        at::empty({1, side * side + 1, options.width}).normal_(0, 0.02, generator));
    dropout_ =
        encoder->register_module("dropout", std::make_shared<Dropout>(options.dropout, random()));
    AddBlock({"embedding",
              {"class_token", "conv_proj", "encoder.pos_embedding", "encoder.dropout"},
              [this](const at::Tensor& x) { return Embed(x); }});
    AddLayers(options, *encoder, generator);
    norm_ = encoder->register_module("ln", std::make_shared<LayerNorm>(options.width, kEps));
    const auto heads = register_module("heads", std::make_shared<Module>());
    head_ = heads->register_module(
        "head", std::make_shared<Linear>(options.width, options.classes, generator));
    AddBlock({"head", {"encoder.ln", "heads"}, [this](const at::Tensor& x) {
                return head_->forward(norm_->forward(x).select(1, 0));
              }});
    patches_->InitTruncatedNormal(generator);
    head_->InitZero();
  }

 private:
  static constexpr double kEps = 1e-6;

  void AddLayers(const VitOptions& options, Module& encoder, at::Generator& generator) {
    TransformerOptions layer;
    layer.width = options.width;
    layer.heads = options.heads;
    layer.mlp_width = 4 * options.width;
    layer.eps = kEps;
    layer.dropout = layer.mlp_dropout = options.dropout;
    const auto layers = encoder.register_module("layers", std::make_shared<Module>());
    for (int64_t i = 0; i < options.layers; ++i) {
      const std::string name = "encoder_layer_" + std::to_string(i);
      const auto module = layers->register_module(
          name, std::make_shared<TransformerLayer>(layer, random(), generator));
      const std::string path = "encoder.layers." + name;
      AddBlock({path,
                {path},
                [module](const at::Tensor& x) { return module->forward(x); },
                /*recompute=*/true});
    }
  }

  // A token for each patch, row by row, behind the class token.
  at::Tensor Embed(const at::Tensor& images) const {
    const at::Tensor patches = patches_->forward(images).flatten(2).permute({0, 2, 1});
    // As wide as the patches, which autocast may have made narrower.
    const at::Tensor first =
        class_token_.expand({images.size(0), -1, -1}).to(patches.scalar_type());
    return dropout_->forward(at::add(at::cat({first, patches}, 1), positions_));
  }

  at::Tensor class_token_, positions_;
  std::shared_ptr<Conv2d> patches_;
  std::shared_ptr<Dropout> dropout_;
  std::shared_ptr<LayerNorm> norm_;
  std::shared_ptr<Linear> head_;
};

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

std::shared_ptr<Model> MakeGpt(const GptOptions& options) {
  return std::make_shared<Gpt>(options, MakeGenerator(options.seed));
}

std::shared_ptr<Model> MakeVit(const VitOptions& options) {
  return std::make_shared<Vit>(options, MakeGenerator(options.seed));
}

}  // namespace gradsync
