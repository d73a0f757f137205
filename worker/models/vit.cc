#include "worker/models/vit.h"

#include <string>
#include <vector>

#include "ATen/ops/add.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/zeros.h"
#include "worker/models/dropout.h"
#include "worker/models/layers.h"
#include "worker/models/transformer.h"

namespace gradsync {
namespace {

using Module = torch::nn::Module;

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

std::shared_ptr<Model> MakeVit(const VitOptions& options) {
  return std::make_shared<Vit>(options, MakeGenerator(options.seed));
}

}  // namespace gradsync
