#include "core/gpu/element_steps.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/base/kernels.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

// Values of all magnitudes, zeros of both signs and denormals.
std::vector<float> Values(uint32_t seed, size_t n) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> exponent(-140, 20);
  std::normal_distribution<float> mantissa;
  std::vector<float> values(n);
  for (float& value : values) value = std::ldexp(mantissa(random), exponent(random) / 4);
  if (n > 3) {
    values[0] = 0.0f;
    values[1] = -0.0f;
    values[2] = std::numeric_limits<float>::denorm_min();
    values[3] = -1e-40f;
  }
  return values;
}

std::vector<float> Squares(std::vector<float> values) {
  for (float& value : values) value = value * value;
  return values;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

constexpr size_t kElements = 10'007;

TEST(ElementStepsTest, SgdGivesTheBitsOfTheCpuKernel) {
  for (const double momentum : {0.0, 0.9}) {
    for (const double dampening : {0.0, 0.3}) {
      for (const double decay : {0.0, 5e-4}) {
        for (const bool nesterov : {false, true}) {
          for (const bool first_step : {false, true}) {
            const SgdCoefficients c =
                MakeSgdCoefficients(0.1, momentum, dampening, decay, nesterov, first_step);
            std::vector<float> param = Values(1, kElements), buffer = Values(2, kElements);
            const std::vector<float> grad = Values(3, kElements);
            std::vector<float> want = param, want_buffer = buffer;
            SgdStep(c, want.data(), grad.data(), want_buffer.data(), kElements);
            for (size_t i = 0; i < kElements; ++i) {
              param[i] = SgdElement(c, param[i], grad[i], momentum == 0 ? nullptr : &buffer[i]);
            }
            EXPECT_TRUE(SameBits(param, want)) << momentum << " " << decay << " " << nesterov;
            EXPECT_TRUE(SameBits(buffer, want_buffer)) << momentum << " " << decay;
          }
        }
      }
    }
  }
}

TEST(ElementStepsTest, AdamGivesTheBitsOfTheCpuKernel) {
  for (const AdamDecay kind : {AdamDecay::kAddedToGradient, AdamDecay::kDecoupled}) {
    for (const double decay : {0.0, 1e-2}) {
      for (const int64_t step : {1, 1000}) {
        const AdamCoefficients c = MakeAdamCoefficients(1e-3, 0.9, 0.999, 1e-8, decay, kind, step);
        std::vector<float> param = Values(4, kElements), average = Values(5, kElements);
        std::vector<float> squares = Squares(Values(6, kElements));
        const std::vector<float> grad = Values(7, kElements);
        std::vector<float> want = param, want_average = average, want_squares = squares;
        AdamStep(c, want.data(), grad.data(), want_average.data(), want_squares.data(), kElements);
        for (size_t i = 0; i < kElements; ++i) {
          param[i] = AdamElement(c, param[i], grad[i], &average[i], &squares[i]);
        }
        EXPECT_TRUE(SameBits(param, want)) << decay << " step " << step;
        EXPECT_TRUE(SameBits(average, want_average)) << decay << " step " << step;
        EXPECT_TRUE(SameBits(squares, want_squares)) << decay << " step " << step;
      }
    }
  }
}

TEST(ElementStepsTest, ScaleTwiceGivesTheBitsOfTheCpuKernel) {
  std::vector<float> x = Values(8, kElements);
  std::vector<float> want = x;
  ScaleTwice(want.data(), kElements, 1.0f / 3, 1.0f / 7);
  for (float& value : x) value = ScaleTwiceElement(value, 1.0f / 3, 1.0f / 7);
  EXPECT_TRUE(SameBits(x, want));
}

}  // namespace
}  // namespace gradsync
