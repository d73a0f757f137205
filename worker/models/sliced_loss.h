// The loss and the score of a language model whose logits are cut into slices.
#ifndef GRADSYNC_WORKER_MODELS_SLICED_LOSS_H_
#define GRADSYNC_WORKER_MODELS_SLICED_LOSS_H_

#include "ATen/core/Tensor.h"
#include "worker/models/slice_exchange.h"

namespace gradsync {

struct SlicedLoss {
  at::Tensor loss;     // as CrossEntropy() (worker/models/loss.h), with a graph
  at::Tensor correct;  // as CorrectPredictions(), without
};

// CrossEntropy() and CorrectPredictions() of the whole logits [..., K], of which each slice passes
// its part `logits` [..., K/n], fp32, along the last dimension, and all pass the same `labels` [...]
// in [0, K). All slices get the same bits. Nobody has the whole logits: slices exchange, for each
// label, their largest logit and where it is, then two numbers (three with `label_smoothing`) that
// are added up; backward exchanges nothing. Throws c10::Error when an exchange fails.
SlicedLoss SlicedCrossEntropy(const at::Tensor& logits, const at::Tensor& labels,
                              double label_smoothing, SliceExchange& exchange);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_MODELS_SLICED_LOSS_H_
