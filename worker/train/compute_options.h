// In which types and memory format a job computes, and with how many threads.

#ifndef GRADSYNC_WORKER_TRAIN_COMPUTE_OPTIONS_H_
#define GRADSYNC_WORKER_TRAIN_COMPUTE_OPTIONS_H_

#include "absl/status/status.h"
#include "c10/core/DeviceType.h"
#include "c10/core/ScalarType.h"
#include "core/plan/kinds.h"

namespace gradsync {

// docs/use/precision.md says what types mean for a step.

// The type of what passes between layers.
c10::ScalarType ScalarTypeOf(Precision precision);

// Whether a job can compute so on such a device.
// Errors: INVALID_ARGUMENT naming --precision for fp16 on a CPU, which LibTorch's autocast does not
// offer there before version 2.
absl::Status CheckPrecision(Precision precision, c10::DeviceType device);

// Sets for this process, because LibTorch has it so, whether fp32 convolutions and matrix products
// on a GPU may round their factors to TF32's 11 bits of significand. LibTorch's own default allows
// it in convolutions; call this before the first of them, also with false.
// Errors: INVALID_ARGUMENT naming --tf32 when it is to be allowed and `device` is no GPU.
absl::Status ApplyMathFlags(bool allow_tf32, c10::DeviceType device);

// Sets for this process whether cuDNN times its algorithms for each shape of a convolution that it
// has not seen yet, and takes the fastest; otherwise it goes by a rule. LibTorch's own default is
// not to. Changes nothing on another device than a GPU.
void LetCudnnTryAlgorithms(bool benchmark, c10::DeviceType device);

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

// How many threads compute. LibTorch hands matrix products to a BLAS library with threads of its
// own: OpenBLAS, as Debian has it, takes all cores for each product whatever LibTorch was told.
// LibTorch from pip has MKL, which LibTorch tells itself.

// From here on LibTorch, called on this thread, computes with at most `threads`, and so does
// OpenBLAS in the whole process where it is loaded. At least 1. Call it before the first
// computation.
void SetComputeThreads(int threads);

// SetComputeThreads(). Where the addresses of this process are limited (ulimit -v) and OpenBLAS is
// loaded, also has it take the buffer for its products: it takes one at the first of them and, where
// the system has none to give, asks for ever.
// Errors: RESOURCE_EXHAUSTED naming --threads, what its buffers need and what is left.
absl::Status TakeComputeThreads(int threads);

// What OpenBLAS says that it computes with; 0 where it is not loaded.
int OpenBlasThreads();

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_COMPUTE_OPTIONS_H_
