// For tests: one training step on weights, images and labels that come from a formula, so that C++
// and Python can compute the same step without exchanging files. The formula's other half is
// worker/models/testdata/make_resnet_reference.py.
#ifndef GRADSYNC_WORKER_MODELS_FORMULA_STEP_H_
#define GRADSYNC_WORKER_MODELS_FORMULA_STEP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/strings/string_view.h"
#include "worker/models/model.h"

namespace gradsync {

// 64 random bits of element `index` of the tensor `name`: SplitMix64's finaliser of the name's
// FNV-1a hash plus index times the golden ratio.
uint64_t FormulaBits(uint64_t name_hash, int64_t index);
uint64_t FormulaHash(absl::string_view name);

// A tensor that a step computed. `part` is output, gradient, updated or buffer; the names within a
// part are the model's (loss and logits for output).
struct NamedTensor {
  std::string part;
  std::string name;
  at::Tensor value;
};

// Overwrites the model's parameters by the formula, then runs forward, cross-entropy, backward and
// one step of SGD (learning rate 0.1, weight decay 1e-4) in `type` on `batch` images of
// size x size, or with `tokens` on as many sequences of `size` tokens below 10. Returns everything that the step computed: outputs, gradients, updated parameters
// and buffers, in the model's order.
std::vector<NamedTensor> FormulaStep(Model& model, int64_t batch, int64_t size, at::ScalarType type,
                                     bool tokens = false);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_MODELS_FORMULA_STEP_H_
