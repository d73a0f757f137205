// What the batches of a step were worth, counted on the device without waiting for it.

#ifndef GRADSYNC_WORKER_TRAIN_BATCH_FIGURES_H_
#define GRADSYNC_WORKER_TRAIN_BATCH_FIGURES_H_

#include <cstdint>

#include "ATen/TensorOperators.h"
#include "ATen/core/Tensor.h"

namespace gradsync {

// Tensors of one fp32 element on the model's device, without a graph.
struct BatchFigures {
  at::Tensor loss;     // mean over the batch
  at::Tensor correct;  // how many predictions were right
};

// Those of a step of several batches, each of which counts as its mean. Not thread-safe. Methods
// throw what LibTorch throws; nothing waits.
class FigureSum {
 public:
  void Add(const BatchFigures& figures) {
    sum_.loss = ++batches_ == 1 ? figures.loss : sum_.loss + figures.loss;
    sum_.correct = batches_ == 1 ? figures.correct : sum_.correct + figures.correct;
  }

  // Only after Add(). With one batch the figures are its own.
  BatchFigures OfStep() const {
    return {batches_ == 1 ? sum_.loss : sum_.loss / static_cast<double>(batches_), sum_.correct};
  }

 private:
  int64_t batches_ = 0;
  BatchFigures sum_;
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_BATCH_FIGURES_H_
