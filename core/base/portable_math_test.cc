// Two hosts whose C libraries round differently had different learning rates, and the job ended.

#include "core/base/portable_math.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "gtest/gtest.h"

namespace gradsync {
namespace {

struct Power {
  double base, exponent, result;
};

// The exact values, to 300 bits, rounded once.
constexpr Power kPowers[] = {
    {0x1.fa5e353f7ced9p-1, 0x1.ccccccccccccdp-1, 0x1.faedabad99bf0p-1},
    {0x1.fa9fbe76c8b44p-1, 0x1.ccccccccccccdp-1, 0x1.fb28b7804eb74p-1},
    {0x1.0000000000000p-1, 0x1.3333333333333p-2, 0x1.9fdf8bcce533ep-1},
    {0x1.4f8b588e368f1p-17, 0x1.599999999999ap+1, 0x1.1cd5288a35c95p-45},
    {0x1.999999999999ap-4, 0x1.8000000000000p+1, 0x1.0624dd2f1a9fdp-10},
    {0x1.ff7ced916872bp-1, 0x1.f400000000000p+9, 0x1.788526411ed72p-2},
    {0x1.ccccccccccccdp-1, 0x1.c000000000000p+2, 0x1.e9c6a99d1cdbfp-2},
    {0x1.fffffca501acbp-1, 0x1.e240800000000p+16, 0x1.f9b7c750fae3ep-1},
    {0x1.c000000000000p+1, 0x1.8800000000000p+3, 0x1.1a1b595842656p+22},
    {0x1.ff7ced916872bp-1, 0x1.312d000000000p+22, 0x0.0p+0},
    {0x1.e759ff97b7508p-3, 0x1.a1f7d1cc85454p+0, 0x1.8901985212d62p-4},
    {0x1.7ad586f53dadep-2, 0x1.cfcf82cd8256fp+0, 0x1.5200998112aa7p-3},
    {0x1.405e69652cae3p-1, 0x1.929bfbd119b60p-3, 0x1.d2eb20a2bdf43p-1},
    {0x1.af7d1e8a85280p-7, 0x1.41968f8685ed5p+1, 0x1.3c5d33fa49c5fp-16},
    {0x1.09941946801c6p-2, 0x1.67eeaee4d09b0p-1, 0x1.8c867941b62e6p-2},
    {0x1.fdc528ede5c0ep-1, 0x1.69299153eef95p+0, 0x1.fcdb629b5f581p-1},
};

constexpr double kCosines[][2] = {
    {0x0.0p+0, 0x1.0000000000000p+0},
    {0x1.12e0be826d695p-30, 0x1.0000000000000p+0},
    {0x1.0000000000000p-1, 0x1.c1528065b7d50p-1},
    {0x1.0000000000000p+0, 0x1.14a280fb5068cp-1},
    {0x1.921fb54442d18p+0, 0x1.1a62633145c07p-54},
    {0x1.0000000000000p+1, -0x1.aa22657537205p-2},
    {0x1.8000000000000p+1, -0x1.fae04be85e5d2p-1},
    {0x1.921fb54442d18p+1, -0x1.0000000000000p+0},
    {0x1.5030ca46d03f9p+1, -0x1.bd90500c58b58p-1},
    {0x1.7ee96951810b8p+0, 0x1.331ae66ebef26p-4},
    {0x1.00dab13ec71aap+1, -0x1.b056ce63e6a07p-2},
    {0x1.e44938f1b1affp-2, 0x1.c7cce0b6cc3ddp-1},
    {0x1.fe538e65a2907p+0, -0x1.a409beb5dfe33p-2},
    {0x1.5ce28046d57f5p+1, -0x1.d458e800aa0bdp-1},
};

TEST(PortableMathTest, PowersAreTheExactOnesRounded) {
  for (const Power& power : kPowers) {
    EXPECT_EQ(PortablePow(power.base, power.exponent), power.result)
        << power.base << " to the " << power.exponent;
  }
}

TEST(PortableMathTest, CosinesAreTheExactOnesRounded) {
  for (const auto& [x, result] : kCosines) EXPECT_EQ(PortableCos(x), result) << x;
}

TEST(PortableMathTest, EndsOfTheRangesAreAsInTheCLibrary) {
  EXPECT_EQ(PortablePow(0, 0.0), 1);
  EXPECT_EQ(PortablePow(0, 0.5), 0);
  EXPECT_EQ(PortablePow(1, 0.9), 1);
  EXPECT_EQ(PortablePow(0.3, 1.0), 0.3);
  EXPECT_EQ(PortablePow(0.3, int64_t{0}), 1);
  EXPECT_EQ(PortablePow(0, int64_t{3}), 0);
  EXPECT_EQ(PortablePow(0.5, int64_t{1000}), std::ldexp(1, -1000));
  EXPECT_EQ(PortablePow(2, int64_t{1000}), std::ldexp(1, 1000));
  EXPECT_EQ(PortablePow(10, int64_t{400}), std::numeric_limits<double>::infinity());
  EXPECT_EQ(PortablePow(0.9, std::numeric_limits<int64_t>::max()), 0);
}

// So that no recipe of old trains differently in any way that a float would show.
TEST(PortableMathTest, DiffersFromTheCLibraryByOneUnitInTheLastPlaceAtMost) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> part(0, 1);
  const auto near = [](double found, double expected) {
    return found == expected || found == std::nextafter(expected, 2) ||
           found == std::nextafter(expected, -2);
  };
  for (int i = 0; i < 10000; ++i) {
    const double base = part(random), exponent = 3 * part(random), angle = 3.14159 * part(random);
    EXPECT_TRUE(near(PortablePow(base, exponent), std::pow(base, exponent))) << base;
    EXPECT_TRUE(near(PortablePow(base, int64_t{i}), std::pow(base, i))) << base << " " << i;
    EXPECT_TRUE(near(PortableCos(angle), std::cos(angle))) << angle;
  }
}

}  // namespace
}  // namespace gradsync
