#include "core/base/chunk_codec.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/kernels.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using Kind = ChunkForm::Kind;
using Mode = ChunkDecoder::Mode;

constexpr float kInverseN = 1.0f / 3, kInverseLossScale = 1.0f / 1000;

std::vector<float> RandomFloats(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& value : x) value = normal(random);
  return x;
}

std::string Encode(const ChunkForm& form, const std::vector<float>& values) {
  std::string out(form.bytes(), '\0');
  EncodeChunk(form, values.data(), out.data());
  return out;
}

absl::Status Decode(const ChunkForm& form, Mode mode, absl::string_view payload, size_t part,
                    std::vector<float>* out) {
  ChunkDecoder decoder(form, mode, out->data(), kInverseN, kInverseLossScale);
  for (size_t at = 0; at < payload.size(); at += part) {
    const absl::Status status = decoder.Consume(payload.substr(at, part));
    if (!status.ok()) return status;
  }
  return decoder.Finish();
}

// Ties to even, from the definition: the nearest of the two neighbours that drop the lower bits.
float RoundedToBfloat16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const uint32_t low = bits & 0xffff;
  bits -= low;
  if (low > 0x8000 || (low == 0x8000 && (bits & 0x10000) != 0)) bits += 0x10000;
  std::memcpy(&x, &bits, 4);
  return x;
}

float RoundedToHalf(float x) {
  if (x == 0) return x;
  const int exponent = std::max(std::ilogb(x), -14);
  const double unit = std::ldexp(1.0, exponent - 10);
  return static_cast<float>(std::nearbyint(x / unit) * unit);
}

std::vector<ChunkForm> Forms(int64_t n) {
  return {{Kind::kFp32, n, 0},
          {Kind::kFp16, n, 0},
          {Kind::kBf16, n, 0},
          {Kind::kSparse, n, (n + 9) / 10},
          {Kind::kSparse, n, n}};
}

std::string Name(const ChunkForm& form) {
  return absl::StrCat("kind ", static_cast<int>(form.kind), ", ", form.elements, " elements, ",
                      form.entries, " entries");
}

TEST(ChunkFormTest, BytesAreThoseOfTheTable) {
  EXPECT_EQ((ChunkForm{Kind::kFp32, 48, 0}.bytes()), 192);
  EXPECT_EQ((ChunkForm{Kind::kFp16, 48, 0}.bytes()), 96);
  EXPECT_EQ((ChunkForm{Kind::kBf16, 48, 0}.bytes()), 96);
  EXPECT_EQ((ChunkForm{Kind::kSparse, 48, 5}.bytes()), 30);
  EXPECT_EQ((ChunkForm{Kind::kSparse, 65536, 5}.bytes()), 30);
  EXPECT_EQ((ChunkForm{Kind::kSparse, 65552, 5}.bytes()), 40);
}

TEST(ChunkCodecTest, SixteenBitsRoundToNearestEven) {
  const std::vector<float> values = RandomFloats(3000, 1);
  for (const ChunkForm& form : Forms(3000)) {
    if (form.kind != Kind::kFp16 && form.kind != Kind::kBf16) continue;
    std::vector<float> found(values.size(), -1);
    ASSERT_TRUE(Decode(form, Mode::kCopy, Encode(form, values), 1 << 20, &found).ok());
    std::vector<float> rounded = values;
    RoundChunk(form.kind, rounded.data(), rounded.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const float expected =
          form.kind == Kind::kFp16 ? RoundedToHalf(values[i]) : RoundedToBfloat16(values[i]);
      ASSERT_EQ(found[i], expected) << Name(form) << " element " << i;
      ASSERT_EQ(rounded[i], expected) << Name(form) << " element " << i;
    }
  }
}

TEST(ChunkCodecTest, ARoundedChunkIsNotRoundedAgain) {
  for (Kind kind : {Kind::kFp32, Kind::kFp16, Kind::kBf16, Kind::kSparse}) {
    std::vector<float> once = RandomFloats(100, 2);
    once[7] = std::numeric_limits<float>::infinity();
    RoundChunk(kind, once.data(), once.size());
    std::vector<float> twice = once;
    RoundChunk(kind, twice.data(), twice.size());
    EXPECT_EQ(once, twice);
  }
}

TEST(ChunkCodecTest, WhereAPayloadIsCutMakesNoDifference) {
  for (const ChunkForm& form : Forms(1600)) {
    const std::string payload = Encode(form, RandomFloats(1600, 3));
    for (Mode mode : {Mode::kAdd, Mode::kCopy, Mode::kAddAndScale}) {
      const std::vector<float> before = RandomFloats(1600, 4);
      std::vector<float> whole = before;
      ASSERT_TRUE(Decode(form, mode, payload, payload.size(), &whole).ok());
      for (size_t part : {1, 3, 7, 1001}) {
        std::vector<float> cut = before;
        ASSERT_TRUE(Decode(form, mode, payload, part, &cut).ok());
        EXPECT_EQ(cut, whole) << Name(form) << " part " << part;
      }
    }
  }
}

TEST(ChunkCodecTest, AddingIsDecodingAndThenAdding) {
  for (const ChunkForm& form : Forms(96)) {
    const std::string payload = Encode(form, RandomFloats(96, 5));
    std::vector<float> decoded(96);
    ASSERT_TRUE(Decode(form, Mode::kCopy, payload, 96, &decoded).ok());
    const std::vector<float> before = RandomFloats(96, 6);
    std::vector<float> sum = before;
    ASSERT_TRUE(Decode(form, Mode::kAdd, payload, 96, &sum).ok());
    for (size_t i = 0; i < sum.size(); ++i) EXPECT_EQ(sum[i], before[i] + decoded[i]);
  }
}

