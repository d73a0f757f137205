// The loss and the score of an image classifier, and of a language model at all its positions; also
// where its logits are cut into slices.

#ifndef GRADSYNC_WORKER_MODELS_LOSS_H_
#define GRADSYNC_WORKER_MODELS_LOSS_H_

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "worker/models/slices.h"

namespace gradsync {

// Mean cross-entropy over the batch, as torch.nn.functional.cross_entropy: `logits` float [B, K],
// `labels` int64 [B] in [0, K); or [B, T, K] and [B, T]. `label_smoothing` in [0, 1] is the share
// of each target that is spread evenly over all K classes (Szegedy et al., "Rethinking the
// Inception Architecture", CVPR 2016). A scalar with a gradient. LibTorch throws on other shapes.
at::Tensor CrossEntropy(const at::Tensor& logits, const at::Tensor& labels,
                        double label_smoothing = 0);

// How many of the labels have the largest logit: top-1 accuracy is this over labels.numel(). A
// scalar of int64 on the logits' device, which is not waited for, without a graph.
at::Tensor CorrectPredictions(const at::Tensor& logits, const at::Tensor& labels);

// The number itself. Waits for the device.
int64_t CountCorrect(const at::Tensor& logits, const at::Tensor& labels);

struct SlicedLoss {
  at::Tensor loss;     // as CrossEntropy(), with a graph
  at::Tensor correct;  // as CorrectPredictions(), without
};

// CrossEntropy() and CorrectPredictions() of the whole logits [..., K], of which each slice passes
// its part `logits` [..., K/n], fp32, along the last dimension, and all pass the same `labels`
// [...] in [0, K). All slices get the same bits. Nobody has the whole logits: slices exchange, for
// each label, their largest logit and where it is, then two numbers (three with `label_smoothing`)
// that are added up; backward exchanges nothing. Throws c10::Error when an exchange fails.
SlicedLoss SlicedCrossEntropy(const at::Tensor& logits, const at::Tensor& labels,
                              double label_smoothing, SliceExchange& exchange);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_MODELS_LOSS_H_
