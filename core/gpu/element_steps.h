// One element's step of each kernel in core/gpu/gpu_kernels.cu, as functions that the host can run
// too:
// a test compares their bits with core/base/kernels.h where there is no GPU.
//
// The operations and their order are those of core/base/kernels_body.inc. Whoever includes this
// must compile it without contraction and with IEEE division and square root: g++ with
// -ffp-contract=off, nvcc as cuda_library (third_party/cuda_library.bzl) calls it.

#ifndef GRADSYNC_CORE_GPU_ELEMENT_STEPS_H_
#define GRADSYNC_CORE_GPU_ELEMENT_STEPS_H_

#include <math.h>

#include "core/base/kernels.h"
#include "core/gpu/kernel_operands.h"

namespace gradsync {

// The new parameter; *buffer is read and written unless c.momentum is 0, when it may be null.
GRADSYNC_HOST_DEVICE inline float SgdElement(const SgdCoefficients& c, float param, float grad,
                                             float* buffer) {
  float d = grad;
  if (c.weight_decay != 0) d = d + c.weight_decay * param;
  if (c.momentum != 0) {
    const float b = c.first_step ? d : *buffer * c.momentum + d * c.one_minus_dampening;
    *buffer = b;
    d = c.nesterov ? d + c.momentum * b : b;
  }
  return param + c.neg_lr * d;
}

// The new parameter; the averages are read and written.
GRADSYNC_HOST_DEVICE inline float AdamElement(const AdamCoefficients& c, float param, float grad,
                                              float* exp_avg, float* exp_avg_sq) {
  float g = grad;
  if (c.weight_decay != 0) g = g + c.weight_decay * param;
  const float p = param * c.param_factor;
  const float m = *exp_avg * c.beta1 + g * c.one_minus_beta1;
  const float v = *exp_avg_sq * c.beta2 + (g * g) * c.one_minus_beta2;
  *exp_avg = m;
  *exp_avg_sq = v;
  const float denominator = sqrtf(v) / c.sqrt_bias2 + c.eps;
  return p + (c.neg_step_size * m) / denominator;
}

GRADSYNC_HOST_DEVICE inline float ScaleTwiceElement(float x, float a, float b) {
  return (x * a) * b;
}

}  // namespace gradsync

#endif  // GRADSYNC_CORE_GPU_ELEMENT_STEPS_H_
