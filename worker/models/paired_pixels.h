// The first convolution of a ResNet in a form that GPUs are fast at.

#ifndef GRADSYNC_WORKER_MODELS_PAIRED_PIXELS_H_
#define GRADSYNC_WORKER_MODELS_PAIRED_PIXELS_H_

#include "ATen/core/Tensor.h"

namespace gradsync {

// at::conv2d(x, weight, {}, stride 2, padding 3) of weight [out, 3, 7, 7] and x [n, 3, h, w], h and w
// even: a convolution of 4x4 and stride 1 over blocks of 2x2 pixels whose 12 values are channels,
// and four more that are zero. Three channels fill a fifth of what tensor cores take at a time,
// sixteen half of it. The same products are added in another order.
//
// The idea is TensorFlow's and MLPerf's, as "space to depth" (Ying et al., Image Classification at
// Supercomputer Scale, 2018). Differentiable by weight, not by x. Throws what LibTorch throws.
at::Tensor ConvolvePairedPixels(const at::Tensor& x, const at::Tensor& weight);

// Whether it can take the place of that convolution: x has no gradient and sizes as above.
bool TakesPairedPixels(const at::Tensor& x, const at::Tensor& weight);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_MODELS_PAIRED_PIXELS_H_
