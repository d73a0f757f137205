// The arithmetic that workers and servers do on flat float buffers, without LibTorch.
//
// Each function runs the best of three dispatch levels (baseline x86-64, AVX2, AVX-512), chosen
// once from what the CPU has. All levels give the same bits, so machines of different ages may train
// together. No fused multiply-add, no approximation, no flush of denormals; the floating-point
// environment is neither read nor changed.
//
// core/base/kernels_body.inc is the one source of all kernels. It is compiled once per level with
// other machine flags and always with -ffp-contract=off, so every level does the same IEEE
// single-precision operations on an element in the same order, and gives the same bits. Two
// exceptions that IEEE leaves open: the payload and the sign of a NaN that came out of arithmetic.
//
// The units of the levels include nothing that defines inline functions or templates, so neither
// does this header: the linker keeps one copy of those, and could keep one with instructions that
// the CPU lacks.
//
// All functions are thread-safe as far as their arguments do not overlap between threads, never
// block, allocate nothing and cannot fail. n counts elements and may be 0, with any pointers.
// Unless said otherwise, buffers of one call must not overlap.
#ifndef GRADSYNC_CORE_BASE_KERNELS_H_
#define GRADSYNC_CORE_BASE_KERNELS_H_

#include <stddef.h>
#include <stdint.h>

namespace gradsync {

// acc = acc + x, element by element: one turn of the fold that defines the mean's bits.
void Add(float* acc, const float* x, size_t n);

// Add whose second operand is n floats at any address, as received from the network.
void AddUnaligned(float* acc, const void* bytes, size_t n);

// out = the n floats at `bytes`, which may have any alignment.
void Copy(float* out, const void* bytes, size_t n);

// x = x * a, and out = x * a.
void Scale(float* x, size_t n, float a);
void ScaleTo(float* out, const float* x, size_t n, float a);

// x = (x * a) * b in one pass; the bits of Scale(x, n, a) and then Scale(x, n, b). For the mean and
// then the inverse loss scale.
void ScaleTwice(float* x, size_t n, float a, float b);

// acc = ((acc + x) * a) * b in one pass, where x is n floats at any address; the bits of
// AddUnaligned() and then ScaleTwice(). For the last turn of the fold.
void AddScaleTwice(float* acc, const void* bytes, size_t n, float a, float b);

// The sum of squares in double. Element i goes to lane i mod 16; each lane adds in index order;
// then the lanes fold as a tree (k += k+8, k+4, k+2, k+1). The order is part of the contract, since
// all owners must agree on a norm. Infinities and NaNs show in the result.
double SumOfSquares(const float* x, size_t n);

// One SGD step. See MakeSgdCoefficients.
struct SgdCoefficients {
  float neg_lr;
  float weight_decay;  // 0: the parameter is not read for it
  float momentum;      // 0: the momentum buffer is neither read nor written, and may be null
  float one_minus_dampening;
  bool nesterov;
  bool first_step;  // the momentum buffer starts as the gradient
};

// What one step of torch::optim::SGD needs, rounded once from double to float.
//   first_step: the momentum buffer starts as the (decayed) gradient, without dampening
SgdCoefficients MakeSgdCoefficients(double lr, double momentum, double dampening,
                                    double weight_decay, bool nesterov, bool first_step);

// One step over n elements, in one pass over memory:
//   d = grad + weight_decay * param
//   buf = first_step ? d : momentum * buf + (1 - dampening) * d      (only if momentum != 0)
//   d = nesterov ? d + momentum * buf : buf                          (only if momentum != 0)
//   param = param - lr * d
// `momentum_buffer` may be null if momentum is 0. Source: torch::optim::SGD, LibTorch 1.13.
void SgdStep(const SgdCoefficients& c, float* param, const float* grad, float* momentum_buffer,
             size_t n);

// One Adam or AdamW step. See MakeAdamCoefficients.
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

// Adam adds weight_decay * param to the gradient; AdamW multiplies param by 1 - lr * weight_decay.
enum class AdamDecay { kAddedToGradient, kDecoupled };

// What step t (counted from 1) of torch::optim::Adam or AdamW needs. The bias corrections are
// computed in double and rounded once.
AdamCoefficients MakeAdamCoefficients(double lr, double beta1, double beta2, double eps,
                                      double weight_decay, AdamDecay decay, int64_t t);

// One step over n elements, in one pass over memory:
//   exp_avg = beta1 * exp_avg + (1 - beta1) * grad
//   exp_avg_sq = beta2 * exp_avg_sq + (1 - beta2) * grad^2
//   param = param - lr / (1 - beta1^t) * exp_avg / (sqrt(exp_avg_sq) / sqrt(1 - beta2^t) + eps)
// Sources: Kingma and Ba 2015; Loshchilov and Hutter 2019; torch::optim (no amsgrad),
// LibTorch 1.13.
void AdamStep(const AdamCoefficients& c, float* param, const float* grad, float* exp_avg,
              float* exp_avg_sq, size_t n);

// Conversions to and from 16-bit floats: IEEE binary16 ("half") and bfloat16. To 16 bits: round to
// nearest even, overflow to infinity, denormals kept, NaNs quiet with the upper bits of their
// payload. From 16 bits: exact (NaNs of half become quiet).
void FloatToHalf(uint16_t* out, const float* x, size_t n);
// The same, but what is finite stays finite: beyond 65504, the largest half, it becomes 65504 with
// its sign. Infinities and NaNs stay what they are.
void FloatToSaturatedHalf(uint16_t* out, const float* x, size_t n);
void HalfToFloat(float* out, const uint16_t* x, size_t n);
void FloatToBfloat16(uint16_t* out, const float* x, size_t n);
void Bfloat16ToFloat(float* out, const uint16_t* x, size_t n);

// The whole fold that defines the mean's bits, in registers: reads every input once and stores
//   ((ins[0] + ins[1]) + ... + ins[num_ins - 1]) * a * b
// to every output; the bits of num_ins - 1 times Add and then ScaleTwice. An output may be one of
// the inputs, from the same address on; otherwise buffers must not overlap. num_ins and num_outs
// are at least 1. Fastest for up to eight inputs with one output or as many outputs as inputs.
void FoldMean(float* const* outs, int num_outs, const float* const* ins, int num_ins, size_t n,
              float a, float b);

// For tests and benchmarks that compare levels.
enum class KernelLevel { kBaseline, kAvx2, kAvx512 };

// "baseline", "avx2" or "avx512".
const char* KernelLevelName(KernelLevel level);

// Whether this CPU and its operating system can run `level`.
bool CpuHasKernelLevel(KernelLevel level);

// The best level that this CPU has: what the functions above run.
KernelLevel BestKernelLevel();

// The kernels of one level. Contracts: the functions of the same names above. const void* is a run of
// floats at any address. Only tests, which compare levels, come here.
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

// The kernels of one level; calling them where CpuHasKernelLevel is false is an illegal
// instruction.
const KernelTable& KernelsOf(KernelLevel level);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_KERNELS_H_
