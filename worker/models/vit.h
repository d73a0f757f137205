// A small vision transformer, in the form of torchvision's VisionTransformer.
//
// Source: Dosovitskiy et al.: "An Image is Worth 16x16 Words", 2020; the small size: Steiner et
// al.: "How to train your ViT?", 2021.
#ifndef GRADSYNC_WORKER_MODELS_VIT_H_
#define GRADSYNC_WORKER_MODELS_VIT_H_

#include <cstdint>
#include <memory>

#include "worker/models/model.h"

namespace gradsync {

struct VitOptions {
  int64_t image_size = 32;  // Height and width, a multiple of `patch`.
  int64_t patch = 16;
  int64_t width = 384;
  int64_t layers = 12;
  int64_t heads = 6;
  int64_t classes = 10;
  // As torchvision's `dropout`: of the embedding, within the MLP, and of what is added to the
  // residual. Not of attention weights, which is its `attention_dropout`.
  double dropout = 0;
  // The initial weights are those of Python's `torch.manual_seed(seed); VisionTransformer(...)` of
  // torchvision with these sizes and mlp_dim = 4 width.
  uint64_t seed = 0;
};

// Parameters have the names, order, shapes and initial values of torchvision's class; the head
// starts at zero, as there. By default, with 10 classes and images of 32x32, 21,595,786 parameters.
// Input float [B, 3, image_size, image_size]. Blocks: the embedding, each layer, and the head with
// its normalisation. No global state is read or changed.
std::shared_ptr<Model> MakeVit(const VitOptions& options);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_MODELS_VIT_H_
