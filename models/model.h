// What the trainer needs of a model. Start at CreateModel (models/create_model.h).
#ifndef GRADSYNC_MODELS_MODEL_H_
#define GRADSYNC_MODELS_MODEL_H_

#include "ATen/core/Tensor.h"
#include "torch/nn/module.h"

namespace gradsync {

// An image classifier: a torch module with one input and one output, so named_parameters(),
// named_buffers(), train() and eval() are torch's. Not thread-safe: one step at a time.
class Model : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;

  // `images` float [B, C, H, W], normalised; returns logits float [B, classes]. `images` is not
  // modified. LibTorch throws c10::Error on a shape or type that does not fit.
  virtual at::Tensor forward(at::Tensor images) = 0;
};

}  // namespace gradsync

#endif  // GRADSYNC_MODELS_MODEL_H_
