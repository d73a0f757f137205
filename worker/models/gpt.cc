#include "worker/models/gpt.h"

#include <map>
#include <string>
#include <vector>

#include "ATen/ops/add.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/embedding.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/linear.h"
#include "c10/util/Exception.h"
#include "worker/models/dropout.h"
#include "worker/models/layers.h"
#include "worker/models/slice_exchange.h"
#include "worker/models/slice_functions.h"
#include "worker/models/sliceable_model.h"
#include "worker/models/transformer.h"

namespace gradsync {
namespace {

using Module = torch::nn::Module;

constexpr double kDeviation = 0.02;

class Gpt : public Model, public SliceableModel {
 public:
  Gpt(const GptOptions& options, at::Generator generator) : context_(options.context) {
    tokens_ = register_module(
        "tokens",
        std::make_shared<Embedding>(options.vocabulary, options.width, kDeviation, generator));
    positions_ = register_module(
        "positions",
        std::make_shared<Embedding>(options.context, options.width, kDeviation, generator));
    dropout_ = register_module("dropout", std::make_shared<Dropout>(options.dropout, random()));
    AddBlock(
        {"embedding", {"tokens", "positions"}, [this](const at::Tensor& x) { return Embed(x); }});
    AddLayers(options, generator);
    norm_ = register_module("ln", std::make_shared<LayerNorm>(options.width, /*eps=*/1e-5));
    const auto head = register_module("head", std::make_shared<Module>());
    head_ = head->register_parameter(
        "weight", at::empty({options.vocabulary, options.width}).normal_(0, kDeviation, generator));
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

}  // namespace

std::shared_ptr<Model> MakeGpt(const GptOptions& options) {
  return std::make_shared<Gpt>(options, MakeGenerator(options.seed));
}

}  // namespace gradsync
