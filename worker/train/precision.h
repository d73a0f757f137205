// Which types the job computes in. docs/precision.md says what that means for a step.

#ifndef GRADSYNC_WORKER_TRAIN_PRECISION_H_
#define GRADSYNC_WORKER_TRAIN_PRECISION_H_

#include "absl/status/status.h"
#include "c10/core/DeviceType.h"
#include "c10/core/ScalarType.h"
#include "core/plan/kinds.h"

namespace gradsync {

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

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_PRECISION_H_
