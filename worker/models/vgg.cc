#include "worker/models/vgg.h"

#include <string>
#include <utility>
#include <vector>

#include "ATen/ops/adaptive_avg_pool2d.h"
#include "ATen/ops/flatten.h"
#include "ATen/ops/max_pool2d.h"
#include "ATen/ops/relu.h"
#include "worker/models/dropout.h"
#include "worker/models/layers.h"

namespace gradsync {
namespace {

using Module = torch::nn::Module;

// Widths of the convolutions, group by group; a pooling follows each group.
const std::vector<std::vector<int64_t>>& Groups() {
  static const auto* const groups = new std::vector<std::vector<int64_t>>{
      {64, 64}, {128, 128}, {256, 256, 256}, {512, 512, 512}, {512, 512, 512}};
  return *groups;
}

constexpr int64_t kPooled = 7;  // height and width of the classifier's input
constexpr int64_t kHidden = 4096;

struct Layer {
  std::shared_ptr<Conv2d> conv;
  std::shared_ptr<BatchNorm2d> norm;  // null without
};

at::Tensor RunGroup(const std::vector<Layer>& layers, at::Tensor x) {
  for (const Layer& layer : layers) {
    x = layer.conv->forward(x);
    if (layer.norm == nullptr) {
      x = x.relu_();
    } else if (layer.norm->Fuses(x)) {
      x = layer.norm->Fused(x, {}, /*relu=*/true);
    } else {
      x = layer.norm->forward(x).relu_();
    }
  }
  return at::max_pool2d(x, /*kernel_size=*/2, /*stride=*/2);
}

class Vgg : public Model {
 public:
  Vgg(const VggOptions& options, at::Generator generator) {
    const auto features = register_module("features", std::make_shared<Module>());
    ConvOptions conv;
    conv.in = 3;
    conv.kernel = 3;
    conv.padding = 1;
    conv.bias = true;
    int place = 0;  // in torchvision's list of layers, which names ours
    for (size_t g = 0; g < Groups().size(); ++g) {
      ModelBlock block;
      block.name = "group" + std::to_string(g + 1);
      block.recompute = true;
      const auto add = [&](auto module) {
        const std::string name = std::to_string(place++);
        block.members.push_back("features." + name);
        return features->register_module(name, std::move(module));
      };
      std::vector<Layer> layers;
      for (int64_t width : Groups()[g]) {
        conv.out = width;
        Layer layer;
        layer.conv = add(std::make_shared<Conv2d>(conv, generator));
        if (options.batch_norm) layer.norm = add(std::make_shared<BatchNorm2d>(width));
        ++place;  // ReLU
        conv.in = width;
        layers.push_back(std::move(layer));
      }
      ++place;  // pooling
      block.forward = [layers = std::move(layers)](const at::Tensor& x) {
        return RunGroup(layers, x);
      };
      AddBlock(std::move(block));
    }
    MakeClassifier(conv.in, options, generator);
    AddBlock({"classifier", {"classifier"}, [this](const at::Tensor& x) { return Classify(x); }});
    for (const auto& module : modules(/*include_self=*/false)) {
      if (auto* layer = module->as<Conv2d>()) layer->InitKaimingNormal(generator);
      if (auto* layer = module->as<Linear>()) layer->InitNormal(0.01, generator);
    }
  }

 private:
  void MakeClassifier(int64_t channels, const VggOptions& options, at::Generator& generator) {
    const auto classifier = register_module("classifier", std::make_shared<Module>());
    int64_t in = channels * kPooled * kPooled;
    for (int i = 0; i < 3; ++i) {
      const int64_t out = i < 2 ? kHidden : options.classes;
      linear_.push_back(classifier->register_module(std::to_string(3 * i),
                                                    std::make_shared<Linear>(in, out, generator)));
      in = out;
      if (i == 2) break;
      dropout_.push_back(classifier->register_module(
          std::to_string(3 * i + 2), std::make_shared<Dropout>(options.dropout, random())));
    }
  }

  at::Tensor Classify(const at::Tensor& features) const {
    at::Tensor x = at::flatten(at::adaptive_avg_pool2d(features, {kPooled, kPooled}), 1);
    for (size_t i = 0; i < dropout_.size(); ++i) {
      x = dropout_[i]->forward(linear_[i]->forward(x).relu_());
    }
    return linear_.back()->forward(x);
  }

  std::vector<std::shared_ptr<Linear>> linear_;
  std::vector<std::shared_ptr<Dropout>> dropout_;
};

}  // namespace

std::shared_ptr<Model> MakeVgg(const VggOptions& options) {
  return std::make_shared<Vgg>(options, MakeGenerator(options.seed));
}

}  // namespace gradsync
