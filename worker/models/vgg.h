// VGG-16 as torchvision has it, with and without batch normalisation.
//
// Source: Simonyan, Zisserman: "Very Deep Convolutional Networks for Large-Scale Image
// Recognition", 2014 (configuration D).
#ifndef GRADSYNC_WORKER_MODELS_VGG_H_
#define GRADSYNC_WORKER_MODELS_VGG_H_

#include <cstdint>
#include <memory>

#include "worker/models/model.h"

namespace gradsync {

struct VggOptions {
  bool batch_norm = false;
  int64_t classes = 10;  // At least 1.
  double dropout = 0.5;  // between the classifier's layers
  // The initial weights are those of Python's
  // `torch.manual_seed(seed); torchvision.models.vgg16(num_classes=classes)`.
  uint64_t seed = 0;
};

// Parameters and buffers have torchvision's names, order, shapes and initial values. With 10
// classes 134,301,514 parameters, or 134,309,962 with batch normalisation; 89 % of them belong to
// the classifier's first two layers. Input float [B, 3, H, W] of at least 32x32. Blocks: the five
// groups of convolutions, each with its pooling, and the classifier. Takes some seconds. No global
// state is read or changed.
std::shared_ptr<Model> MakeVgg(const VggOptions& options);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_MODELS_VGG_H_
