// A small multi-layer perceptron, for tests and for trying a topology in seconds.
#ifndef GRADSYNC_WORKER_MODELS_MLP_H_
#define GRADSYNC_WORKER_MODELS_MLP_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "worker/models/model.h"

namespace gradsync {

struct MlpOptions {
  int64_t inputs = 3 * 32 * 32;        // Values of one image; any shape with as many is accepted.
  std::vector<int64_t> hidden = {32};  // Widths of the hidden layers; none: a linear classifier.
  int64_t classes = 10;
  uint64_t seed = 0;
};

// Linear layers named fc1, fc2, ... (`fc1.weight`, `fc1.bias`) with ReLU between them, initialised
// as torch.nn.Linear; each with its ReLU is a block. No buffers. No global state is read or changed.
// The default has 98,666 parameters.
std::shared_ptr<Model> MakeMlp(const MlpOptions& options);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_MODELS_MLP_H_
