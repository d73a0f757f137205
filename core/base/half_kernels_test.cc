#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "core/base/kernels.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

float FromBits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

uint32_t Bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

// What a half is worth, from the definition of binary16.
float ValueOfHalf(uint16_t half) {
  const int exponent = (half >> 10) & 31, fraction = half & 1023;
  const float sign = half & 0x8000 ? -1 : 1;
  if (exponent == 31) return fraction == 0 ? sign * INFINITY : NAN;
  return exponent == 0 ? sign * std::ldexp(static_cast<float>(fraction), -24)
                       : sign * std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
}

// All upper halves of a float, with lower halves around the points where roundings change.
std::vector<float> InterestingFloats() {
  std::vector<float> values;
  for (uint32_t upper = 0; upper < 65536; ++upper) {
    for (uint32_t lower : {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x1001u, 0x2fffu, 0x3000u, 0x5000u,
                           0x7fffu, 0x8000u, 0x8001u, 0xe000u, 0xf000u, 0xf001u, 0xffffu}) {
      values.push_back(FromBits(upper << 16 | lower));
    }
  }
  return values;
}

class HalfKernelsTest : public ::testing::TestWithParam<KernelLevel> {
 protected:
  void SetUp() override {
    if (!CpuHasKernelLevel(GetParam())) GTEST_SKIP() << "this CPU lacks the level";
  }
  const KernelTable& kernels() const { return KernelsOf(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Levels, HalfKernelsTest,
                         ::testing::Values(KernelLevel::kBaseline, KernelLevel::kAvx2,
                                           KernelLevel::kAvx512),
                         [](const ::testing::TestParamInfo<KernelLevel>& info) {
                           return std::string(KernelLevelName(info.param));
                         });

std::vector<uint16_t> AllSixteenBits() {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  return all;
}

TEST_P(HalfKernelsTest, EveryHalfHasItsValueAndNaNsBecomeQuiet) {
  const std::vector<uint16_t> all = AllSixteenBits();
  std::vector<float> values(all.size());
  kernels().half_to_float(values.data(), all.data(), all.size());
  for (uint16_t half : all) {
    const float expected = ValueOfHalf(half);
    if (std::isnan(expected)) {
      const uint32_t bits = (half & 0x8000u) << 16 | 0x7fc00000u | (half & 0x3ffu) << 13;
      ASSERT_EQ(Bits(values[half]), bits) << half;
    } else {
      ASSERT_EQ(Bits(values[half]), Bits(expected)) << half;
    }
  }
}

TEST_P(HalfKernelsTest, EveryHalfSurvivesTheRoundTrip) {
  const std::vector<uint16_t> all = AllSixteenBits();
  std::vector<float> values(all.size());
  std::vector<uint16_t> back(all.size());
  kernels().half_to_float(values.data(), all.data(), all.size());
  kernels().float_to_half(back.data(), values.data(), all.size());
  for (uint16_t half : all) {
    const bool is_nan = (half & 0x7fff) > 0x7c00;
    ASSERT_EQ(back[half], is_nan ? half | 0x200 : half);
  }
}

TEST_P(HalfKernelsTest, FloatsRoundToTheNearestHalfAndTiesToEven) {
  const std::vector<float> values = InterestingFloats();
  std::vector<uint16_t> halves(values.size());
  kernels().float_to_half(halves.data(), values.data(), values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t half = halves[i];
    const int magnitude = half & 0x7fff;
    ASSERT_EQ(half >> 15, static_cast<int>(std::signbit(values[i])));
    if (std::isnan(values[i])) {
      ASSERT_EQ(magnitude, 0x7e00u | ((Bits(values[i]) >> 13) & 0x3ff));
      continue;
    }
    // Infinity stands for 65536, the value that a larger exponent would give.
    const auto worth = [](int m) { return m == 0x7c00 ? 65536.0 : ValueOfHalf(m); };
    ASSERT_LE(magnitude, 0x7c00);
    const double x = std::fabs(values[i]);
    if (magnitude > 0) {
      const double tie = (worth(magnitude - 1) + worth(magnitude)) / 2;
      ASSERT_TRUE(x > tie || (x == tie && magnitude % 2 == 0)) << Bits(values[i]);
    }
    if (magnitude < 0x7c00) {
      const double tie = (worth(magnitude) + worth(magnitude + 1)) / 2;
      ASSERT_TRUE(x < tie || (x == tie && magnitude % 2 == 0)) << Bits(values[i]);
    }
  }
}

// A finite gradient beyond the range of half became an infinity on the wire, and then parameters
// that were NaNs.
TEST_P(HalfKernelsTest, SaturationKeepsFiniteFloatsFiniteAndChangesNothingElse) {
  std::vector<float> values = InterestingFloats();
  for (float x : {65503.9f, 65504.0f, 65504.01f, 65519.99f, 65520.0f, 65536.0f, 1e6f, 3.4e38f}) {
    values.insert(values.end(), {x, -x});
  }
  std::vector<uint16_t> plain(values.size()), saturated(values.size());
  kernels().float_to_half(plain.data(), values.data(), values.size());
  kernels().float_to_saturated_half(saturated.data(), values.data(), values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const bool overflowed = std::isfinite(values[i]) && (plain[i] & 0x7fff) == 0x7c00;
    const uint16_t expected =
        overflowed ? static_cast<uint16_t>((plain[i] & 0x8000) | 0x7bff) : plain[i];
    ASSERT_EQ(saturated[i], expected) << Bits(values[i]);
    uint16_t alone;
    kernels().float_to_saturated_half(&alone, &values[i], 1);
    ASSERT_EQ(alone, expected) << Bits(values[i]);
  }
}

TEST_P(HalfKernelsTest, FloatsRoundToTheNearestBfloat16AndTiesToEven) {
  const std::vector<float> values = InterestingFloats();
  std::vector<uint16_t> shorts(values.size());
  kernels().float_to_bfloat16(shorts.data(), values.data(), values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t bits = Bits(values[i]), lower = bits & 0xffff;
    uint32_t expected = bits >> 16;
    if (std::isnan(values[i])) {
      expected |= 0x40;
    } else if (lower > 0x8000 || (lower == 0x8000 && expected % 2 == 1)) {
      ++expected;
    }
    ASSERT_EQ(shorts[i], expected) << bits;
  }
}

TEST_P(HalfKernelsTest, Bfloat16IsTheUpperHalfOfAFloat) {
  const std::vector<uint16_t> all = AllSixteenBits();
  std::vector<float> values(all.size());
  kernels().bfloat16_to_float(values.data(), all.data(), all.size());
  for (uint16_t x : all) ASSERT_EQ(Bits(values[x]), static_cast<uint32_t>(x) << 16);
}

TEST_P(HalfKernelsTest, TheRemainderAfterFullVectorsGetsTheSameBits) {
  const std::vector<float> values = InterestingFloats();
  std::vector<uint16_t> together(values.size()), alone(values.size());
  std::vector<float> back_together(values.size()), back_alone(values.size());
  kernels().float_to_half(together.data(), values.data(), values.size());
  kernels().half_to_float(back_together.data(), together.data(), values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    kernels().float_to_half(&alone[i], &values[i], 1);
    kernels().half_to_float(&back_alone[i], &together[i], 1);
    ASSERT_EQ(alone[i], together[i]) << Bits(values[i]);
    ASSERT_EQ(Bits(back_alone[i]), Bits(back_together[i])) << together[i];
  }
}

}  // namespace
}  // namespace gradsync
