// Statistics of batch normalisation over more than one batch: several batches of one model, those
// of its replicas in turn, and those of all ranks together.

#ifndef GRADSYNC_WORKER_MODELS_BATCH_STATISTICS_H_
#define GRADSYNC_WORKER_MODELS_BATCH_STATISTICS_H_

#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/base/thread_annotations.h"
#include "core/base/mutex.h"
#include "worker/models/image_kernels.h"
#include "worker/models/moment_exchange.h"

namespace gradsync {

// The moments of several batches together, from those of each. Not thread-safe.
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

// Who updates running statistics when: replicas of one model, each on a thread of its own, share
// the statistics of each BatchNorm2d, and take turns at a layer in the order of their numbers. So
// the statistics have the bits of one model that goes through the replicas' parts one after the
// other, since the same operation is applied to them in the same order. A replica waits at a layer
// until those with lower numbers have been there; replicas that are equally fast are one layer's
// normalisation apart.
//
// Thread-safe. Await() waits for threads of this process alone.
class StatisticsTurns {
 public:
  // Between Begin() and End() layers take turns, and at other times none waits. Not to be called
  // while a replica computes.
  void Begin();
  void End();

  // Blocks until it is the turn of `replica` at `layer`. Throws c10::Error after Abandon(), and
  // where the replica has been at the layer before, which is to be called once in a step.
  void Await(int layer, int replica);

  // The replica whose turn it was is done at the layer.
  void Pass(int layer);

  // A replica will not come any more: whoever waits, or would, throws. Until the next Begin().
  void Abandon();

 private:
  Mutex mutex_;
  CondVar changed_;
  bool active_ ABSL_GUARDED_BY(mutex_) = false;
  bool abandoned_ ABSL_GUARDED_BY(mutex_) = false;
  // By layer, as many as have been awaited: the replica whose turn it is.
  std::vector<int> next_ ABSL_GUARDED_BY(mutex_);
};

// A layer's place among those turns.
struct StatisticsTurn {
  StatisticsTurns* turns = nullptr;  // null: nobody shares the statistics
  int layer = 0;
  int replica = 0;
};

// Batch normalisation by the moments of all ranks' batches together, as torch.nn.SyncBatchNorm has
// it on GPUs; here on any device.
//
// Normalises `x` [B, C, ...] in training, in the type of the weight, and updates the buffers of
// `tensors`, with momentum 0.1 and eps 1e-5. Forward is one call of `exchange`: each rank's count,
// means and variances; all ranks fold them in rank order, so all have the same moments, bit by bit.
// So is backward: sums of the gradient and of its product with the normalised input. The gradients
// of weight and bias are those of this rank's batch, which data-parallel training averages as all
// others.
//
// Ranks may have batches of different sizes, also empty ones. The batch is counted once. On a GPU
// both calls wait for the device. `exchange` must outlive the graph. Throws c10::Error what
// LibTorch throws, for errors of `exchange`, and when all ranks together have only one value per
// channel.
at::Tensor SyncNorm(const at::Tensor& x, const NormTensors& tensors, MomentExchange& exchange);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_MODELS_BATCH_STATISTICS_H_
