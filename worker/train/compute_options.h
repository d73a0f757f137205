// In which types and memory format a job computes.
#ifndef GRADSYNC_WORKER_TRAIN_COMPUTE_OPTIONS_H_
#define GRADSYNC_WORKER_TRAIN_COMPUTE_OPTIONS_H_

#include "worker/train/precision.h"

namespace gradsync {

struct ComputeOptions {
  Precision precision = Precision::kFp32;
  // Images, and with them what passes between layers, and the weights of convolutions lie in memory
  // channel by channel for each pixel (NHWC): what a GPU's tensor cores want, and oneDNN takes.
  // Sizes, indices and parameter names are as ever.
  bool channels_last = false;
  // Batch normalisation and what follows it in one operation, where FusedNorm takes it: in
  // training, on a GPU, with channels_last; there also MaxPool and ConvolvePairedPixels. Elsewhere
  // nothing changes, not a bit.
  bool fused_norm = true;
  // With a narrower type than fp32: copies of the weights in it, made once in a step, instead of
  // autocast's in each forward (gradsync/ddp/weight_copies.h). Not where the model is cut or
  // sharded, or has replicas. Nothing changes, not a bit.
  bool weight_copies = true;
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_COMPUTE_OPTIONS_H_
