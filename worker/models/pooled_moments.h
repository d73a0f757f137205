// The moments of several batches together, from those of each.

#ifndef GRADSYNC_WORKER_MODELS_POOLED_MOMENTS_H_
#define GRADSYNC_WORKER_MODELS_POOLED_MOMENTS_H_

#include "ATen/core/Tensor.h"
#include "worker/models/fused_norm.h"

namespace gradsync {

// Not thread-safe.
class PooledMoments {
 public:
  // Of one batch: mean and unbiased variance of each channel, both [C] in floats, of `count` values
  // per channel, at least two. Put together without a difference of large numbers: Chan, Golub,
  // LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979.
  void Add(const at::Tensor& mean, const at::Tensor& variance, double count);

  // Updates the buffers as one batch of all values would, with momentum 0.1, and forgets them.
  // Nothing where none were added.
  void Update(const NormTensors& tensors);

 private:
  double count_ = 0;
  at::Tensor mean_;     // [C] in doubles
  at::Tensor squares_;  // of what is off the mean, summed up
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_MODELS_POOLED_MOMENTS_H_
