// The loss and the score of an image classifier, and of a language model at all its positions.
#ifndef GRADSYNC_MODELS_LOSS_H_
#define GRADSYNC_MODELS_LOSS_H_

#include <cstdint>

#include "ATen/core/Tensor.h"

namespace gradsync {

// Mean cross-entropy over the batch, as torch.nn.functional.cross_entropy: `logits` float [B, K],
// `labels` int64 [B] in [0, K); or [B, T, K] and [B, T]. A scalar with a gradient. LibTorch throws on
// other shapes.
at::Tensor CrossEntropy(const at::Tensor& logits, const at::Tensor& labels);

// How many of the labels have the largest logit: top-1 accuracy is this over labels.numel().
// Waits for the device.
int64_t CountCorrect(const at::Tensor& logits, const at::Tensor& labels);

}  // namespace gradsync

#endif  // GRADSYNC_MODELS_LOSS_H_
