// Batch normalisation by the moments of all ranks' batches together, as torch.nn.SyncBatchNorm has
// it on GPUs; here on any device.

#ifndef GRADSYNC_WORKER_MODELS_SYNC_NORM_H_
#define GRADSYNC_WORKER_MODELS_SYNC_NORM_H_

#include "ATen/core/Tensor.h"
#include "worker/models/fused_norm.h"
#include "worker/models/moment_exchange.h"

namespace gradsync {

// Normalises `x` [B, C, ...] in training, in the type of the weight, and updates the buffers of
// `tensors`, with momentum 0.1 and eps 1e-5. Forward is one call of `exchange`: each rank's count, means and variances; all ranks
// fold them in rank order, so all have the same moments, bit by bit. So is backward: sums of the
// gradient and of its product with the normalised input. The gradients of weight and bias are those
// of this rank's batch, which data-parallel training averages as all others.
//
// Ranks may have batches of different sizes, also empty ones. The batch is counted once. On a GPU
// both calls wait for the device. `exchange` must outlive the graph. Throws c10::Error what LibTorch
// throws, for errors of `exchange`, and when all ranks together have only one value per channel.
at::Tensor SyncNorm(const at::Tensor& x, const NormTensors& tensors, MomentExchange& exchange);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_MODELS_SYNC_NORM_H_
