#include "worker/models/resnet.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ops/adaptive_avg_pool2d.h"
#include "ATen/ops/constant_pad_nd.h"
#include "ATen/ops/conv2d.h"
#include "ATen/ops/flatten.h"
#include "ATen/ops/max_pool2d.h"
#include "ATen/ops/relu.h"
#include "ATen/ops/zeros.h"
#include "c10/core/GradMode.h"
#include "worker/models/image_kernels.h"
#include "worker/models/layers.h"

namespace gradsync {
namespace {

using Module = torch::nn::Module;

std::shared_ptr<Conv2d> MakeConv(int64_t in, int64_t out, int64_t kernel, int64_t stride,
                                 at::Generator& generator, int64_t groups = 1) {
  ConvOptions options;
  options.in = in;
  options.out = out;
  options.kernel = kernel;
  options.stride = stride;
  options.padding = kernel / 2;
  options.groups = groups;
  return std::make_shared<Conv2d>(options, generator);
}

// A convolution and its normalisation, registered in `owner` under two names.
struct ConvNorm {
  ConvNorm(Module& owner, const std::string& conv_name, const std::string& norm_name,
           std::shared_ptr<Conv2d> conv_layer, int64_t out)
      : conv(owner.register_module(conv_name, std::move(conv_layer))),
        norm(owner.register_module(norm_name, std::make_shared<BatchNorm2d>(out))) {}

  at::Tensor operator()(const at::Tensor& x) const { return norm->forward(conv->forward(x)); }

  at::Tensor Rectified(const at::Tensor& x) const { return Rectify(conv->forward(x)); }

  at::Tensor Rectify(const at::Tensor& y) const {
    return norm->Fuses(y) ? norm->Fused(y, {}, /*relu=*/true) : norm->forward(y).relu_();
  }

  std::shared_ptr<Conv2d> conv;
  std::shared_ptr<BatchNorm2d> norm;
};

// The 1x1 convolution on a block's shortcut where its shape changes.
class Downsample : public Module {
 public:
  Downsample(int64_t in, int64_t out, int64_t stride, at::Generator& generator)
      : layers_(*this, "0", "1", MakeConv(in, out, 1, stride, generator), out) {}

  at::Tensor forward(const at::Tensor& x) const { return layers_(x); }

 private:
  const ConvNorm layers_;
};

struct BlockOptions {
  ResNetArchitecture architecture;
  int64_t in = 0;
  int64_t planes = 0;
  int64_t stride = 1;

  // Of a bottleneck's 3x3 convolution.
  int64_t width() const { return planes * architecture.width_per_group / 64 * architecture.groups; }
  int64_t out() const { return architecture.bottleneck ? 4 * planes : planes; }
};

// Both kinds of block: two 3x3 convolutions, or 1x1, 3x3 and 1x1.
class Block : public Module {
 public:
  Block(const BlockOptions& o, at::Generator& generator) {
    // Made first and registered last, as torchvision does: the first fixes which random numbers it
    // gets, the second the order of the parameters.
    std::shared_ptr<Downsample> downsample;
    if (o.stride != 1 || o.in != o.out()) {
      downsample = std::make_shared<Downsample>(o.in, o.out(), o.stride, generator);
    }
    if (o.architecture.bottleneck) {
      const int64_t width = o.width();
      Add(MakeConv(o.in, width, 1, 1, generator), width);
      Add(MakeConv(width, width, 3, o.stride, generator, o.architecture.groups), width);
      Add(MakeConv(width, o.out(), 1, 1, generator), o.out());
    } else {
      Add(MakeConv(o.in, o.planes, 3, o.stride, generator), o.planes);
      Add(MakeConv(o.planes, o.planes, 3, 1, generator), o.planes);
    }
    if (downsample != nullptr) downsample_ = register_module("downsample", downsample);
  }

  at::Tensor forward(const at::Tensor& input) const {
    const auto [x, x_of_shortcut] = FusedNorm::Fork(input);
    at::Tensor y = layers_[0].Rectified(x);
    for (size_t i = 1; i + 1 < layers_.size(); ++i) y = layers_[i].Rectified(y);
    const ConvNorm& last = layers_.back();
    y = last.conv->forward(y);
    if (last.norm->Fuses(y)) return last.norm->Fused(y, Shortcut(x_of_shortcut), /*relu=*/true);
    y = last.norm->forward(y);
    y.add_(Shortcut(x_of_shortcut));
    return y.relu_();
  }

 private:
  at::Tensor Shortcut(const at::Tensor& x) const {
    return downsample_ == nullptr ? x : downsample_->forward(x);
  }

  void Add(std::shared_ptr<Conv2d> conv, int64_t out) {
    const std::string number = std::to_string(layers_.size() + 1);
    layers_.emplace_back(*this, "conv" + number, "bn" + number, std::move(conv), out);
  }

  std::vector<ConvNorm> layers_;
  std::shared_ptr<Downsample> downsample_;
};

// Blocks named 0, 1, ...
class Stage : public Module {
 public:
  Stage(int blocks, BlockOptions options, at::Generator& generator) {
    for (int i = 0; i < blocks; ++i) {
      blocks_.push_back(
          register_module(std::to_string(i), std::make_shared<Block>(options, generator)));
      options.in = options.out();
      options.stride = 1;
    }
  }

  const std::vector<std::shared_ptr<Block>>& blocks() const { return blocks_; }

