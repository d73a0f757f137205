#include "core/base/kernels.h"

#include <cpuid.h>

#include <cmath>
#include <cstring>
#include <initializer_list>

#include "core/base/portable_math.h"

namespace gradsync {
namespace {

const KernelTable& Best() {
  static const KernelTable& best = KernelsOf(BestKernelLevel());
  return best;
}

// The compiler's __builtin_cpu_supports knows "f16c" only in recent versions.
bool CpuHasF16c() {
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

}  // namespace

const char* KernelLevelName(KernelLevel level) {
  switch (level) {
    case KernelLevel::kBaseline:
      return "baseline";
    case KernelLevel::kAvx2:
      return "avx2";
    case KernelLevel::kAvx512:
      return "avx512";
  }
  return "unknown";
}

bool CpuHasKernelLevel(KernelLevel level) {
  switch (level) {
    case KernelLevel::kBaseline:
      return true;
    case KernelLevel::kAvx2:
      return __builtin_cpu_supports("avx2") && CpuHasF16c();
    case KernelLevel::kAvx512:
      return CpuHasKernelLevel(KernelLevel::kAvx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
  }
  return false;
}

KernelLevel BestKernelLevel() {
  for (KernelLevel level : {KernelLevel::kAvx512, KernelLevel::kAvx2}) {
    if (CpuHasKernelLevel(level)) return level;
  }
  return KernelLevel::kBaseline;
}

const KernelTable& KernelsOf(KernelLevel level) {
  switch (level) {
    case KernelLevel::kBaseline:
      break;
    case KernelLevel::kAvx2:
      return kAvx2Kernels;
    case KernelLevel::kAvx512:
      return kAvx512Kernels;
  }
  return kBaselineKernels;
}

void Add(float* acc, const float* x, size_t n) { Best().add(acc, x, n); }

void AddUnaligned(float* acc, const void* bytes, size_t n) { Best().add(acc, bytes, n); }

void Copy(float* out, const void* bytes, size_t n) {
  if (n > 0) std::memcpy(out, bytes, n * sizeof(float));
}

void Scale(float* x, size_t n, float a) { Best().scale(x, n, a); }

void ScaleTo(float* out, const float* x, size_t n, float a) { Best().scale_to(out, x, n, a); }

void ScaleTwice(float* x, size_t n, float a, float b) { Best().scale_twice(x, n, a, b); }

void AddScaleTwice(float* acc, const void* bytes, size_t n, float a, float b) {
  Best().add_scale_twice(acc, bytes, n, a, b);
}

double SumOfSquares(const float* x, size_t n) { return Best().sum_of_squares(x, n); }

SgdCoefficients MakeSgdCoefficients(double lr, double momentum, double dampening,
                                    double weight_decay, bool nesterov, bool first_step) {
  SgdCoefficients c;
  c.neg_lr = static_cast<float>(-lr);
  c.weight_decay = static_cast<float>(weight_decay);
  c.momentum = static_cast<float>(momentum);
  c.one_minus_dampening = static_cast<float>(1 - dampening);
  c.nesterov = nesterov;
  c.first_step = first_step;
  return c;
}

void SgdStep(const SgdCoefficients& c, float* param, const float* grad, float* momentum_buffer,
             size_t n) {
  Best().sgd_step(c, param, grad, momentum_buffer, n);
}

AdamCoefficients MakeAdamCoefficients(double lr, double beta1, double beta2, double eps,
                                      double weight_decay, AdamDecay decay, int64_t t) {
  const double bias1 = 1 - PortablePow(beta1, t);
  const double bias2 = 1 - PortablePow(beta2, t);
  const bool decoupled = decay == AdamDecay::kDecoupled;
  AdamCoefficients c;
  c.neg_step_size = static_cast<float>(-lr / bias1);
  c.sqrt_bias2 = static_cast<float>(std::sqrt(bias2));
  c.beta1 = static_cast<float>(beta1);
  c.one_minus_beta1 = static_cast<float>(1 - beta1);
  c.beta2 = static_cast<float>(beta2);
  c.one_minus_beta2 = static_cast<float>(1 - beta2);
  c.eps = static_cast<float>(eps);
  c.weight_decay = decoupled ? 0.0f : static_cast<float>(weight_decay);
  c.param_factor = decoupled ? static_cast<float>(1 - lr * weight_decay) : 1.0f;
  return c;
}

void AdamStep(const AdamCoefficients& c, float* param, const float* grad, float* exp_avg,
              float* exp_avg_sq, size_t n) {
  Best().adam_step(c, param, grad, exp_avg, exp_avg_sq, n);
}

void FloatToHalf(uint16_t* out, const float* x, size_t n) { Best().float_to_half(out, x, n); }

void FloatToSaturatedHalf(uint16_t* out, const float* x, size_t n) {
  Best().float_to_saturated_half(out, x, n);
}

void HalfToFloat(float* out, const uint16_t* x, size_t n) { Best().half_to_float(out, x, n); }

void FloatToBfloat16(uint16_t* out, const float* x, size_t n) {
  Best().float_to_bfloat16(out, x, n);
}

void Bfloat16ToFloat(float* out, const uint16_t* x, size_t n) {
  Best().bfloat16_to_float(out, x, n);
}

void FoldMean(float* const* outs, int num_outs, const float* const* ins, int num_ins, size_t n,
              float a, float b) {
  Best().fold_mean(outs, num_outs, ins, num_ins, n, a, b);
}

}  // namespace gradsync
