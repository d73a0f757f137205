// Where the autograd graph of a stage begins.

#ifndef GRADSYNC_CORE_PIPELINE_STAGE_INLET_H_
#define GRADSYNC_CORE_PIPELINE_STAGE_INLET_H_

#include <memory>

#include "ATen/core/Tensor.h"

namespace gradsync {

// Takes what backward through a stage has to say of its input.
//
// The input as a leaf that requires a gradient would do almost the same, but for two things: a
// stage that begins with an operation in place fails on a leaf, and a leaf's gradient is laid out
// as the leaf, which the gradient inside an uncut model need not be.
//
// Not thread-safe.
class StageInlet {
 public:
  // `received`, a floating-point tensor of which nobody else needs the values.
  explicit StageInlet(const at::Tensor& received);

  // To compute with: shares the memory of `received`, and may be changed in place.
  const at::Tensor& input() const { return input_; }

  // After backward; undefined where the stage's output does not depend on its input. The same bits
  // and strides as in the uncut model.
  at::Tensor gradient() const { return *gradient_; }

 private:
  const std::shared_ptr<at::Tensor> gradient_ = std::make_shared<at::Tensor>();
  at::Tensor input_;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PIPELINE_STAGE_INLET_H_