 private:
  std::vector<std::shared_ptr<Block>> blocks_;
};

class ResNet : public Model {
 public:
  ResNet(const ResNetOptions& options, at::Generator generator)
      : pool_(options.stem == ResNetStem::kImageNet),
        stem_(*this, "conv1", "bn1",
              pool_ ? MakeConv(3, 64, 7, 2, generator) : MakeConv(3, 64, 3, 1, generator), 64) {
    AddBlock({"stem", {"conv1", "bn1"}, [this](const at::Tensor& x) { return Stem(x); }});
    BlockOptions block{options.architecture, /*in=*/64, /*planes=*/64, /*stride=*/1};
    for (size_t i = 0; i < options.architecture.blocks.size(); ++i) {
      AddStage("layer" + std::to_string(i + 1), options.architecture.blocks[i], block, generator);
      block.in = block.out();
      block.planes *= 2;
      block.stride = 2;
    }
    fc_ = register_module("fc", std::make_shared<Linear>(block.in, options.classes, generator));
    AddBlock({"fc", {"fc"}, [this](const at::Tensor& x) { return Classify(x); }});
    for (const auto& module : modules(/*include_self=*/false)) {
      if (auto* conv = module->as<Conv2d>()) conv->InitKaimingNormal(generator);
    }
  }

 private:
  void AddStage(const std::string& name, int blocks, const BlockOptions& options,
                at::Generator& generator) {
    const auto stage = register_module(name, std::make_shared<Stage>(blocks, options, generator));
    for (size_t i = 0; i < stage->blocks().size(); ++i) {
      const std::string block_name = name + "." + std::to_string(i);
      AddBlock({block_name,
                {block_name},
                [block = stage->blocks()[i]](const at::Tensor& x) { return block->forward(x); },
                /*recompute=*/true});
    }
  }

  at::Tensor Stem(const at::Tensor& images) const {
    if (!stem_.norm->MayFuse(images)) {
      const at::Tensor y = stem_.Rectified(images);
      return pool_ ? at::max_pool2d(y, /*kernel_size=*/3, /*stride=*/2, /*padding=*/1) : y;
    }
    const at::Tensor& weight = stem_.conv->weight();
    const at::Tensor y =
        stem_.Rectify(TakesPairedPixels(images, weight) ? ConvolvePairedPixels(images, weight)
                                                        : stem_.conv->forward(images));
    return pool_ ? MaxPool(y) : y;
  }

  at::Tensor Classify(const at::Tensor& x) const {
    return fc_->forward(at::flatten(at::adaptive_avg_pool2d(x, {1, 1}), 1));
  }

  const bool pool_;
  const ConvNorm stem_;
  std::shared_ptr<Linear> fc_;
};

constexpr auto kFormat = at::MemoryFormat::ChannelsLast;
constexpr int64_t kColours = 3;
constexpr int64_t kKernel = 7;
constexpr int64_t kBlock = 2;                      // pixels of a block, each way
constexpr int64_t kChannels = 16;                  // of a block: its values, and zeros
constexpr int64_t kTaps = (kKernel + 1) / kBlock;  // blocks of the kernel, each way
constexpr int64_t kBefore = 2;                     // blocks of border: (3 + 1) / 2 pixels
constexpr int64_t kBorder = kTaps - 1;             // of both sides together

// [n, 16, h / 2 + 3, w / 2 + 3]: channel (i * 2 + j) * 3 + c is colour c of pixel (i, j) of a block.
at::Tensor Blocks(const at::Tensor& x) {
  const c10::NoGradGuard no_grad;
  const int64_t n = x.size(0), rows = x.size(2) / kBlock, columns = x.size(3) / kBlock;
  const at::Tensor blocks =
      at::zeros({n, kChannels, rows + kBorder, columns + kBorder}, x.options()).contiguous(kFormat);
  blocks.narrow(2, kBefore, rows)
      .narrow(3, kBefore, columns)
      .narrow(1, 0, kBlock * kBlock * kColours)
      .permute({0, 2, 3, 1})
      .unflatten(3, {kBlock, kBlock, kColours})  // n, row, column, i, j, c
      .copy_(x.unflatten(2, {rows, kBlock})
                 .unflatten(4, {columns, kBlock})  // n, c, row, i, column, j
                 .permute({0, 2, 4, 3, 5, 1}));
  return blocks;
}

// [out, 16, 4, 4] of [out, 3, 7, 7]: a row and a column of zeros before the first, then in blocks.
at::Tensor BlocksOfWeight(const at::Tensor& weight) {
  const at::Tensor blocks = at::constant_pad_nd(weight, {1, 0, 1, 0})
                                .unflatten(2, {kTaps, kBlock})
                                .unflatten(4, {kTaps, kBlock})  // out, c, a, i, b, j
                                .permute({0, 2, 4, 3, 5, 1})    // out, a, b, i, j, c
                                .flatten(3);
  return at::constant_pad_nd(blocks, {0, kChannels - kBlock * kBlock * kColours})
      .permute({0, 3, 1, 2});
}

}  // namespace

std::shared_ptr<Model> MakeResNet(const ResNetOptions& options) {
  return std::make_shared<ResNet>(options, MakeGenerator(options.seed));
}

bool TakesPairedPixels(const at::Tensor& x, const at::Tensor& weight) {
  return x.dim() == 4 && !x.requires_grad() && x.size(1) == kColours && x.size(2) % kBlock == 0 &&
         x.size(3) % kBlock == 0 && weight.dim() == 4 && weight.size(1) == kColours &&
         weight.size(2) == kKernel && weight.size(3) == kKernel;
}

at::Tensor ConvolvePairedPixels(const at::Tensor& x, const at::Tensor& weight) {
  return at::conv2d(Blocks(x), BlocksOfWeight(weight));
}

}  // namespace gradsync
