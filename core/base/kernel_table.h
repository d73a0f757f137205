// The table through which core/base/kernels.h reaches the kernels of one dispatch level. Callers
// use core/base/kernels.h; only its tests, which compare levels, and the kernels for GPUs, which
// take the same coefficients, come here.
//
// core/base/kernels_body.inc is the one source of all kernels. It is compiled once per level with
// other machine flags and always with -ffp-contract=off, so every level does the same IEEE
// single-precision operations on an element in the same order, and gives the same bits. Two
// exceptions that IEEE leaves open: the payload and the sign of a NaN that came out of arithmetic.
//
// The units of the levels include nothing that defines inline functions or templates: the linker
// keeps one copy of those, and could keep one with instructions that the CPU lacks.
#ifndef GRADSYNC_CORE_BASE_KERNEL_TABLE_H_
#define GRADSYNC_CORE_BASE_KERNEL_TABLE_H_

#include <stddef.h>
#include <stdint.h>

namespace gradsync {

// One SGD step. See MakeSgdCoefficients in core/base/kernels.h.
struct SgdCoefficients {
  float neg_lr;
  float weight_decay;  // 0: the parameter is not read for it
  float momentum;      // 0: the momentum buffer is neither read nor written, and may be null
  float one_minus_dampening;
  bool nesterov;
  bool first_step;  // the momentum buffer starts as the gradient
};

// One Adam or AdamW step. See MakeAdamCoefficients in core/base/kernels.h.
struct AdamCoefficients {
  float neg_step_size;  // -lr / (1 - beta1^t)
  float sqrt_bias2;     // sqrt(1 - beta2^t)
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float eps;
  float weight_decay;  // Adam: added to the gradient. 0: nothing
  float param_factor;  // AdamW: 1 - lr * weight_decay. 1: nothing
};

// Contracts: the functions of the same names in core/base/kernels.h. const void* is a run of floats
// at any address.
struct KernelTable {
  void (*add)(float* acc, const void* bytes, size_t n);
  void (*scale_to)(float* out, const float* x, size_t n, float a);
  void (*scale)(float* x, size_t n, float a);
  void (*scale_twice)(float* x, size_t n, float a, float b);
  double (*sum_of_squares)(const float* x, size_t n);
  void (*sgd_step)(const SgdCoefficients& c, float* param, const float* grad,
                   float* momentum_buffer, size_t n);
  void (*adam_step)(const AdamCoefficients& c, float* param, const float* grad, float* exp_avg,
                    float* exp_avg_sq, size_t n);
  void (*float_to_half)(uint16_t* out, const float* x, size_t n);
  void (*half_to_float)(float* out, const uint16_t* x, size_t n);
  void (*float_to_bfloat16)(uint16_t* out, const float* x, size_t n);
  void (*bfloat16_to_float)(float* out, const uint16_t* x, size_t n);
  void (*fold_mean)(float* const* outs, int num_outs, const float* const* ins, int num_ins,
                    size_t n, float a, float b);
  void (*add_scale_twice)(float* acc, const void* bytes, size_t n, float a, float b);
  void (*float_to_saturated_half)(uint16_t* out, const float* x, size_t n);
};

extern const KernelTable kBaselineKernels;  // any x86-64
extern const KernelTable kAvx2Kernels;      // AVX2 and F16C
extern const KernelTable kAvx512Kernels;    // AVX-512 F, BW, DQ and VL

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_KERNEL_TABLE_H_
