#include "core/base/kernels.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace gradsync {
namespace {

// Around every vector width, and long enough for the main loops.
const size_t kSizes[] = {0, 1, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100, 1000, 4099};

// Random floats over the whole range of exponents in use, zeros of both signs and denormals
// included.
std::vector<float> Values(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> mantissa(-2, 2);
  std::uniform_int_distribution<int> exponent(-20, 4);
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) {
    values[i] = std::ldexp(mantissa(random), exponent(random));
    if (i % 37 == 5) values[i] = std::ldexp(values[i], -128);
    if (i % 41 == 7) values[i] = i % 2 == 0 ? 0.0f : -0.0f;
  }
  return values;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

class KernelsTest : public ::testing::TestWithParam<KernelLevel> {
 protected:
  void SetUp() override {
    if (!CpuHasKernelLevel(GetParam())) GTEST_SKIP() << "this CPU lacks the level";
  }
  const KernelTable& kernels() const { return KernelsOf(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Levels, KernelsTest,
                         ::testing::Values(KernelLevel::kBaseline, KernelLevel::kAvx2,
                                           KernelLevel::kAvx512),
                         [](const ::testing::TestParamInfo<KernelLevel>& info) {
                           return std::string(KernelLevelName(info.param));
                         });

TEST_P(KernelsTest, AddIsOneRoundedAdditionPerElementAtAnyAlignment) {
  for (size_t n : kSizes) {
    for (size_t offset : {0, 1, 2, 3, 4, 13}) {
      const std::vector<float> before = Values(n, 1), x = Values(n, 2);
      std::vector<char> bytes(n * sizeof(float) + offset);
      if (n > 0) std::memcpy(bytes.data() + offset, x.data(), n * sizeof(float));
      std::vector<float> acc = before, expected = before;
      kernels().add(acc.data(), bytes.data() + offset, n);
      for (size_t i = 0; i < n; ++i) {
        volatile float sum = before[i] + x[i];
        expected[i] = sum;
      }
      EXPECT_TRUE(SameBits(acc, expected)) << n << " " << offset;
    }
  }
}

TEST_P(KernelsTest, ScalingTwiceInOnePassIsScalingInTwo) {
  const float inverse_n = 1.0f / 3, inverse_loss_scale = 1.0f / 1000;
  for (size_t n : kSizes) {
    const std::vector<float> x = Values(n, 3);
    std::vector<float> once = x, twice = x, out(n), expected = x;
    kernels().scale_twice(once.data(), n, inverse_n, inverse_loss_scale);
    kernels().scale(twice.data(), n, inverse_n);
    kernels().scale_to(out.data(), twice.data(), n, inverse_loss_scale);
    for (size_t i = 0; i < n; ++i) {
      volatile float mean = x[i] * inverse_n;
      expected[i] = mean * inverse_loss_scale;
    }
    EXPECT_TRUE(SameBits(once, expected)) << n;
    EXPECT_TRUE(SameBits(out, expected)) << n;
  }
}

TEST_P(KernelsTest, AddingAndScalingInOnePassIsAddingAndThenScaling) {
  const float inverse_n = 1.0f / 3, inverse_loss_scale = 1.0f / 1000;
  for (size_t n : kSizes) {
    for (size_t offset : {0, 1, 4, 13}) {
      const std::vector<float> x = Values(n, 6);
      std::vector<char> bytes(n * sizeof(float) + offset);
      if (n > 0) std::memcpy(bytes.data() + offset, x.data(), n * sizeof(float));
      std::vector<float> acc = Values(n, 5), expected = acc;
      kernels().add_scale_twice(acc.data(), bytes.data() + offset, n, inverse_n,
                                inverse_loss_scale);
      for (size_t i = 0; i < n; ++i) {
        volatile float sum = expected[i] + x[i];
        volatile float mean = sum * inverse_n;
        expected[i] = mean * inverse_loss_scale;
      }
      EXPECT_TRUE(SameBits(acc, expected)) << n << " " << offset;
    }
  }
}

TEST_P(KernelsTest, SumOfSquaresFoldsSixteenLanes) {
  for (size_t n : kSizes) {
    const std::vector<float> x = Values(n, 4);
    double lane[16] = {};
    for (size_t i = 0; i < n; ++i) lane[i % 16] += static_cast<double>(x[i]) * x[i];
    for (int half = 8; half > 0; half /= 2) {
      for (int k = 0; k < half; ++k) lane[k] += lane[k + half];
    }
    EXPECT_EQ(kernels().sum_of_squares(x.data(), n), lane[0]) << n;
  }
}

TEST_P(KernelsTest, SumOfSquaresShowsOverflowAndNotANumber) {
  std::vector<float> x(100, 1.0f);
  x[50] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isinf(kernels().sum_of_squares(x.data(), x.size())));
  x[99] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(kernels().sum_of_squares(x.data(), x.size())));
}

// The recurrences written as torch::optim has them, one rounding per operation.
void ReferenceSgd(const SgdCoefficients& c, std::vector<float>* param,
                  const std::vector<float>& grad, std::vector<float>* buffer) {
  for (size_t i = 0; i < grad.size(); ++i) {
    volatile float d = grad[i];
    volatile float product;
    if (c.weight_decay != 0) {
      product = c.weight_decay * (*param)[i];
      d = d + product;
    }
    if (c.momentum != 0) {
      volatile float b = d;
      if (!c.first_step) {
        product = d * c.one_minus_dampening;
        b = (*buffer)[i] * c.momentum;
        b = b + product;
      }
      (*buffer)[i] = b;
      product = c.momentum * b;
      d = c.nesterov ? d + product : b;
    }
    product = c.neg_lr * d;
    (*param)[i] = (*param)[i] + product;
  }
}

TEST_P(KernelsTest, SgdStepIsTheRecurrenceInEveryVariant) {
  for (size_t n : kSizes) {
    for (int variant = 0; variant < 16; ++variant) {
      const double momentum = variant & 1 ? 0.9 : 0, decay = variant & 2 ? 5e-4 : 0;
      const bool nesterov = (variant & 4) != 0;
      const double dampening = (variant & 8) != 0 && !nesterov ? 0.1 : 0;
      std::vector<float> param = Values(n, 5), buffer(n, 0.0f);
      std::vector<float> expected_param = param, expected_buffer = buffer;
      for (int step = 1; step <= 20; ++step) {
        const std::vector<float> grad = Values(n, 100 + step);
        SgdCoefficients c =
            MakeSgdCoefficients(0.1 / step, momentum, dampening, decay, nesterov, step == 1);
        kernels().sgd_step(c, param.data(), grad.data(), momentum != 0 ? buffer.data() : nullptr,
                           n);
        ReferenceSgd(c, &expected_param, grad, &expected_buffer);
      }
      EXPECT_TRUE(SameBits(param, expected_param)) << n << " variant " << variant;
      EXPECT_TRUE(SameBits(buffer, expected_buffer)) << n << " variant " << variant;
    }
  }
}

void ReferenceAdam(const AdamCoefficients& c, std::vector<float>* param,
                   const std::vector<float>& grad, std::vector<float>* exp_avg,
                   std::vector<float>* exp_avg_sq) {
  for (size_t i = 0; i < grad.size(); ++i) {
    volatile float g = grad[i], p = (*param)[i], product;
    if (c.weight_decay != 0) {
      product = c.weight_decay * p;
      g = g + product;
    }
    p = p * c.param_factor;
    volatile float m = (*exp_avg)[i] * c.beta1;
    product = g * c.one_minus_beta1;
    m = m + product;
    volatile float v = (*exp_avg_sq)[i] * c.beta2;
    product = g * g;
    product = product * c.one_minus_beta2;
    v = v + product;
    (*exp_avg)[i] = m;
    (*exp_avg_sq)[i] = v;
    volatile float denominator = std::sqrt(static_cast<float>(v));
    denominator = denominator / c.sqrt_bias2;
    denominator = denominator + c.eps;
    product = c.neg_step_size * m;
    product = product / denominator;
    (*param)[i] = p + product;
  }
}

TEST_P(KernelsTest, AdamStepIsTheRecurrenceInEveryVariant) {
  for (size_t n : kSizes) {
    for (int variant = 0; variant < 4; ++variant) {
      const double decay = variant & 1 ? 1e-2 : 0;
      const AdamDecay kind = variant & 2 ? AdamDecay::kDecoupled : AdamDecay::kAddedToGradient;
      std::vector<float> param = Values(n, 6), m(n, 0.0f), v(n, 0.0f);
      std::vector<float> expected_param = param, expected_m = m, expected_v = v;
      for (int step = 1; step <= 20; ++step) {
        const std::vector<float> grad = Values(n, 200 + step);
        AdamCoefficients c = MakeAdamCoefficients(1e-3, 0.9, 0.999, 1e-8, decay, kind, step);
        kernels().adam_step(c, param.data(), grad.data(), m.data(), v.data(), n);
        ReferenceAdam(c, &expected_param, grad, &expected_m, &expected_v);
      }
      EXPECT_TRUE(SameBits(param, expected_param)) << n << " variant " << variant;
      EXPECT_TRUE(SameBits(m, expected_m)) << n << " variant " << variant;
      EXPECT_TRUE(SameBits(v, expected_v)) << n << " variant " << variant;
    }
  }
}

TEST(KernelDispatchTest, TheBestLevelIsOneThatTheCpuHas) {
  EXPECT_TRUE(CpuHasKernelLevel(KernelLevel::kBaseline));
  EXPECT_TRUE(CpuHasKernelLevel(BestKernelLevel()));
}

TEST(KernelDispatchTest, FunctionsReachTheKernelsOfTheirName) {
  std::vector<float> x = {1, 2, 3};
  const std::vector<float> y = {10, 20, 30};
  Add(x.data(), y.data(), 3);
  EXPECT_EQ(x, (std::vector<float>{11, 22, 33}));
  AddUnaligned(x.data(), y.data(), 2);
  EXPECT_EQ(x, (std::vector<float>{21, 42, 33}));
  Scale(x.data(), 3, 2);
  EXPECT_EQ(x, (std::vector<float>{42, 84, 66}));
  ScaleTwice(x.data(), 3, 0.5f, 2);
  EXPECT_EQ(x, (std::vector<float>{42, 84, 66}));
  ScaleTo(x.data(), y.data(), 3, 0.5f);
  EXPECT_EQ(x, (std::vector<float>{5, 10, 15}));
  Copy(x.data(), y.data(), 3);
  EXPECT_EQ(x, y);
  Copy(nullptr, nullptr, 0);
  EXPECT_EQ(SumOfSquares(y.data(), 3), 1400);
}

}  // namespace
}  // namespace gradsync