TEST(ChunkCodecTest, AddingAndScalingIsAddingAndThenScalingAll) {
  for (const ChunkForm& form : Forms(1600)) {
    const std::string payload = Encode(form, RandomFloats(1600, 5));
    const std::vector<float> before = RandomFloats(1600, 6);
    std::vector<float> expected = before, mean = before;
    ASSERT_TRUE(Decode(form, Mode::kAdd, payload, 96, &expected).ok());
    ScaleTwice(expected.data(), expected.size(), kInverseN, kInverseLossScale);
    ASSERT_TRUE(Decode(form, Mode::kAddAndScale, payload, 96, &mean).ok());
    EXPECT_EQ(mean, expected) << Name(form);
  }
}

TEST(ChunkCodecTest, SparseSendsTheLargestAndForgettingLeavesTheRest) {
  const ChunkForm form = {Kind::kSparse, 8, 3};
  std::vector<float> values = {0.5f, -4, 0, 3, -0.0f, 4, 3, 1};
  const std::string payload = Encode(form, values);
  std::vector<float> sent(8, 99);
  ASSERT_TRUE(Decode(form, Mode::kCopy, payload, 5, &sent).ok());
  EXPECT_EQ(sent, (std::vector<float>{0, -4, 0, 3, 0, 4, 0, 0}));
  ForgetEncoded(form, payload.data(), values.data());
  EXPECT_EQ(values, (std::vector<float>{0.5f, 0, 0, 0, 0, 0, 3, 1}));
}

TEST(ChunkCodecTest, LargeChunksHaveLongIndices) {
  const int64_t n = 70000;
  const ChunkForm form = {Kind::kSparse, n, 2};
  std::vector<float> values(n, 0.0f);
  values[5] = 1;
  values[69999] = -2;
  std::vector<float> sent(n);
  ASSERT_TRUE(Decode(form, Mode::kCopy, Encode(form, values), 3, &sent).ok());
  EXPECT_EQ(sent, values);
}

TEST(ChunkCodecTest, OverflowSaturatesUnlessAskedAndWhatIsNotFiniteShows) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {65504, 65520, -1e30f, NAN, kInf, -kInf};
  const ChunkForm half = {Kind::kFp16, 6, 0};
  std::vector<float> found(6);
  ASSERT_TRUE(Decode(half, Mode::kCopy, Encode(half, values), 12, &found).ok());
  EXPECT_EQ(found[0], 65504);
  EXPECT_EQ(found[1], 65504);
  EXPECT_EQ(found[2], -65504);
  EXPECT_TRUE(std::isnan(found[3]));
  EXPECT_EQ(found[4], kInf);
  EXPECT_EQ(found[5], -kInf);
  std::vector<float> rounded = values;
  RoundChunk(Kind::kFp16, rounded.data(), rounded.size());
  EXPECT_EQ(rounded[1], 65504);
  EXPECT_EQ(rounded[4], kInf);
  std::string payload(static_cast<size_t>(half.bytes()), '\0');
  EncodeChunk(half, values.data(), &payload[0], Overflow::kInfinite);
  ASSERT_TRUE(Decode(half, Mode::kCopy, payload, 12, &found).ok());
  EXPECT_EQ(found[1], kInf);
  EXPECT_EQ(found[2], -kInf);
  EXPECT_EQ(found[4], kInf);
  const ChunkForm brain = {Kind::kBf16, 6, 0};
  ASSERT_TRUE(Decode(brain, Mode::kCopy, Encode(brain, values), 12, &found).ok());
  EXPECT_TRUE(std::isfinite(found[2]));
  EXPECT_TRUE(std::isnan(found[3]));
}

TEST(ChunkCodecTest, PayloadsOfAnotherLengthAreRefused) {
  for (const ChunkForm& form : Forms(32)) {
    std::string payload = Encode(form, RandomFloats(32, 7));
    std::vector<float> out(32);
    absl::Status status = Decode(form, Mode::kCopy, payload + "x", 16, &out);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << Name(form);
    payload.pop_back();
    status = Decode(form, Mode::kCopy, payload, 16, &out);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << Name(form);
    EXPECT_TRUE(absl::StrContains(status.message(), absl::StrCat("expected ", form.bytes())))
        << status;
  }
}

// A peer may send anything: no index may reach outside the chunk.
TEST(ChunkCodecTest, IndicesThatDoNotAscendWithinTheChunkAreRefused) {
  const ChunkForm form = {Kind::kSparse, 32, 2};
  const auto payload = [](uint16_t first, uint16_t second) {
    std::string bytes(12, '\0');
    std::memcpy(&bytes[0], &first, 2);
    std::memcpy(&bytes[6], &second, 2);
    return bytes;
  };
  std::vector<float> out(32);
  EXPECT_TRUE(Decode(form, Mode::kAdd, payload(0, 31), 4, &out).ok());
  for (const std::string& bad : {payload(3, 3), payload(4, 3), payload(0, 32), payload(65535, 1)}) {
    EXPECT_EQ(Decode(form, Mode::kAdd, bad, 4, &out).code(), absl::StatusCode::kDataLoss);
  }
}

}  // namespace
}  // namespace gradsync
