// ResNets as torchvision has them: ResNet, ResNeXt and Wide ResNet.
//
// Parameters and buffers have torchvision's names, order, shapes and initial values, and the
// arithmetic is its own, operation by operation: with equal weights, input, threads and LibTorch,
// outputs and gradients are equal to the last bit (resnet_python_test). Those with bottlenecks are
// torchvision's v1.5, with the stride in the 3x3 convolution.
//
// Sources: He, Zhang, Ren, Sun: "Deep Residual Learning for Image Recognition", 2015; Xie,
// Girshick, Dollar, Tu, He: "Aggregated Residual Transformations for Deep Neural Networks", 2016;
// Zagoruyko, Komodakis: "Wide Residual Networks", 2016.

#ifndef GRADSYNC_WORKER_MODELS_RESNET_H_
#define GRADSYNC_WORKER_MODELS_RESNET_H_

#include <cstdint>
#include <memory>

#include "ATen/core/Tensor.h"
#include "worker/models/model.h"
#include "worker/models/model_options.h"

namespace gradsync {

enum class ResNetStem {
  kImageNet,  // 7x7 convolution of stride 2, then a 3x3 max-pool of stride 2: torchvision's.
  kCifar,     // 3x3 convolution of stride 1, no pooling: 16 times the pixels in every later layer.
};

struct ResNetOptions {
  ResNetArchitecture architecture;
  ResNetStem stem = ResNetStem::kImageNet;
  int64_t classes = 10;  // At least 1.
  // With stem kImageNet the initial weights are those of Python's
  // `torch.manual_seed(seed); torchvision.models.resnet18(num_classes=classes)`.
  uint64_t seed = 0;
};

// Draws from a generator of its own; no global state is read or changed. With 10 classes and stem
// kImageNet, 11,181,642 parameters (ResNet-18) or 23,528,522 (ResNet-50). Input float
// [B, 3, H, W]. Blocks: the stem, each residual block, and the classifier with its pooling.
std::shared_ptr<Model> MakeResNet(const ResNetOptions& options);

// The first convolution of a ResNet in a form that GPUs are fast at:
// at::conv2d(x, weight, {}, stride 2, padding 3) of weight [out, 3, 7, 7] and x [n, 3, h, w], h and
// w even: a convolution of 4x4 and stride 1 over blocks of 2x2 pixels whose 12 values are channels,
// and four more that are zero. Three channels fill a fifth of what tensor cores take at a time,
// sixteen half of it. The same products are added in another order.
//
// The idea is TensorFlow's and MLPerf's, as "space to depth" (Ying et al., Image Classification at
// Supercomputer Scale, 2018). Differentiable by weight, not by x. Throws what LibTorch throws.
at::Tensor ConvolvePairedPixels(const at::Tensor& x, const at::Tensor& weight);

// Whether it can take the place of that convolution: x has no gradient and sizes as above.
bool TakesPairedPixels(const at::Tensor& x, const at::Tensor& weight);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_MODELS_RESNET_H_
